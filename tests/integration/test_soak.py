"""Real gates killed with -9 at random moments decide as an undisturbed one, and leave nothing running."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.soak import soak
from tests.fakes.fp8 import E5M2

pytestmark = pytest.mark.integration

KILLS = 3
FEW = (f"kv=[{E5M2}]", "block_requests=8", "workload=[faq,math_chain]")


def test_killed_gates_decide_the_same(command: Callable[..., list[str]], tmp_path: Path) -> None:
    trials = list(soak(lambda folder: command(folder, *FEW), tmp_path, KILLS, left=1))
    assert [trial.wrong for trial in trials] == [()] * KILLS
    assert sum(len(trial.kills) for trial in trials) >= KILLS - 1  # four were meant; a gate may be faster than one
