"""A disk that is soon full."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(path: Path, size: int) -> Iterator[Path]:
    """``path`` as a file system of its own with room for ``size`` bytes; what is written there is gone afterwards.

    Skips the test where this user may not mount. Whoever may not can run pytest under ``unshare -rm``.
    """
    path.mkdir(parents=True, exist_ok=True)
    _mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", path)
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


@contextmanager
def full(path: Path, left: int) -> Iterator[None]:
    """A disk with at most ``left`` bytes free (to a page), until the context ends."""
    stats = os.statvfs(path)
    ballast = path / "ballast"
    try:
        ballast.write_bytes(bytes(max(0, stats.f_bavail * stats.f_frsize - left)))
        yield
    finally:
        ballast.unlink()


@contextmanager
def read_only(path: Path, at: Path) -> Iterator[Path]:
    """``path`` once more, at ``at``, where it cannot be written; root cannot either. Skips as ``small_disk`` does."""
    at.mkdir(parents=True, exist_ok=True)
    _mount("--bind", path, at)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", at], check=True)
        yield at
    finally:
        subprocess.run(["umount", "--lazy", at], check=True)


def _mount(*arguments: str | Path) -> None:
    if subprocess.run(["mount", *arguments], capture_output=True).returncode:
        pytest.skip("mount is not permitted; run pytest under `unshare -rm`")
