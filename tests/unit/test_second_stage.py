"""Sampled replies: flags are tested again on fresh epochs, in every arm alike; a disaster is not run to its end."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvquant_eval.core.records import Sampling
from kvquant_eval.core.settings import Settings
from kvquant_eval.io import report
from kvquant_eval.io.runfolder import RunFolder
from kvquant_eval.pipeline import GateRun, gate, regate
from tests.fakes.engine import FORGOTTEN
from tests.fakes.gate import policy, settings, treatments, write_golden

SAMPLED = Sampling(temperature=0.7, epochs=4)
EPOCHS = 56


@pytest.fixture(scope="module", autouse=True)
def _decisions_only() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "write", lambda *_: None)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("sampled")
    write_golden(made / "golden")
    return made


def made(folder: Path, *names: str, **changes: Any) -> Settings:
    return replace(settings(folder, treatments(*names), **changes), sampling=SAMPLED)


@pytest.fixture(scope="module")
def run(folder: Path) -> GateRun:
    return gate(made(folder, "good", "forgets_two_turns", policy=policy(require=("good",))))


def candidate(run: GateRun, name: str) -> dict[str, Any]:
    return next(each for each in run.document["candidates"] if each["name"] == name)


def test_turns_that_were_lost_are_confirmed_and_hold(run: GateRun) -> None:
    result = run.judgement.results["forgets_two_turns"]
    confirmed = {turn_id for (turn_id, _), each in result.confirmations.items() if each.confirmed}
    assert confirmed == {*FORGOTTEN}
    assert result.decision == "HOLD"
    for turn_id in FORGOTTEN:
        assert any(turn_id in reason and "fresh epochs" in reason for reason in result.reasons)


def test_flags_that_chance_raised_are_not_confirmed(run: GateRun) -> None:
    """One reply in ten is wrong anyway: the first stage flags some turns in every arm."""
    for name in ("good", "repeat", "placebo"):
        result = run.judgement.results[name]
        assert not any(each.confirmed for each in result.confirmations.values())
        assert result.decision == "PROMOTE"
    assert run.judgement.results["good"].confirmations
    assert run.judgement.results["placebo"].confirmations


def test_the_second_stage_has_epochs_of_its_own(run: GateRun) -> None:
    """Nothing of the first stage is used again: other epochs, other seeds, and only flagged turns."""
    first = {(r.turn_id, r.epoch) for r in run.folder.arm("good").replays()}
    fresh = [(r.turn_id, r.epoch) for r in run.folder.confirm.arm("good").replays()]
    assert {epoch for _, epoch in fresh} == set(range(4, 4 + EPOCHS))
    assert not first & set(fresh)
    flagged = {turn for result in run.judgement.results.values() for turn, _ in result.confirmations}
    assert {turn for turn, _ in fresh} == flagged
    assert all(turn.startswith("math_chain") for turn in flagged)
    assert sorted(fresh) == sorted((r.turn_id, r.epoch) for r in run.folder.confirm.arm("baseline").replays())


def test_a_stored_run_decides_the_same_again(run: GateRun, folder: Path) -> None:
    before = stored(run)
    again = regate(run.folder, made(folder, "good", "forgets_two_turns", policy=policy(require=("good",))))
    assert stored(again) == before


def test_a_second_stage_that_is_not_there_is_no_evidence(folder: Path, run: GateRun, tmp_path: Path) -> None:
    copied = tmp_path / "runs" / run.folder.run_id
    shutil.copytree(run.folder.path, copied)
    (copied / "confirm" / "arms" / "good" / "replays.jsonl").unlink()
    again = regate(RunFolder(copied), made(folder, "good", "forgets_two_turns", policy=policy(require=("good",))))
    assert again.judgement.results["good"].decision == "INCONCLUSIVE"
    assert any("no second test yet" in reason for reason in again.judgement.results["good"].reasons)


def test_an_engine_that_dies_in_the_second_stage_is_no_evidence(folder: Path) -> None:
    """It gives up at the first block without a forced reply, which is one of the second stage."""
    run = gate(made(folder, "dies_when_asked_again"))
    assert run.document["decision"] == "INVALID"
    assert "second stage, dies_when_asked_again: " in run.document["reasons"][0]


def test_greedy_replies_have_no_second_stage(folder: Path) -> None:
    greedy = gate(replace(made(folder, "good"), sampling=Sampling()))
    assert not greedy.folder.confirm.path.exists()
    assert greedy.judgement.results["good"].confirmations == {}


def test_the_next_gate_uses_fresh_epochs_again(folder: Path, run: GateRun) -> None:
    again = gate(made(folder, "good", "forgets_two_turns", policy=policy(require=("good",))))
    assert again.folder.path != run.folder.path
    for arm in ("baseline", "good"):
        assert again.folder.confirm.arm(arm).identity()["blocks_reused"] > 0
    assert {**stored(again), "power": {}} == {**stored(run), "power": {}}  # the noise is known by now


def test_a_disaster_is_held_after_its_first_blocks(folder: Path) -> None:
    early = policy(early_stop=True)
    run = gate(settings(folder, treatments("broken", "good"), policy=early))
    lost, kept = run.judgement.arms["broken"], run.judgement.arms["good"]
    assert lost.unfinished
    assert not kept.unfinished
    assert run.judgement.results["broken"].decision == "HOLD"
    assert run.judgement.results["broken"].reasons[-1].startswith("stopped early: ")
    assert "is beyond 6" in run.judgement.results["broken"].reasons[-1]
    assert run.judgement.results["good"].decision == "PROMOTE"
    assert run.document["exit_code"] == 3


def test_without_early_stop_every_block_is_run(folder: Path) -> None:
    run = gate(settings(folder, treatments("broken")))
    assert not run.judgement.arms["broken"].unfinished


def test_what_is_only_bad_is_run_to_its_end(folder: Path) -> None:
    """Eight points in one class, three margins and more, but three turns that drop prove nothing so soon."""
    run = gate(settings(folder, treatments("drops_three_turns"), policy=policy(early_stop=True)))
    assert not run.judgement.arms["drops_three_turns"].unfinished


def stored(run: GateRun) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((run.folder.path / "decision.json").read_text())
    for key in ("run_id", "created_at", "attempts", "arms"):
        data.pop(key)
    return data
