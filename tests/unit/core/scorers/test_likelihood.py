"""Golden likelihood in points."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvquant_eval.core.records import Measure, Span
from kvquant_eval.core.scorers.likelihood import ReplyLikelihood, SpanLikelihood, golden_likelihood
from tests.fakes.records import forced, golden_turn, rendered_turn

HALF = math.log(0.5)


@pytest.mark.parametrize(
    ("logprobs", "points"),
    [
        ([0.0, 0.0], 100.0),
        ([HALF, HALF], 50.0),
        ([0.0, 2 * HALF], 50.0),
        ([-math.log(5)] * 3, 20.0),  # a perplexity of 5
        ([-math.inf, 0.0], 0.0),
    ],
)
def test_points_by_hand(logprobs: list[float], points: float) -> None:
    assert golden_likelihood(logprobs) == pytest.approx(points)


@given(st.lists(st.floats(-1e6, 0), min_size=1))
def test_points_are_0_to_100(logprobs: list[float]) -> None:
    assert 0 <= golden_likelihood(logprobs) <= 100


def test_the_reply_is_scored_whole() -> None:
    score = ReplyLikelihood()(forced([HALF, HALF, 0.0, 0.0]), golden_turn(), rendered_turn())
    assert score.points == pytest.approx(100 * math.sqrt(0.5))
    assert ReplyLikelihood().measure is Measure.FORCED


def test_the_worst_span_counts() -> None:
    turn = golden_turn(decisive=(Span(text="3 + 2"), Span(text="= 5")))
    score = SpanLikelihood()(forced([0, 0, HALF, HALF]), turn, rendered_turn(spans=((0, 2), (1, 4))))
    assert score is not None
    assert score.points == pytest.approx(100 * 0.25 ** (1 / 3))
    assert score.explanation == "worst span '= 5'"


def test_a_turn_without_spans_has_no_span_score() -> None:
    assert SpanLikelihood()(forced([0.0]), golden_turn(), rendered_turn()) is None


@pytest.mark.parametrize("logprobs", [[], [0.0]])
def test_a_reply_shorter_than_its_spans_is_no_crash(logprobs: list[float]) -> None:
    """An engine that returned too few log probabilities: whatever it is worth, it must not end the gate."""
    turn = golden_turn(decisive=(Span(text="= 5"),))
    score = SpanLikelihood()(forced(logprobs), turn, rendered_turn(spans=((1, 3),)))
    assert score is None or score.points == 0
