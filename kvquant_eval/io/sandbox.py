"""Code of unknown origin, run where it can do no harm: one process without network, files, other processes or time.

``sandboxed.py`` runs inside. What holds it, twice over where bubblewrap is there:

- bubblewrap: namespaces of its own (user, mounts, processes, network, IPC, host name), in which there are only
  ``/usr``, ``/lib*`` and the interpreter, read-only, and an empty ``/tmp`` of ``SCRATCH_MB`` that goes with it; no
  ``/etc``, no ``/home``, no ``/proc``, an empty environment, no privileges to gain;
- always: limits on CPU time, memory, files and output; a filter (seccomp) that refuses sockets, new processes, signals
  and other programs; death with this process. Without bubblewrap also Landlock, where the kernel has it: reads nothing
  but the interpreter and ``/usr``, writes nothing.

Bounded by the time alone: what the kernel keeps of threads and of empty files (about 1 KiB each, a million in 10 s).
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvquant_eval.core.records import Json
from kvquant_eval.core.settings import CodeSettings
from kvquant_eval.core.text import one_line
from kvquant_eval.io.talk import Stopped, Talk, exit_status, last_words, started

PATIENCE = 5
"""Seconds by the clock for a second of CPU time: code may wait, and the machine may be busy."""
START_S = 60.0
SCRATCH_MB = 16
FILE_BYTES = 8 * 2**20
_INSIDE = Path(__file__).with_name("sandboxed.py")
_ENVIRONMENT = {
    "PYTHONHASHSEED": "0",  # so the interpreter is not isolated by -I, which would not read it
    "PYTHONSAFEPATH": "1",
    "HOME": "/tmp",  # noqa: S108 - inside
    "LC_ALL": "C.UTF-8",
    "MALLOC_ARENA_MAX": "1",
}
_SYSTEM = (Path("/usr"), Path("/lib"), Path("/lib64"))
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,}")

DOORS = {
    "read files": "open({secret!r})",
    "read /etc": "open('/etc/passwd')",
    "write files": "open({secret!r} + '.new', 'w')",
    "delete files": "os.remove({secret!r})",
    "start processes": "os.fork()",
    "open sockets": "socket.socket()",
    "reach other processes": "os.kill({pid}, 0)",
    "look at other processes": "os.listdir('/proc/{pid}')",
    "take all memory": "bytearray({memory})",
    "write large files": "os.truncate(open('/tmp/large', 'w').name, 2**40)",
}
"""What code must not be able to do, and how it would. ``Isolation.strong`` means that all of it was tried, in vain."""
_TRY = """import os, socket
def shut(attempt):
    try:
        attempt()
    except (OSError, MemoryError):
        return
    raise AssertionError('open')
"""


@dataclass(frozen=True, kw_only=True)
class Isolation:
    """How code is kept in here: by ``bubblewrap`` (its path; empty: without), and why that is weak (empty: it is not).

    Strong is what bubblewrap keeps in a ``probe`` that finds every one of ``DOORS`` shut. Without its namespaces a list
    of refused system calls is all there is, so that is weak even where every door is shut.
    """

    bubblewrap: str
    weakness: str

    @property
    def strong(self) -> bool:
        """Whether code may run here without anybody's leave."""
        return not self.weakness


def find_isolation() -> Isolation:
    """The strongest isolation that works here. It is tried, not assumed; that takes a fraction of a second."""
    path = shutil.which("bwrap")
    if path is None:
        return Isolation(bubblewrap="", weakness="bubblewrap is not installed")
    found = probe(path)
    if found.get("error"):
        return Isolation(bubblewrap="", weakness=f"bubblewrap does not work here ({found['error']})")
    if left := [door for door, error in zip(DOORS, found["errors"], strict=True) if error]:
        return Isolation(bubblewrap=path, weakness=f"code in bubblewrap can {', '.join(left)} here")
    return Isolation(bubblewrap=path, weakness="")


def probe(bubblewrap: str) -> dict[str, Any]:
    """Try every door from inside: an error for each that is open. ``{"error": line}`` where nothing runs at all."""
    limits = CodeSettings()
    with tempfile.TemporaryDirectory() as folder:
        secret = Path(folder) / "secret"
        secret.write_text("secret", encoding="utf-8")
        known = {"secret": str(secret), "pid": os.getpid(), "memory": 2 * limits.memory_mb * 2**20}
        tests = [f"shut(lambda: {attempt.format(**known)})" for attempt in DOORS.values()]
        found = Sandbox(Isolation(bubblewrap=bubblewrap, weakness=""), limits)(
            {"setup": _TRY, "code": "", "tests": tests}
        )
    return {"error": found["stopped"]} if found.get("stopped") else found


@dataclass(frozen=True)
class Sandbox:
    """Executes a reply's code against its tests: the oracle of questions ``{"setup", "code", "tests"}``.

    The answer is ``{"errors": [...], "stopped": line}``: how each test failed (empty: it passed); ``stopped`` is how
    the program ended before its tests were done, by its own doing (empty: it did not). ``{"error": line}`` is no
    evidence: the sandbox or the turn's setup failed, not the code.
    """

    isolation: Isolation
    limits: CodeSettings

    @property
    def at_once(self) -> int:
        """One process a core."""
        return len(os.sched_getaffinity(0))

    def __call__(self, content: Mapping[str, Json]) -> dict[str, Any]:
        try:
            with started(self._command(), _ENVIRONMENT) as (process, talk):
                try:
                    talk.hear(START_S)
                except (Stopped, TimeoutError):
                    return {"error": f"the sandbox did not start: {last_words(process) or 'it says nothing'}"}
                return self._converse(process, talk, content)
        except OSError as error:
            return {"error": one_line(f"the sandbox did not start: {error}")}

    def _converse(self, process: subprocess.Popen[bytes], talk: Talk, content: Mapping[str, Json]) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE * self.limits.seconds
        program = {key: content[key] for key in ("setup", "code")}
        errors: list[str] = []
        try:
            token = talk.say({**program, "token": secrets.token_hex(16)}, until)
            for test in content["tests"]:
                loaded = talk.answer(token, until)
                if loaded.get("failed") == "setup" and not errors:
                    return {"error": one_line(f"the turn's setup failed: {_plain(loaded['error'])}")}
                if loaded.get("failed"):
                    errors += [_plain(loaded.get("error"))] * (len(content["tests"]) - len(errors))
                    break
                token = talk.say({"test": test, "token": secrets.token_hex(16)}, until)
                errors.append(_plain(talk.answer(token, until).get("error")))
        except TimeoutError:
            return {"errors": errors, "stopped": f"took longer than {PATIENCE * self.limits.seconds:g} s"}
        except Stopped as stopped:
            return {"errors": errors, "stopped": str(stopped) or self._end(process)}
        return {"errors": errors, "stopped": ""}

    def _end(self, process: subprocess.Popen[bytes]) -> str:
        """How a program ended that nobody had asked to end."""
        status = exit_status(process)
        if status is None:
            return "closed its way to the tests"
        number = -status if status < 0 else status - 128 if status > 128 else 0
        if number == signal.SIGXCPU:
            return f"took more than {self.limits.seconds:g} s of CPU time"
        if number:
            return f"was ended by {signal.Signals(number).name}"
        return "ended before its tests were done"

    def _command(self) -> list[str]:
        megabyte = 2**20
        file = FILE_BYTES if self.isolation.bubblewrap else 0
        limits = [str(max(1, round(self.limits.seconds))), str(self.limits.memory_mb * megabyte), str(file)]
        python = getattr(sys, "_base_executable", sys.executable)  # not the project's environment
        inside = [python, "-S", "-s", "-B", "-X", "utf8", "-c", _INSIDE.read_text(encoding="utf-8"), *limits]
        if self.isolation.bubblewrap:
            return [self.isolation.bubblewrap, *_mounts(), "--", *inside]
        return [*inside, *_readable()]


def _readable() -> list[str]:
    """The folders that an interpreter needs."""
    own = [Path(sys.base_prefix) / part for part in ("bin", "lib", "lib64")]
    return [str(path) for path in (*_SYSTEM, *own) if path.is_dir()]


def _mounts() -> list[str]:
    options = ["--unshare-all", "--unshare-user", "--uid", "65534", "--gid", "65534"]
    options += ["--hostname", "sandbox", "--die-with-parent", "--cap-drop", "ALL"]
    for folder in _readable():
        options += ["--ro-bind", folder, folder]
    options += ["--dev-bind", "/dev/null", "/dev/null", "--size", str(SCRATCH_MB * 2**20), "--tmpfs", "/tmp"]  # noqa: S108
    return [*options, "--remount-ro", "/", "--chdir", "/tmp"]  # noqa: S108


def _plain(error: Any) -> str:
    """Without addresses, which are others in every process."""
    return one_line(_ADDRESS.sub("0x...", str(error)))
