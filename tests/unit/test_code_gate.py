"""Whole gates on the fake engine whose replies are code, executed in the isolation that there is."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvquant_eval.core.codec import DataError
from kvquant_eval.core.policy import ScorePolicy, ScoreRole
from kvquant_eval.core.records import Json
from kvquant_eval.core.scorers.code import Code
from kvquant_eval.core.scorers.likelihood import ReplyLikelihood
from kvquant_eval.core.settings import CodeSettings, Settings
from kvquant_eval.io import report
from kvquant_eval.io.golden import MANIFEST, pin
from kvquant_eval.io.runfolder import RunFolder
from kvquant_eval.io.sandbox import Isolation, Sandbox
from kvquant_eval.pipeline import GateRun, gate, regate, rehearse
from kvquant_eval.rescore import rescore
from tests.fakes.gate import settings, treatments, write_golden
from tests.fakes.kills import comparable

TURNS = 20
WEAK = Isolation(bubblewrap="", weakness="bubblewrap is not installed")


@pytest.fixture(autouse=True)
def _decisions_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "write", lambda *_: None)


def turn(number: int) -> dict[str, Any]:
    answer = 1000 + 7 * number
    return {
        "turn_id": f"coding-{number:02}/0",
        "workload": "coding",
        "conversation_id": f"coding-{number:02}",
        "turn_index": 0,
        "messages": [{"role": "user", "content": f"Write f, which returns BASE plus {answer - 1000}."}],
        "reference": {"role": "assistant", "content": f"```python\ndef f():\n    return {answer}\n```"},
        "decisive": [{"text": str(answer)}],
        "expected": {"setup": "BASE = 1000", "tests": ["f()", f"assert f() == {answer}"]},
        "max_tokens": 60,
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    golden = write_golden(tmp_path / "golden")
    (golden / "coding").mkdir()
    lines = (json.dumps(turn(number)) for number in range(TURNS))
    (golden / "coding" / "turns.jsonl").write_text("".join(f"{line}\n" for line in lines))
    (golden / MANIFEST).write_text(json.dumps(pin(golden, "fake", "v2", {})))
    return tmp_path


def coding(folder: Path, role: ScoreRole = ScoreRole.BOUND, allowed: bool = True) -> Settings:
    made = settings(folder, treatments("good"), code=CodeSettings(allow_execution=allowed))
    rules = {
        "gl_reply": ScorePolicy(role=ScoreRole.GATE, margin=2.0),
        "code": ScorePolicy(role=role, margin=30.0),
    }
    policy = replace(made.policy, scores={**made.policy.scores, "coding": rules})
    scorers = {**made.scorers, "coding": {"gl_reply": ReplyLikelihood(), "code": Code()}}
    return replace(made, policy=policy, scorers=scorers)


def scores(run: GateRun) -> Any:
    (found,) = run.document["candidates"]
    return found["classes"]["coding"]["scores"]


def never(self: Sandbox, content: Mapping[str, Json]) -> dict[str, Any]:
    raise AssertionError("executed")


def test_code_is_executed_scored_and_never_executed_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = gate(coding(folder))
    said = {s.explanation for s in run.judgement.scores["baseline"] if s.scorer == "code"}
    assert "2 of 2 tests pass" in said
    assert any(
        line.startswith("1 of 2 tests pass; assert f() == 1") for line in said
    )  # a digit that the engine got wrong
    assert scores(run)["code"]["n_turns"] == TURNS
    assert 50 < scores(run)["code"]["baseline_mean"] < 100
    answers = run.folder.answers.path.read_bytes()
    assert len(answers.splitlines()) < 2 * TURNS, "equal replies of two arms are one question"
    monkeypatch.setattr(Sandbox, "__call__", never)
    before = json.loads((run.folder.path / "decision.json").read_text())
    again = regate(RunFolder(run.folder.path), coding(folder))
    assert comparable(again.document) == comparable(before)
    assert run.folder.answers.path.read_bytes() == answers


def test_a_gate_that_was_broken_off_while_it_executed_asks_only_the_rest(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, asked = Sandbox.__call__, []

    def breaks(self: Sandbox, content: Mapping[str, Json]) -> dict[str, Any]:
        asked.extend([content["code"]] if content["code"] else [])  # a probe has none
        if len(asked) == 8:
            raise KeyboardInterrupt
        return whole(self, content)

    monkeypatch.setattr(Sandbox, "__call__", breaks)
    monkeypatch.setattr(Sandbox, "at_once", 1)
    with pytest.raises(KeyboardInterrupt) as caught:
        gate(coding(folder))
    assert "the same command goes on with" in "".join(caught.value.__notes__)
    (path,) = (folder / "runs").iterdir()
    torn = path / "answers.jsonl"
    torn.write_bytes(torn.read_bytes()[:-20])  # and the last answer was cut
    run = gate(coding(folder))
    assert run.folder.path == path
    assert len(set(asked)) == len(asked) - 2, "the one that broke off and the one that was cut"
    monkeypatch.setattr(Sandbox, "__call__", whole)
    undisturbed = gate(replace(coding(folder), runs_dir=str(folder / "other"), reuse=False))
    assert comparable(run.document) == comparable(undisturbed.document)


def test_a_sandbox_that_fails_is_no_evidence_and_asked_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Sandbox, "__call__", lambda *_: {"error": "the sandbox did not start: no memory"})
        run = gate(coding(folder, ScoreRole.GATE))
    assert run.document["decision"] == "INCONCLUSIVE"
    assert "infra_error" in " ".join(run.document["reasons"])
    points = {s.points for s in run.judgement.scores["baseline"] if s.scorer == "code"}
    assert points == {None}, "unscored, not 0"
    (run.folder.path / "tracking.json").unlink()  # as if it had been broken off then
    again = gate(coding(folder, ScoreRole.GATE))
    assert again.folder.path == run.folder.path
    assert scores(again)["code"]["n_turns"] == TURNS


@pytest.fixture
def weak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvquant_eval.evidence.find_isolation", lambda: WEAK)
    monkeypatch.setattr(Sandbox, "__call__", never)


@pytest.mark.usefixtures("weak")
def test_without_strong_isolation_a_bound_is_left_out_and_the_decision_says_so(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with caplog.at_level(logging.WARNING):
        run = gate(coding(folder, allowed=False))
    (message,) = caplog.messages
    assert message.startswith("coding.code: left out: no strong isolation for code that is executed (bubblewrap is not")
    assert message.endswith("; install bubblewrap, or set scorer.code.allow_execution=true, which README.md explains")
    assert set(scores(run)) == {"gl_reply"}
    (found,) = run.document["candidates"]
    noted = {
        "where": "coding.code",
        "what": "left out: no strong isolation for code that is executed (bubblewrap is not installed)",
        "invalid": False,
        "unfinished": False,
        "holds": False,
        "p": None,
    }
    assert noted in found["findings"]
    assert not run.folder.answers.path.exists()
    monkeypatch.setattr("kvquant_eval.evidence.find_isolation", lambda: pytest.fail("regate probes nothing"))
    again = regate(RunFolder(run.folder.path), coding(folder, allowed=False))
    assert comparable(again.document) == comparable(run.document)
    assert not again.document["post_hoc"]


def test_what_was_left_out_can_be_scored_afterwards(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where code may be executed by then; where not, the run's own decision is what comes out."""
    with monkeypatch.context() as patch:
        patch.setattr("kvquant_eval.evidence.find_isolation", lambda: WEAK)
        run = gate(coding(folder, allowed=False))
        assert rescore(run.folder, coding(folder, allowed=False))[1]
        assert not (run.folder.path / "post_hoc").exists()
        with pytest.raises(
            DataError, match=r"^workloads\.coding\.scores\.code: strong isolation .* install bubblewrap"
        ):
            rescore(run.folder, coding(folder, ScoreRole.GATE, allowed=False))
    before = (run.folder.path / "decision.json").read_bytes()
    again, same = rescore(run.folder, coding(folder))
    assert not same
    assert again.document["post_hoc"]
    assert scores(again)["code"]["n_turns"] == TURNS
    assert 50 < scores(again)["code"]["baseline_mean"] < 100
    assert (run.folder.path / "decision.json").read_bytes() == before
    assert again.folder.answers.read()
    assert not run.folder.answers.path.exists()


@pytest.mark.usefixtures("weak")
@pytest.mark.parametrize("verb", [gate, rehearse])
def test_without_strong_isolation_a_gating_score_is_bad_input_before_anything_starts(folder: Path, verb: Any) -> None:
    with pytest.raises(DataError, match=r"^workloads\.coding\.scores\.code: strong isolation .* install bubblewrap"):
        verb(coding(folder, ScoreRole.GATE, allowed=False))
    assert not (folder / "runs").exists()


@pytest.mark.usefixtures("weak")
def test_what_a_run_folder_says_was_left_out_is_checked(folder: Path) -> None:
    run = gate(coding(folder, allowed=False))
    config = run.folder.config()
    for wrong in (["coding.code"], "coding.code", {"coding.code": 3}):
        run.folder.write_config({**config, "pinned": {**config["pinned"], "left_out": wrong}})
        with pytest.raises(DataError, match=r"pinned\.left_out"):
            regate(RunFolder(run.folder.path), coding(folder, allowed=False))
    run.folder.write_config({**config, "pinned": {**config["pinned"], "left_out": {}}})
    again = regate(RunFolder(run.folder.path), coding(folder, allowed=False))
    assert again.document["post_hoc"], "another policy than the one that was pinned"
