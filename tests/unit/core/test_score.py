"""Replays to points: which scorer reads which replay, and what an outcome does to it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from kvquant_eval.core.records import GoldenTurn, Measure, Outcome, RenderedTurn, Replay, TurnScore
from kvquant_eval.core.score import Score, Scorer, score_replays
from tests.fakes.records import forced, golden_turn, rendered_turn, reply


@dataclass(frozen=True)
class Always:
    """Says the same of every replay; None: nothing to score."""

    score: Score | None
    measure: Measure = Measure.GENERATED

    def __call__(self, replay: Replay, turn: GoldenTurn, rendered: RenderedTurn) -> Score | None:
        return self.score


def scored(replay: Replay, scorer: Scorer) -> tuple[TurnScore, ...]:
    return score_replays([replay], {"t": (golden_turn(), rendered_turn())}, {"math_chain": {"s": scorer}})


def test_a_score_keeps_its_place_and_explanation() -> None:
    (found,) = scored(reply("x", epoch=2), Always(Score(40.0, "two of five")))
    assert found == TurnScore(
        turn_id="t", scorer="s", epoch=2, outcome=Outcome.OK, points=40.0, explanation="two of five"
    )


def test_a_scorer_reads_only_its_measure() -> None:
    assert scored(forced([-0.1]), Always(Score(1.0))) == ()
    assert len(scored(forced([-0.1]), Always(Score(1.0), Measure.FORCED))) == 1


def test_nothing_to_score_is_no_score() -> None:
    assert scored(reply("x"), Always(None)) == ()


@pytest.mark.parametrize("outcome", [Outcome.OK, Outcome.TRUNCATED, Outcome.DEGENERATE])
def test_what_the_model_caused_scores_what_its_text_earns(outcome: Outcome) -> None:
    (found,) = scored(reply("x", outcome=outcome), Always(Score(40.0)))
    assert (found.points, found.outcome) == (40.0, outcome)


def test_an_empty_reply_earns_nothing_whatever_the_scorer() -> None:
    (found,) = scored(reply(" ", outcome=Outcome.EMPTY), Always(Score(100.0)))
    assert (found.points, found.explanation) == (0.0, "empty reply")


@pytest.mark.parametrize("outcome", [Outcome.SKIPPED, Outcome.INFRA_ERROR])
def test_an_unscored_outcome_has_no_points_and_says_why(outcome: Outcome) -> None:
    (found,) = scored(reply("x", outcome=outcome, error="engine died"), Always(Score(100.0)))
    assert (found.points, found.outcome, found.explanation) == (None, outcome, "engine died")


def test_what_cannot_be_read_is_unparseable_and_stays_paired() -> None:
    (found,) = scored(reply("x"), Always(Score(0.0, "bad JSON", parseable=False)))
    assert (found.points, found.outcome) == (0.0, Outcome.UNPARSEABLE)
