"""One arm's child process: starts it, talks to it in JSON lines, and leaves nothing of it behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kvquant_eval.core.codec import DataError
from kvquant_eval.core.text import one_line

_DROPPED = ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID")  # a child must not write into the parent's run
_LAST_LINES = 15
_LOOK_S = 1.0
_CORE_ERROR = re.compile(r" ERROR \S+ \S+ \[\S+\] (?P<error>[A-Za-z_][\w.]*(: .+|Error$))")
"""An exception in the log of vLLM's engine core: the arm's own error only says to look there."""


class EngineDied(RuntimeError):
    """The engine failed or its process ended; the message has its last log lines."""


class _Patience:
    """How long a ``what`` may be waited for, in seconds, from now or from the last sign of life."""

    def __init__(self, seconds: float, what: str) -> None:
        self.seconds, self.what = seconds, what
        self.renew()

    def renew(self) -> None:
        self.deadline = time.monotonic() + self.seconds

    def left(self) -> float:
        return self.deadline - time.monotonic()

    def __str__(self) -> str:
        return f"no {self.what} for {self.seconds:g} s"


class Child:
    """A worker process in a process group of its own; use as a context manager.

    ``timeout_s`` bounds the wait for one answer. Leaving the context kills the whole group, engine children included,
    also where the process itself is dead already.
    """

    def __init__(self, log: Path, timeout_s: float, env: Mapping[str, str] | None = None) -> None:
        self.log, self.timeout_s, self.env = log, timeout_s, dict(env or {})

    def __enter__(self) -> Self:
        child_in, self._requests = os.pipe()
        self._answers, child_out = os.pipe()
        child_life, self._life = os.pipe()
        environment = {k: v for k, v in os.environ.items() if k not in _DROPPED} | self.env
        with self.log.open("ab") as log:
            self._began = log.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kvquant_eval.worker", str(child_in), str(child_out), str(child_life)],
                pass_fds=(child_in, child_out, child_life),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment,
            )
        for descriptor in (child_in, child_out, child_life):
            os.close(descriptor)
        os.set_blocking(self._requests, False)
        self._buffer = b""
        self._open = True
        return self

    def kill(self) -> None:
        """End the process and its group now; a ``call`` in another thread then raises EngineDied."""
        if self._open:  # not reaped yet, so nobody else can have its number
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._open = False
        self._process.wait()
        for descriptor in (self._requests, self._answers, self._life):
            os.close(descriptor)

    def call(self, op: str, stall_s: float | None = None, **payload: Any) -> Any:
        """Send one request and return its answer; with ``stall_s``, each sign of life gives it as much time again.

        Raises DataError for what the user must correct, EngineDied when the engine failed, ended or was silent too
        long.
        """
        patience = _Patience(stall_s or self.timeout_s, "token" if stall_s else "answer")
        self._write(op, json.dumps({"op": op, **payload}).encode() + b"\n", patience)
        while not (line := self._line(op, patience)):
            patience.renew()
        answer = json.loads(line)
        if "bad_input" in answer:
            raise DataError(answer["bad_input"])
        if "error" in answer:
            raise EngineDied(self._obituary(op, answer["error"]))
        return answer["ok"]

    def _write(self, op: str, data: bytes, patience: _Patience) -> None:
        view = memoryview(data)
        while view:
            self._wait(op, patience, writing=True)
            try:
                view = view[os.write(self._requests, view) :]
            except BrokenPipeError:
                raise EngineDied(self._obituary(op, self._end())) from None

    def _line(self, op: str, patience: _Patience) -> bytes:
        while b"\n" not in self._buffer:
            self._wait(op, patience, writing=False)
            chunk = os.read(self._answers, 1 << 20)
            if not chunk:
                raise EngineDied(self._obituary(op, self._end()))
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line

    def _wait(self, op: str, patience: _Patience, *, writing: bool) -> None:
        """Wait until the pipe is ready. A process that ended is seen within ``_LOOK_S``, though its children hold
        the pipe.
        """
        reads, writes = ([], [self._requests]) if writing else ([self._answers], [])
        while True:
            left = patience.left()
            if any(select.select(reads, writes, [], max(0.0, min(_LOOK_S, left)))[:2]):
                return
            if left <= 0:
                raise EngineDied(self._obituary(op, str(patience)))
            if self._exit() is not None:
                raise EngineDied(self._obituary(op, self._end()))

    def _exit(self) -> os.waitid_result | None:
        """How the process ended, None while it lives; it is not reaped, so that its group keeps its number."""
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)

    def _end(self) -> str:
        """How the process ended, in words."""
        deadline = time.monotonic() + _LOOK_S
        while (result := self._exit()) is None and time.monotonic() < deadline:
            time.sleep(0.01)  # its pipes close a moment before it is dead
        if result is None or result.si_code == os.CLD_EXITED:
            return "its process ended"
        name = signal.Signals(result.si_status).name
        hint = ", by hand or for want of memory" if result.si_status == signal.SIGKILL else ""
        return f"its process ended ({name}{hint})"

    def _obituary(self, op: str, cause: str) -> str:
        """What happened, with this process's own last lines of the log."""
        lines = self.log.read_bytes()[self._began :].decode("utf-8", errors="replace").splitlines()
        first = next((found["error"] for line in lines if (found := _CORE_ERROR.search(line))), "")
        named = f"{cause} ({first})" if first and first not in cause else cause
        last = "\n".join(map(one_line, lines[-_LAST_LINES:]))
        return f"engine, during {op}: {one_line(named)}; log {self.log}, its last lines:\n{last}"
