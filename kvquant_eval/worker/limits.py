"""Bounds on work that somebody else's text decides about: a chat template is a program."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

CPU_S = 5.0
MORE_BYTES = 1 << 30
"""What one rendering may take; a turn of a million tokens takes 0.1 s and 20 MB."""


class _TimeIsUp(BaseException):
    """No Exception: Jinja's compiler swallows those while it computes constants."""


@contextmanager
def bounded(cpu_s: float = CPU_S, more_bytes: int = MORE_BYTES) -> Iterator[None]:
    """Bound the CPU time (seconds) and the memory (bytes on top of what is used) of what runs inside; main thread only.

    Raises TimeoutError when the time is up, MemoryError when an allocation would go beyond. CPU time, not time of day:
    the same work passes on a busy machine too.
    """

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise _TimeIsUp

    before = signal.signal(signal.SIGPROF, stop)
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = _data_bytes() + more_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (wanted if soft < 0 else min(soft, wanted), hard))
    signal.setitimer(signal.ITIMER_PROF, cpu_s, 1.0)  # again each second, should the first one be swallowed
    try:
        yield
    except _TimeIsUp:
        raise TimeoutError(f"no end after {cpu_s:g} s of CPU time") from None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
        signal.signal(signal.SIGPROF, before)


def _data_bytes() -> int:
    """What counts against RLIMIT_DATA now (proc(5), VmData)."""
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:"))
