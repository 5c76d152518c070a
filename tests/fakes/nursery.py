"""Worker processes without the seconds that their imports take: forks of one process that has vLLM imported.

To ``Child`` such a process is as one that it started: its own child, in a session of its own, with the same pipes, log,
environment and ``main``. Only its modules are there before the first request.
"""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any

import pytest

from kvquant_eval.io import child

_PR_SET_CHILD_SUBREAPER = 36
_CHANGES = "PYTEST_CURRENT_TEST"
"""The one variable that differs between the starts of a test session."""


@contextmanager
def forked_children() -> Iterator[None]:
    """Every ``Child`` that is started inside comes from one nursery, if its environment is that of the first."""
    with _Nursery() as nursery, pytest.MonkeyPatch.context() as patch:
        patch.setattr(child, "subprocess", _Subprocess(nursery))
        yield


class _Subprocess:
    """What ``child`` uses of the module ``subprocess``."""

    DEVNULL, STDOUT = subprocess.DEVNULL, subprocess.STDOUT

    def __init__(self, nursery: _Nursery) -> None:
        self.nursery = nursery

    def Popen(self, command: Sequence[str], **options: Any) -> Any:  # noqa: N802 - the name that is replaced
        if not self.nursery.takes(options["env"]):
            return subprocess.Popen(command, **options)
        return self.nursery.fork(options["pass_fds"], options["stdout"])


class _Forked:
    """A child of this process that another one forked."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def wait(self) -> None:
        os.waitpid(self.pid, 0)


class _Nursery:
    """The process that forks; it is started with the environment of the first worker, and ends with this one."""

    def __enter__(self) -> _Nursery:
        self._ours, self._theirs = socket.socketpair()
        self._process: subprocess.Popen[bytes] | None = None
        return self

    def __exit__(self, *_: object) -> None:
        self._ours.close()
        self._theirs.close()
        if self._process is not None:
            self._process.kill()  # its own end takes vLLM seconds
            self._process.wait()

    def takes(self, environment: Mapping[str, str]) -> bool:
        """Whether that is its environment: what modules read of it when they are imported must be the same."""
        wanted = {name: value for name, value in environment.items() if name != _CHANGES}
        if self._process is None:
            self._environment = wanted
            number = self._theirs.fileno()
            command = [sys.executable, "-m", "tests.fakes.nursery", str(number)]
            self._process = subprocess.Popen(command, pass_fds=[number], env=wanted, start_new_session=True)
            self._theirs.close()
        return wanted == self._environment

    def fork(self, pipes: Sequence[int], log: IO[bytes]) -> _Forked:
        """A worker that serves ``pipes``, adopted: it is an orphan, and orphans go to the nearest subreaper."""
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
        try:
            socket.send_fds(self._ours, [b"fork"], [*pipes, log.fileno()])
            return _Forked(int(self._ours.recv(100)))
        finally:
            libc.prctl(_PR_SET_CHILD_SUBREAPER, 0)


def serve(connection: socket.socket) -> int:
    """Fork a worker for each message until there are no more; the exit status, in the workers too."""
    import vllm.v1.engine.llm_engine  # noqa: F401 - it takes seconds

    import kvquant_eval.worker.__main__
    import kvquant_eval.worker.admission
    import kvquant_eval.worker.prepare  # noqa: F401

    while True:
        message, received, *_ = socket.recv_fds(connection, 100, 4)
        if not message:
            return 0
        if (between := os.fork()) == 0:
            between = os.getpid()
            if os.fork():
                os._exit(0)
            while os.getppid() == between:  # not adopted yet
                time.sleep(0.001)
            return _work(connection, received)
        for descriptor in received:
            os.close(descriptor)
        os.waitpid(between, 0)


def _work(connection: socket.socket, received: Sequence[int]) -> int:
    *pipes, log = received
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(log)
    connection.send(str(os.getpid()).encode())
    connection.close()
    from kvquant_eval.worker.__main__ import main  # in the fork only: tests say that it is not imported

    return main([str(pipe) for pipe in pipes])


if __name__ == "__main__":
    sys.exit(serve(socket.socket(fileno=int(sys.argv[1]))))
