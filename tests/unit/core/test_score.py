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


@dataclass(frozen=True)
class Reads:
    """Explains with the text that it was given."""

    measure: Measure = Measure.GENERATED

    def __call__(self, replay: Replay, turn: GoldenTurn, rendered: RenderedTurn) -> Score | None:
        return Score(100.0, replay.text)


def test_a_scorer_reads_what_was_said_and_not_what_was_thought() -> None:
    given = reply("<think>9</think>5")
    (found,) = scored(given, Reads())
    assert (found.points, found.outcome, found.explanation) == (100.0, Outcome.OK, "5")
    assert given.text == "<think>9</think>5"


@pytest.mark.parametrize(
    ("outcome", "kept"),
    [
        (Outcome.OK, Outcome.TRUNCATED),
        (Outcome.TRUNCATED, Outcome.TRUNCATED),
        (Outcome.DEGENERATE, Outcome.DEGENERATE),  # a loop is worse
    ],
)
def test_a_reply_cut_inside_a_think_block_earns_nothing(outcome: Outcome, kept: Outcome) -> None:
    (found,) = scored(reply("<think>the answer is 5", outcome=outcome), Reads())
    assert (found.points, found.outcome, found.explanation) == (0.0, kept, "cut inside a think block")
    (unread,) = scored(reply("<think>", outcome=outcome), Always(Score(0.0, "no JSON", parseable=False)))
    assert (unread.outcome, unread.explanation) == (kept, "cut inside a think block")


def test_a_reply_cut_inside_a_think_block_is_no_score_where_there_is_nothing_to_score() -> None:
    assert scored(reply("<think>x"), Always(None)) == ()


def test_a_reply_that_only_thinks_is_empty() -> None:
    (found,) = scored(reply("<think>5</think>\n"), Reads())
    assert (found.points, found.outcome, found.explanation) == (0.0, Outcome.EMPTY, "empty reply")


def test_tags_of_a_reply_that_is_not_scored_or_forced_are_nothing() -> None:
    (found,) = scored(reply("<think>", outcome=Outcome.INFRA_ERROR, error="engine died"), Reads())
    assert (found.points, found.outcome) == (None, Outcome.INFRA_ERROR)
    (likely,) = scored(forced([-0.1], text="<think>"), Always(Score(7.0), Measure.FORCED))
    assert likely.points == 7.0
