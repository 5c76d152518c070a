"""Whether two formulas are one: asks math-verify (SymPy), in a process that has limits and can be lost."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, cast

from kvquant_eval.core.records import Json
from kvquant_eval.core.text import one_line

START_S, ANSWER_S = 120.0, 90.0
"""Seconds for the import of SymPy, and for one answer: more than the child's own ``WALL_S``."""
MOST_BYTES = 64 * 1024
_INSIDE = Path(__file__).with_name("symbolic_child.py")
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "PYTHONSAFEPATH": "1", "LC_ALL": "C.UTF-8", "MALLOC_ARENA_MAX": "1"}


def is_installed() -> bool:
    """Whether the extra ``math`` is there."""
    return find_spec("math_verify") is not None


class Symbolic:
    """See ``Oracle``. A question is ``{"gold": [LaTeX, ...], "answer": LaTeX}``, an answer ``{"same": LaTeX}``,
    the first gold that is equal, or None; with ``why`` where a formula is too much for SymPy, by the reply's own doing.

    One child answers one question after the other, each in a fork with ``cpu_s`` seconds of CPU time; a child that is
    silent or ends is started anew.
    """

    at_once = 1

    def __init__(self, cpu_s: int = 5) -> None:
        self._cpu_s = cpu_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._broken = ""

    def __call__(self, content: Mapping[str, Json]) -> Json:
        with self._lock:
            if self._broken:
                return {"error": self._broken}
            try:
                if self._process is None:
                    self._start()
                return self._ask({"gold": content["gold"], "answer": content["answer"]})
            except _Lost as lost:
                self._end()
                return {"error": str(lost)}

    def close(self) -> None:
        """End the child, whatever it is at."""
        self._kill()
        with self._lock:
            self._end()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-s", "-B", str(_INSIDE), str(self._cpu_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_ENVIRONMENT,
            cwd="/",
            start_new_session=True,
        )
        try:
            self._hear(START_S)
        except _Lost as lost:
            self._broken = f"math-verify does not start ({one_line(self._last_words()) or lost})"
            raise _Lost(self._broken) from None

    def _ask(self, question: Mapping[str, Json]) -> Json:
        try:
            stdin = cast("IO[bytes]", cast("subprocess.Popen[bytes]", self._process).stdin)
            stdin.write(json.dumps(question).encode() + b"\n")
            stdin.flush()
        except OSError:
            raise _Lost("its process ended") from None
        return self._hear(ANSWER_S)

    def _hear(self, seconds: float) -> Any:
        """The child's next line. Raises _Lost."""
        reader = cast("IO[bytes]", cast("subprocess.Popen[bytes]", self._process).stdout).fileno()
        data, until = b"", time.monotonic() + seconds
        while not data.endswith(b"\n"):
            if not select.select([reader], [], [], max(0.0, until - time.monotonic()))[0]:
                raise _Lost(f"no answer within {seconds:g} s")
            piece = os.read(reader, MOST_BYTES)
            if not piece or len(data) > MOST_BYTES:
                raise _Lost("its process ended")
            data += piece
        try:
            return json.loads(data)
        except ValueError:
            raise _Lost("its answer is no JSON") from None

    def _last_words(self) -> str:
        self._kill()
        stderr = cast("IO[bytes]", cast("subprocess.Popen[bytes]", self._process).stderr)
        return stderr.read(MOST_BYTES).decode(errors="replace").strip().rpartition("\n")[2]

    def _kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _end(self) -> None:
        if self._process is not None:
            self._kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
                with contextlib.suppress(OSError):
                    cast("IO[bytes]", stream).close()
            self._process = None


class _Lost(Exception):
    """No answer; says why."""
