"""Scores of two arms to drops a turn."""

from __future__ import annotations

from kvquant_eval.core.compare import compare, identical
from kvquant_eval.core.records import Measure, Outcome, TurnScore
from tests.fakes.records import forced, rendered_turn, reply

TURNS = [rendered_turn("a", conversation_id="c1", turn_index=3), rendered_turn("b", workload="faq")]


def score(
    turn: str, points: float | None, outcome: Outcome = Outcome.OK, scorer: str = "s", epoch: int = 0
) -> TurnScore:
    return TurnScore(turn_id=turn, scorer=scorer, epoch=epoch, outcome=outcome, points=points)


def test_a_drop_is_baseline_minus_candidate() -> None:
    (drop,) = compare(TURNS, [score("a", 70.0)], [score("a", 64.0)])
    assert (drop.baseline, drop.candidate, drop.drop) == (70.0, 64.0, 6.0)
    assert (drop.workload, drop.conversation_id, drop.turn_index, drop.missing) == ("math_chain", "c1", 3, "")


def test_epochs_are_averaged_before_they_are_compared() -> None:
    left = [score("a", points, epoch=i) for i, points in enumerate([100.0, 0.0, 50.0])]
    right = [score("a", points, epoch=i) for i, points in enumerate([0.0, 0.0, 30.0])]
    (drop,) = compare(TURNS, left, right)
    assert (drop.baseline, drop.candidate, drop.drop) == (50.0, 10.0, 40.0)


def test_scorers_stay_apart_and_turns_are_sorted() -> None:
    left = [score("b", 1.0), score("a", 2.0, scorer="z"), score("a", 3.0)]
    found = compare(TURNS, left, left)
    assert [(d.turn_id, d.scorer, d.drop) for d in found] == [("a", "s", 0.0), ("a", "z", 0.0), ("b", "s", 0.0)]


def test_an_unscored_side_is_missing_not_zero() -> None:
    (drop,) = compare(TURNS, [score("a", 70.0)], [score("a", None, Outcome.INFRA_ERROR)])
    assert (drop.drop, drop.candidate, drop.missing) == (None, None, "candidate: infra_error")


def test_a_turn_that_did_not_run_is_missing() -> None:
    (one,) = compare(TURNS, [score("a", 70.0)], [])
    (two,) = compare(TURNS, [], [score("a", 70.0)])
    assert (one.drop, one.missing) == (None, "candidate: not run")
    assert (two.drop, two.missing) == (None, "baseline: not run")


def test_one_lost_epoch_loses_the_pair() -> None:
    left = [score("a", 70.0, epoch=i) for i in range(2)]
    (half,) = compare(TURNS, left, [score("a", 70.0), score("a", None, Outcome.INFRA_ERROR, epoch=1)])
    (fewer,) = compare(TURNS, left, [score("a", 70.0)])
    assert (half.drop, half.missing) == (None, "candidate: infra_error")
    assert (fewer.drop, fewer.missing) == (None, "2 epochs against 1")


def test_both_sides_unscored_say_both() -> None:
    lost = [score("a", None, Outcome.INFRA_ERROR)]
    (drop,) = compare(TURNS, lost, lost)
    assert drop.missing == "baseline: infra_error; candidate: infra_error"


def test_zero_points_are_a_score() -> None:
    (drop,) = compare(TURNS, [score("a", 0.0)], [score("a", 0.0, Outcome.EMPTY)])
    assert (drop.drop, drop.missing) == (0.0, "")


def test_identical_needs_every_token_and_every_logprob() -> None:
    base = [forced([-0.1, -0.2]), reply("x", token_ids=(1, 2), logprobs=(-0.5, -0.5))]
    assert identical(base, list(reversed(base)))
    assert not identical(base, base[:1])
    assert not identical(base, [forced([-0.1, -0.2000000001]), base[1]])
    assert not identical(base, [base[0], reply("x", token_ids=(1, 3), logprobs=(-0.5, -0.5))])
    assert not identical(base, [base[0], reply("x", token_ids=(1, 2), logprobs=(-0.5, -0.5), epoch=1)])
    assert not identical(base, [base[0], reply("x", token_ids=(1, 2), logprobs=(-0.5, -0.5), measure=Measure.FORCED)])


def test_an_expected_pair_that_no_arm_has_is_missing() -> None:
    scores = [score("a", 70.0)]
    one, two = compare(TURNS, scores, scores, [("a", "s"), ("b", "s")])
    assert (one.drop, one.missing) == (0.0, "")
    assert (two.turn_id, two.workload, two.drop, two.missing) == ("b", "faq", None, "no arm scored it")
