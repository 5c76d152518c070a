"""What drops of a score say about its mean: which bounds, and what may never make them better."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from kvquant_eval.core.inference import Estimate, estimate, yes_no
from kvquant_eval.core.stats import allowing_breaks, clustered, proven_below, sign_flip, tango

LEVEL = 0.01


def made(drops: Sequence[float], size: int = 1, largest: float = 0.0, baseline: float = 70.0) -> Estimate:
    """Conversations of ``size`` turns, from ``baseline`` points."""
    return estimate(drops, [baseline] * len(drops), [i // size for i in range(len(drops))], largest)


def binary(signs: Sequence[int], size: int = 1, largest: float = 0.0) -> Estimate:
    """Turns that drop (1), gain (-1) or stay right (0)."""
    baseline = [0.0 if sign < 0 else 100.0 for sign in signs]
    return estimate([100.0 * sign for sign in signs], baseline, [i // size for i in range(len(signs))], largest)


def test_yes_or_no_is_both_arms_at_an_end() -> None:
    assert yes_no([100.0, 0.0, -100.0], [100.0, 0.0, 0.0])
    assert not yes_no([50.0], [100.0])
    assert not yes_no([0.0], [50.0])


def test_binary_scores_are_tangos_and_graded_ones_students() -> None:
    signs = [1] * 6 + [-1] * 2 + [0] * 72
    assert binary(signs).interval == tango(6, 2, 80)
    drops = [2.0, 0.0, 1.0, 3.0, -1.0]
    low, high = stats.ttest_1samp(drops, 0).confidence_interval(0.90)
    assert made(drops).interval.upper == pytest.approx(float(high))
    assert made(drops).interval.lower == pytest.approx(float(low))


def test_turns_of_one_conversation_that_flip_together_count_once() -> None:
    """Every flip four times over: the bounds are those of single turns, but for their estimated spread."""
    signs = [1] * 3 + [-1] + [0] * 26
    together = binary([sign for sign in signs for _ in range(4)], size=4).interval
    assert together.mean == pytest.approx(binary(signs).interval.mean)
    assert together.upper > binary(signs).interval.upper


def test_the_upper_bound_allows_for_breaks_of_the_largest_size() -> None:
    """Whatever the baseline: else one more conversation of a better one would unsettle what the others show."""
    assert made([0.0] * 50, largest=100.0).interval.upper == pytest.approx(100 * (1 - 0.05 ** (1 / 50)), abs=1e-4)
    assert made([0.0] * 50, largest=40.0).interval.upper == pytest.approx(40 * (1 - 0.05 ** (1 / 50)), abs=1e-4)
    assert made([0.0] * 50).interval.upper == 0.0


@pytest.mark.parametrize(("turns", "passes"), [(148, False), (149, True)])
def test_149_turns_without_a_flip_prove_two_points(turns: int, passes: bool) -> None:
    assert binary([0] * turns, largest=100.0).below(2.0) is passes


def test_few_conversations_do_not_hold_however_much_they_lose() -> None:
    """6 conversations, all worse: arms that are the same would show that with a chance of 1/64."""
    assert sign_flip(made([30.0, 31, 32, 33, 34, 35]).seen) == 1 / 64
    assert made([30.0, 31, 32, 33, 34, 35]).beyond(2.0, LEVEL) == 1.0
    assert made([30.0, 31, 32, 33, 34, 35, 36]).beyond(2.0, LEVEL) < 1e-6


def test_further_turns_settle_what_they_say() -> None:
    drops = [4.0, -2.0, 1.0, -1.0, 3.0, -2.0] * 4
    found = made(drops)
    further = found.further_turns(1.0)
    assert further is not None
    times = 1 + further / len(drops)
    assert not found.below(1.0)
    assert made(drops * round(times + 0.5)).below(1.0)
    assert made([1.0, -1.0, 3.0] * 5).further_turns(1.0) is None


DROPS = st.lists(st.floats(-60, 60).map(lambda x: round(x, 3)), min_size=4, max_size=30)
SIGNS = st.lists(st.sampled_from([-1, 0, 0, 0, 1]), min_size=4, max_size=60)
SIZES = st.integers(1, 5)
MARGINS = st.floats(0.5, 30)
LARGEST = st.sampled_from([0.0, 40.0, 100.0])


@given(SIGNS, SIZES)
def test_swapping_the_arms_mirrors_the_bounds_of_binary_scores(signs: list[int], size: int) -> None:
    there, back = binary(signs, size).interval, binary([-sign for sign in signs], size).interval
    assert back.mean == pytest.approx(-there.mean)
    assert back.lower == pytest.approx(-there.upper, abs=1e-4)
    assert back.upper == pytest.approx(-there.lower, abs=1e-4)


@given(DROPS, SIZES)
def test_swapping_the_arms_mirrors_the_bounds_of_graded_scores(drops: list[float], size: int) -> None:
    there, back = made(drops, size).interval, made([-drop for drop in drops], size).interval
    assert back.lower == pytest.approx(-there.upper, abs=1e-6)
    assert back.upper == pytest.approx(-there.lower, abs=1e-6)


@given(DROPS, SIZES, LARGEST, st.randoms(use_true_random=False))
def test_order_is_irrelevant(drops: list[float], size: int, largest: float, order: random.Random) -> None:
    turns = [(drop, 70.0, i // size) for i, drop in enumerate(drops)]
    straight = estimate(*zip(*turns, strict=True), largest).interval
    order.shuffle(turns)
    assert estimate(*zip(*turns, strict=True), largest).interval.upper == pytest.approx(straight.upper, abs=1e-4)


@given(DROPS, SIZES, LARGEST, MARGINS, st.floats(0, 30))
def test_a_wider_margin_never_turns_a_pass(
    drops: list[float], size: int, largest: float, margin: float, wider: float
) -> None:
    found = made(drops, size, largest)
    assert found.below(margin + wider) or not found.below(margin)


@given(SIGNS, LARGEST, MARGINS)
def test_one_more_identical_pair_never_hurts_binary_scores(signs: list[int], largest: float, margin: float) -> None:
    assume(sum(signs) >= 0)
    before, after = binary(signs, largest=largest), binary([*signs, 0], largest=largest)
    assert after.below(margin) or not before.below(margin)
    assert after.beyond(margin, LEVEL) >= before.beyond(margin, LEVEL) - 1e-9


@given(DROPS, SIZES, MARGINS)
def test_one_more_identical_pair_never_hurts_graded_scores(drops: list[float], size: int, margin: float) -> None:
    """In a conversation of its own. The t bound may rise by it where all drops were the same, as their spread does:
    this is of the bound that allows for breaks, and of reasons to hold.
    """
    before = made(drops, size, 100.0)
    turns = [*(i // size for i in range(len(drops))), "more"]
    after = estimate([*drops, 0.0], [70.0] * len(turns), turns, 100.0)
    assert proven_below(after.seen, 70.0, margin) >= proven_below(before.seen, 70.0, margin) - 1e-6
    assert after.beyond(margin, LEVEL) >= LEVEL or before.beyond(margin, LEVEL) < LEVEL


@given(DROPS, st.integers(0, 29), st.floats(0, 10), SIZES, LARGEST, MARGINS)
def test_allowing_for_breaks_grows_with_the_drops(
    drops: list[float], place: int, worse: float, size: int, largest: float, margin: float
) -> None:
    """The t bound need not: one large drop widens it, and a gain that shrinks narrows it by more than it moves it."""
    assume(largest > 0)
    worsened = list(drops)
    worsened[place % len(drops)] += worse
    turns = [i // size for i in range(len(drops))]
    before, after = clustered(drops, turns), clustered(worsened, turns)
    assert allowing_breaks(after, largest) >= allowing_breaks(before, largest) - 1e-4
