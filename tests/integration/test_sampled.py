"""Sampled replies on real vLLM: epochs with seeds of their own, flags run again, and the same decision every time."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from kvquant_eval.io.runfolder import RunFolder
from tests.integration.conftest import Run, quiet

pytestmark = pytest.mark.integration
EPOCHS, AGAIN = 2, 4


@pytest.fixture(scope="module")
def sampled(gate: Callable[..., Run], shared_folder: Path) -> Run:
    """One class, two epochs, and a format that a model of this size feels."""
    return gate(
        shared_folder, "kv=[nvfp4_ref]", "workload=[math_chain]", "sampling.temperature=0.7",
        f"sampling.epochs={EPOCHS}", f"gate.confirm_epochs={AGAIN}",
    )  # fmt: skip


def test_flags_of_the_first_stage_are_run_again_and_nothing_else(sampled: Run) -> None:
    decision, run = sampled.decision, RunFolder(sampled.folder)
    tested = {
        (flag["turn_id"], flag["score"])
        for arm in decision["candidates"]
        for flag in arm["flagged_turns"]
        if flag["confirmed"] is not None
    }
    assert tested, sampled.output
    fresh = run.confirm.arm("nvfp4_ref").replays()
    assert {turn_id for turn_id, _ in tested} <= {replay.turn_id for replay in fresh}
    assert {replay.epoch for replay in fresh} == set(range(EPOCHS, EPOCHS + AGAIN))
    assert [r.turn_id for r in fresh] == [r.turn_id for r in run.confirm.arm("baseline").replays()]


def test_epochs_differ_and_the_repeat_samples_the_same(sampled: Run) -> None:
    """One seed a turn and epoch, the same in every arm: a control that computes the same bits samples the same."""
    run = RunFolder(sampled.folder)
    texts = {name: {(r.turn_id, r.epoch): r.text for r in run.arm(name).replays() if not r.top} for name in ARMS}
    baseline = {key: text for key, text in texts["baseline"].items() if text}
    assert {key: texts["repeat"][key] for key in baseline} == baseline
    turns = {turn for turn, _ in baseline}
    assert any(baseline.get((turn, 0)) != baseline.get((turn, 1)) for turn in turns)


ARMS = ("baseline", "repeat")


def test_the_decision_can_be_recomputed(sampled: Run, command: Callable[..., list[str]]) -> None:
    """Without an engine, from the journals of both stages."""
    before = sampled.decision
    program = command(sampled.folder)[:3]
    done = subprocess.run([*program, "regate", str(sampled.folder)], capture_output=True, text=True, env=quiet())
    assert done.returncode == sampled.status, done.stdout + done.stderr
    assert {**sampled.decision, "created_at": before["created_at"]} == before
