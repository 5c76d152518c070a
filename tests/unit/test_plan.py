"""What is foreseen before a gate, and the noise that its controls leave for the next."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvquant_eval.core.codec import DataError
from kvquant_eval.core.records import Measure
from kvquant_eval.core.scorers.text import Match
from kvquant_eval.core.settings import Settings
from kvquant_eval.io import report
from kvquant_eval.io.runfolder import RunFolder
from kvquant_eval.pipeline import GateRun, gate, regate, rehearse
from tests.fakes.gate import policy, settings, treatments, write_golden


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("plan")
    write_golden(made / "golden")
    return made


@pytest.fixture(scope="module")
def run(folder: Path) -> GateRun:
    """A gate over nothing that was run before."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "write", lambda *_: None)
        return gate(settings(folder, treatments("good")))


def stored(run: GateRun) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((run.folder.path / "noise.json").read_text())
    return data


def test_the_noise_of_the_controls_is_kept(run: GateRun) -> None:
    data = stored(run)
    assert data["model"]["id"] == "org/fake-model"
    assert data["model"]["kv"]["placebo"]["requested"] == "placebo"
    assert set(data["controls"]) == {"repeat", "placebo"}
    quiet, moved = (data["controls"][name]["math_chain"]["gl_reply"] for name in ("repeat", "placebo"))
    assert (quiet["turn_sd"], quiet["disagreement"], quiet["n_turns"], quiet["n_conversations"]) == (0.0, 0.0, 20, 10)
    assert moved["turn_sd"] > 0
    drops = {d.turn_id: d.drop for d in run.judgement.deltas["placebo"] if d.scorer == "gl_reply"}
    assert [drops[turn] for turn in moved["turn_ids"]] == moved["drops"]


def test_the_decision_says_what_was_foreseen(run: GateRun) -> None:
    seen = run.document["power"]
    assert (seen["chance"], seen["noise"], seen["allowed"], seen["run"]) == (1.0, "assumed", False, "")
    assert {name: each["n_conversations"] for name, each in seen["classes"].items()} == {"math_chain": 10, "faq": 10}


def test_the_next_gate_plans_with_what_was_measured(folder: Path, run: GateRun) -> None:
    found = rehearse(settings(folder, treatments("other"))).power
    assert found.noise == run.folder.run_id
    assert found.chance == 1.0


def other_scores(folder: Path) -> Settings:
    made = settings(folder, treatments("good"))
    scorers = {**made.scorers, "faq": {**made.scorers["faq"], "match": Match(Measure.FREE_RUNNING)}}
    return replace(made, scorers=scorers)


@pytest.mark.parametrize(
    "changed",
    [
        lambda folder: settings(folder, treatments("good"), args={"max_num_seqs": 7}),
        lambda folder: settings(folder, treatments("good"), preparer="tests.fakes.engine:prepare_newer"),
        lambda folder: settings(folder, treatments("good"), block_requests=20),
        lambda folder: settings(folder, treatments("good"), reuse=False),
        other_scores,
    ],
    ids=["engine", "version", "plan", "resume=never", "scorer"],
)
def test_the_noise_of_anything_else_is_not_taken(folder: Path, run: GateRun, changed: Any) -> None:
    assert rehearse(changed(folder)).power.noise == ""


def test_limits_of_the_policy_change_no_noise(folder: Path, run: GateRun) -> None:
    assert rehearse(settings(folder, treatments("good"), policy=policy(min_turns=20))).power.noise != ""


@pytest.mark.parametrize("damage", ["{", "[]", '{"schema_version": 1}', "NaN", None])
def test_a_damaged_file_is_named_and_passed_over(
    folder: Path, run: GateRun, damage: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    path = run.folder.path / "noise.json"
    whole = path.read_text()
    data = json.loads(whole)
    data["controls"]["placebo"]["faq"]["gl_reply"]["drops"][0] = "much"
    path.write_text(damage or json.dumps(data))
    try:
        with caplog.at_level(logging.WARNING):
            assert rehearse(settings(folder, treatments("good"))).power.source == "assumed"
        assert ("it is not used" in caplog.text) is (damage != '{"schema_version": 1}')
    finally:
        path.write_text(whole)


def test_a_decision_taken_again_says_the_same(folder: Path, run: GateRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the noise is measured by now."""
    monkeypatch.setattr(report, "write", lambda *_: None)
    again = regate(RunFolder(run.folder.path), settings(folder, treatments("good")))
    assert again.document["power"] == run.document["power"]
    assert {**again.document, "created_at": ""} == {**run.document, "created_at": ""}


def test_a_policy_that_could_hardly_promote_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_golden(tmp_path / "golden")
    strict = policy(largest_break=100.0)
    with pytest.raises(
        DataError, match="10 conversations; at least 149 are needed before a break in an unseen one can be "
    ):
        gate(settings(tmp_path, treatments("good"), policy=strict))
    assert not (tmp_path / "runs").exists()
    monkeypatch.setattr(report, "write", lambda *_: None)
    allowed = gate(settings(tmp_path, treatments("good"), policy=replace(strict, allow_underpowered=True)))
    assert allowed.document["decision"] == "INCONCLUSIVE"
    seen = allowed.document["power"]
    assert (seen["chance"], seen["noise"], seen["allowed"]) == (0.0, "assumed", True)
    assert "at least 149 are needed" in seen["advice"][0]
