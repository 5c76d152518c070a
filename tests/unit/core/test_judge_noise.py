"""A judge that differs from itself settles nothing below what it differs by."""

from __future__ import annotations

from typing import Any

import pytest

from kvquant_eval.core.charges import Grounds
from kvquant_eval.core.gate import decide
from kvquant_eval.core.judge_noise import JudgeNoise, drowns, measure, sample, second
from kvquant_eval.core.policy import Rule, ScorePolicy, ScoreRole
from kvquant_eval.core.records import Verdict
from kvquant_eval.core.score import Ask, Question, Score
from tests.fakes.records import deltas, grounds, headroom, one_class

PLACE = ("hard", "s")
POLICY = {"hard": {"s": ScorePolicy(role=ScoreRole.GATE, margin=2.0, flag_over=5.0)}}


def points(answer: Any) -> Score:
    return Score(answer["points"])


def asks(count: int, fickle: bool = True) -> list[Any]:
    return [(PLACE, Ask(Question("judge", {"model": "m", "n": n}), points, fickle)) for n in range(count)]


def answered(differences: list[float | None]) -> tuple[list[Any], dict[str, Any]]:
    """One ask a difference, of which the second answer is so much off; None: there is no second answer."""
    made = asks(len(differences))
    answers: dict[str, Any] = {}
    for (_, ask), difference in zip(made, differences, strict=True):
        answers[ask.question.key] = {"points": 50.0}
        again = {"error": "down"} if difference is None else {"points": 50.0 + difference}
        answers[second(ask.question).key] = again
    return made, answers


@pytest.mark.parametrize(("count", "chosen"), [(0, 0), (1, 1), (20, 20), (100, 20), (200, 20), (201, 21), (1000, 100)])
def test_a_tenth_is_asked_twice_and_at_least_twenty(count: int, chosen: int) -> None:
    found = sample(asks(count)).get(PLACE, [])
    assert len(found) == chosen
    assert found == sample(reversed(asks(count))).get(PLACE, [])


def test_equal_questions_are_one_and_what_is_sure_is_not_asked_twice() -> None:
    assert len(sample([*asks(5), *asks(5)])[PLACE]) == 5
    assert sample(asks(5, fickle=False)) == {}


def test_the_second_question_is_another_one() -> None:
    question = Question("judge", {"model": "m"})
    assert second(question).key != question.key
    assert second(question).content == {"model": "m", "again": 1}


def test_noise_is_the_mean_difference_and_the_share_over_the_flag() -> None:
    made, answers = answered([0.0, 4.0, -8.0, 5.0, None])
    assert measure(made, answers, POLICY) == {PLACE: JudgeNoise(who="m", n=4, mean_difference=4.25, share_over=0.25)}


def test_without_second_answers_nothing_is_known() -> None:
    made, answers = answered([None, None])
    assert measure(made, answers, POLICY) == {PLACE: JudgeNoise(who="m", n=0, mean_difference=None, share_over=None)}
    assert measure(made, {}, POLICY)[PLACE].n == 0
    assert measure([], {}, POLICY) == {}


def noise(mean: float | None) -> JudgeNoise:
    return JudgeNoise(who="m", n=0 if mean is None else 20, mean_difference=mean, share_over=mean and 0.5)


def test_what_drowns() -> None:
    assert drowns(None, 2.0) is None
    assert drowns(noise(2.0), 2.0) is None
    assert "differs from itself by 2.01 points" in str(drowns(noise(2.01), 2.0))
    assert "answered no question twice" in str(drowns(noise(None), 100.0))


@pytest.mark.parametrize("drop", [0.0, 50.0])
@pytest.mark.parametrize("rule", list(Rule))
@pytest.mark.parametrize("mean", [3.0, None])
def test_a_gate_score_that_is_drowned_decides_neither_way(drop: float, rule: Rule, mean: float | None) -> None:
    found = deltas([drop] * 60)
    result = decide(found, one_class(rule=rule), grounds(found, judges={PLACE: noise(mean)}))
    assert result.classes["hard"].verdict is Verdict.INCONCLUSIVE
    assert result.decision == "INCONCLUSIVE"
    assert "the score settles nothing" in result.reasons[0]


def test_a_quiet_judge_changes_nothing() -> None:
    found = deltas([0.1, -0.1] * 30)
    policy, room = one_class(), headroom(found)
    assert decide(found, policy, Grounds(headroom=room, judges={PLACE: noise(0.5)})) == decide(
        found, policy, Grounds(headroom=room)
    )


def test_a_bound_score_that_is_drowned_holds_nothing_and_says_so() -> None:
    gating, bound = ScorePolicy(role=ScoreRole.GATE, margin=2.0), ScorePolicy(role=ScoreRole.BOUND, margin=2.0)
    policy = one_class(scores={"hard": {"s": bound, "sure": gating}})
    found = [*deltas([50.0] * 60), *deltas([0.0] * 60, scorer="sure")]
    assert decide(found, policy, grounds(found)).decision == "HOLD"
    result = decide(found, policy, grounds(found, judges={PLACE: noise(9.0)}))
    assert result.decision == "PROMOTE"
    assert any("m differs from itself by 9.00 points" in reason for reason in result.reasons)
