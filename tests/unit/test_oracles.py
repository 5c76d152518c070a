"""Who is asked what, and what is refused before an engine starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvquant_eval.core.codec import DataError
from kvquant_eval.core.records import Outcome
from kvquant_eval.core.score import Scorer, questions, score_replays
from kvquant_eval.core.scorers.judge import Judge
from kvquant_eval.core.scorers.math_answer import MathAnswer
from kvquant_eval.core.settings import JudgeSettings, Settings
from kvquant_eval.evidence import gather, oracles, refuse_unready
from kvquant_eval.io import symbolic
from kvquant_eval.io.answers import AnswerFile
from tests.fakes.gate import settings, treatments
from tests.fakes.records import golden_turn, rendered_turn, reply


def asking(folder: Path, *scorers: Scorer, **changes: Any) -> Settings:
    made = settings(folder, treatments("good"), **changes)
    return replace(made, scorers={**made.scorers, "faq": {f"s{n}": scorer for n, scorer in enumerate(scorers)}})


def test_nobody_is_set_up_for_scorers_that_ask_nobody(tmp_path: Path) -> None:
    assert oracles(asking(tmp_path, MathAnswer())) == {}
    refuse_unready(asking(tmp_path, MathAnswer()))


def test_who_answers_what(tmp_path: Path) -> None:
    ready = JudgeSettings(url="http://h/v1", model="m")
    made = asking(tmp_path, Judge(model="m"), MathAnswer(symbolic=True), judge=ready)
    refuse_unready(made)
    assert set(oracles(made)) == {"judge", "math"}


def test_symbolic_comparison_needs_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symbolic, "is_installed", lambda: False)
    refuse_unready(asking(tmp_path, MathAnswer()))
    with pytest.raises(DataError) as caught:
        refuse_unready(asking(tmp_path, MathAnswer(symbolic=True)))
    assert str(caught.value) == (
        "workloads.faq.scores.s0.scorer.symbolic: the package math-verify, got none; "
        "pip install 'kvquant_eval[math]', or set it to false"
    )


def test_a_formula_is_scored_by_the_answer_to_its_question(tmp_path: Path) -> None:
    turn = golden_turn(workload="faq", expected={"answers": ["2x+3"]})
    places = {"t": (turn, rendered_turn(workload="faq"))}
    made = asking(tmp_path, MathAnswer(symbolic=True))
    replays = [reply(rf"\boxed{{{text}}}", epoch=n) for n, text in enumerate(("3 + 2x", "3 + 3x", "x+x+3", "3 + 2x"))]
    answers = gather(questions(replays, places, made.scorers), oracles(made), AnswerFile(tmp_path / "answers.jsonl"))
    assert len(answers) == 3
    scores = score_replays(replays, places, made.scorers, answers)
    assert [score.points for score in scores] == [100, 0, 100, 100]
    unanswered = score_replays(replays, places, made.scorers, {})
    assert {(score.points, score.outcome) for score in unanswered} == {(None, Outcome.INFRA_ERROR)}
