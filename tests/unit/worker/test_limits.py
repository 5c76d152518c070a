"""Work that somebody else's text decides about ends, in time and in memory."""

from __future__ import annotations

import resource
import signal
import time
from contextlib import suppress

import pytest

from kvquant_eval.worker.limits import bounded


def state() -> tuple[object, ...]:
    return (
        resource.getrlimit(resource.RLIMIT_DATA),
        signal.getsignal(signal.SIGPROF),
        signal.getitimer(signal.ITIMER_PROF),
    )


def forever(swallowed: int = 0) -> None:
    """Work without an end, which swallows errors of any kind so many times."""
    for _ in range(swallowed):
        with suppress(BaseException):
            forever()
    while True:
        pass


@pytest.mark.parametrize("swallowed", [0, 1])
def test_work_without_an_end_is_stopped(swallowed: int) -> None:
    before = state()
    with pytest.raises(TimeoutError, match=r"^no end after 0\.05 s of CPU time$"), bounded(cpu_s=0.05):
        forever(swallowed)
    assert state() == before


def test_one_long_computation_is_stopped() -> None:
    with pytest.raises(TimeoutError), bounded(cpu_s=0.05):
        9**9**9


def test_waiting_is_no_work() -> None:
    """A machine that is busy with other things must not fail a template."""
    with bounded(cpu_s=0.05):
        time.sleep(0.2)


def test_memory_is_bounded_and_given_back() -> None:
    before = state()
    with pytest.raises(MemoryError), bounded(more_bytes=1 << 26):
        bytearray(1 << 30)
    assert state() == before
    assert len(bytearray(1 << 27)) == 1 << 27


def test_what_stays_inside_passes() -> None:
    with bounded(cpu_s=5, more_bytes=1 << 28):
        assert len(bytearray(1 << 26)) == 1 << 26
