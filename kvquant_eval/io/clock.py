"""Waiting for others, and giving up in time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Clock:
    """Counts ``seconds`` down from its making; ``name`` is the setting that they come from."""

    def __init__(self, name: str, seconds: float) -> None:
        self._message = f"{name} = {seconds:g} is over"
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds, at least 0."""
        return max(0.0, self._end - time.monotonic())

    def check(self) -> None:
        """Raise TimeoutError when the time is up."""
        if time.monotonic() > self._end:
            raise TimeoutError(self._message)


class Timed:
    """A client of something slow; what is called after the time is up raises TimeoutError instead."""

    def __init__(self, client: Any, clock: Clock) -> None:
        self._client, self._clock = client, clock

    def __getattr__(self, name: str) -> Any:
        self._clock.check()
        return getattr(self._client, name)


@contextlib.contextmanager
def locked(path: Path, clock: Clock) -> Iterator[None]:
    """Hold a file or folder; what another process holds is waited for. Raises TimeoutError when the time is up."""
    handle = os.open(path, os.O_RDONLY)
    try:
        while not _taken(handle):
            clock.check()
            time.sleep(0.1)
        yield
    finally:
        os.close(handle)


def _taken(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
