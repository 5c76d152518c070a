"""A gate that is killed decides the same when it is started again, and leaves nothing running."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvquant_eval.io.runfolder import RunFolder
from tests.integration.conftest import Run, quiet

pytestmark = pytest.mark.integration

FEW = ("kv=[fp8_e5m2]", "block_requests=16")


def started_by(group_of: int) -> list[str]:
    """Command names of living processes that carry our marker in their environment."""
    marker = f"KVQUANT_TEST_MARK={group_of}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state = (folder / "stat").read_text().rsplit(")", 1)[1].split()[0]
            if marker in (folder / "environ").read_bytes() and state != "Z":
                found.append((folder / "comm").read_text().strip())
        except OSError:
            continue
    return found


def kill_in_mid_arm(arguments: list[str], runs: Path, number: int) -> int:
    """Start a gate, send it ``number`` once its first block is committed, and return its status."""
    mark = os.getpid()
    process = subprocess.Popen(arguments, env={**quiet(), "KVQUANT_TEST_MARK": str(mark)}, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 600
    while not any('"commit"' in path.read_text() for path in runs.glob("*/arms/baseline/replays.jsonl")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.2)
    process.send_signal(number)
    status = process.wait(60)
    deadline = time.monotonic() + 20
    while started_by(mark) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert started_by(mark) == []
    return status


def test_killed_gates_resume_to_the_same_decision(
    command: Callable[..., list[str]], gate: Callable[..., Run], tmp_path: Path
) -> None:
    whole = gate(tmp_path / "whole", *FEW)
    broken = tmp_path / "broken"
    assert kill_in_mid_arm(command(broken, *FEW), broken / "runs", signal.SIGKILL) == -signal.SIGKILL
    resumed = gate(broken, *FEW)
    folder = RunFolder(resumed.folder)
    reused = folder.arm("baseline").identity()["blocks_reused"]
    assert 0 < reused < len(list(folder.arm("baseline").journal.blocks()))
    for name in ("baseline", "fp8_e5m2"):
        assert folder.arm(name).replays() == RunFolder(whole.folder).arm(name).replays()
    assert resumed.status == whole.status
    assert resumed.decision["candidates"] == whole.decision["candidates"]


def test_sigterm_ends_in_143_and_leaves_nothing_running(command: Callable[..., list[str]], tmp_path: Path) -> None:
    assert kill_in_mid_arm(command(tmp_path, *FEW), tmp_path / "runs", signal.SIGTERM) == 143
