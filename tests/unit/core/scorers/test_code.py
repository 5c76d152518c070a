"""Code replies: what is asked, and the points for the answer. Nothing is run here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvquant_eval.core.records import Outcome, TurnScore
from kvquant_eval.core.score import Ask, Score, questions, score_replays
from kvquant_eval.core.scorers.code import Code
from tests.fakes.records import golden_turn, rendered_turn, reply

TESTS = ["assert f(1) == 1", "x = 2\nassert f(x) == 2", "f(3)"]
TURN = golden_turn(expected={"setup": "RATE = 2\n", "tests": TESTS})
PLACES = {"t": (TURN, rendered_turn())}
SCORERS = {"math_chain": {"code": Code()}}
GOOD = reply("Sure:\n```python\ndef f(x): return x\n```")


def ask(text: str) -> Ask:
    found = Code()(reply(text), TURN, rendered_turn())
    assert isinstance(found, Ask)
    return found


def points(answer: Any) -> Score:
    return ask(GOOD.text).score(answer)


def test_the_sandbox_gets_setup_code_and_tests_and_no_arm() -> None:
    question = ask(GOOD.text).question
    assert question.kind == Code.asks == "python"
    assert question.content == {"setup": "RATE = 2\n", "code": "def f(x): return x\n", "tests": TESTS}
    assert question.key == ask(f"{GOOD.text} More words.").question.key


@pytest.mark.parametrize(
    ("errors", "share", "said"),
    [
        (["", "", ""], 100, "3 of 3 tests pass"),
        (["", "AssertionError", "TypeError: no"], 100 / 3, "1 of 3 tests pass; assert f(x) == 2: AssertionError"),
        (["NameError: f"] * 3, 0, "0 of 3 tests pass; assert f(1) == 1: NameError: f"),
    ],
)
def test_points_are_the_share_of_the_tests_that_pass(errors: list[str], share: float, said: str) -> None:
    found = points({"errors": errors, "stopped": ""})
    assert found.points == pytest.approx(share)
    assert found.explanation == said
    assert found.parseable


def test_a_program_that_stops_before_earns_nothing() -> None:
    stopped = "took more than 10 s of CPU time"
    assert points({"errors": ["", ""], "stopped": stopped}) == Score(0.0, f"stopped: {stopped}")


def test_an_explanation_is_one_short_line_that_can_be_shown() -> None:
    found = points({"errors": ["\x1b[2J\n" * 10**5, "", ""], "stopped": ""})
    assert len(found.explanation) < 2000
    assert found.explanation.isprintable()


@pytest.mark.parametrize("text", ["def f(:", "```python\nI would return x.\n```", "\ud800", "(" * 10**5])
def test_what_does_not_parse_is_not_asked_about(text: str) -> None:
    found = Code()(reply(text), TURN, rendered_turn())
    assert isinstance(found, Score)
    assert (found.points, found.parseable) == (0.0, False)


@pytest.mark.parametrize("expected", [{}, {"tests": []}, {"setup": "x = 1"}])
def test_a_turn_without_tests_is_not_scored(expected: dict[str, Any]) -> None:
    assert Code()(GOOD, golden_turn(expected=expected), rendered_turn()) is None


def scored(answers: Any) -> TurnScore:
    (found,) = score_replays([GOOD], PLACES, SCORERS, answers)
    return found


def test_an_answer_makes_a_score_and_none_makes_an_infra_error() -> None:
    (question,) = questions([GOOD, reply(" ", outcome=Outcome.EMPTY)], PLACES, SCORERS)
    assert scored({question.key: {"errors": ["", "", ""], "stopped": ""}}).points == 100
    for answers, why in (
        ({}, "python: not asked in this run"),
        ({question.key: {"error": "the sandbox did not start: no"}}, "python: the sandbox did not start: no"),
        ({question.key: {"errors": [""], "stopped": ""}}, "python: an answer of another shape"),
        ({question.key: {"errors": 3, "stopped": ""}}, "python: an answer of another shape"),
        ({question.key: {}}, "python: an answer of another shape"),
        ({question.key: [1]}, "python: an answer of another shape"),
        ({question.key: {"errors": [1, 2, 3], "stopped": ""}}, "python: an answer of another shape"),
        ({question.key: {"errors": [], "stopped": 7}}, "python: an answer of another shape"),
    ):
        found = scored(answers)
        assert (found.points, found.outcome, found.explanation) == (None, Outcome.INFRA_ERROR, why)


def test_code_is_not_run(tmp_path: Path) -> None:
    ask(f"open({str(tmp_path / 'ran')!r}, 'w')")
    assert not (tmp_path / "ran").exists()
