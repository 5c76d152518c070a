"""Bounds and tests on paired drops, against hand-computed and textbook values."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from kvquant_eval.core import stats as core_stats
from kvquant_eval.core.stats import Interval, clustered


def clustered_t(drops: Sequence[float], conversations: Sequence[Hashable]) -> Interval:
    return core_stats.clustered_t(clustered(drops, conversations))


def sign_flip(signs: Sequence[float], conversations: Sequence[Hashable]) -> float:
    return core_stats.sign_flip(clustered(signs, conversations))


DROPS = st.lists(st.floats(-100, 100), min_size=2, max_size=40)


def test_two_clusters_by_hand() -> None:
    """Drops 1, 2 | 3, 6: mean 3; cluster sums of residuals -3 and 3; SE = sqrt(2 / 1 * 18) / 4 = 1.5; t(0.95, 1) =
    6.3138.
    """
    interval = clustered_t([1, 2, 3, 6], ["a", "a", "b", "b"])
    assert interval.mean == 3
    assert interval.upper == pytest.approx(3 + 6.313751515 * 1.5)
    assert interval.lower == pytest.approx(3 - 6.313751515 * 1.5)


def test_unequal_clusters_by_hand() -> None:
    """Drops 0 | 3 | 6, 3: mean 3; residual sums -3, 0, 3; SE = sqrt(3 / 2 * 18) / 4; t(0.95, 2) = 2.91999."""
    interval = clustered_t([0, 3, 6, 3], ["a", "b", "c", "c"])
    assert interval.mean == 3
    assert interval.upper - interval.mean == pytest.approx(2.91998558 * math.sqrt(27) / 4)


@given(DROPS)
def test_one_turn_a_cluster_is_the_plain_t_interval(drops: list[float]) -> None:
    interval = clustered_t(drops, range(len(drops)))
    n = len(drops)
    error = float(np.std(drops, ddof=1)) / math.sqrt(n)
    reach = float(scipy_stats.t.ppf(0.95, n - 1)) * error
    assert interval.mean == pytest.approx(float(np.mean(drops)), abs=1e-9)
    assert interval.upper == pytest.approx(interval.mean + reach, abs=1e-6)
    assert interval.lower == pytest.approx(interval.mean - reach, abs=1e-6)


def test_agrees_with_scipys_t_interval() -> None:
    """Scipy's two-sided 90% interval has the one-sided 95% bounds."""
    drops = [0.2, -1.4, 3.3, 0.9, 2.2, -0.3, 1.1]
    low, high = scipy_stats.ttest_1samp(drops, 0).confidence_interval(0.90)
    interval = clustered_t(drops, range(7))
    assert (interval.lower, interval.upper) == (pytest.approx(low), pytest.approx(high))


def test_a_conversation_told_twice_is_no_more_evidence() -> None:
    """Copies of a turn within its conversation leave the bounds as they are; as conversations they tighten them."""
    once = clustered_t([1, 5, 3, 2], list("abcd"))
    twice = clustered_t([1, 5, 3, 2] * 2, list("abcd") * 2)
    assert twice.upper == pytest.approx(once.upper)
    assert clustered_t([1, 5, 3, 2] * 2, range(8)).upper < once.upper


@given(DROPS, st.integers(1, 5), st.randoms())
def test_order_of_turns_does_not_matter(drops: list[float], size: int, random: np.random.Generator) -> None:
    pairs = [(drop, i // size) for i, drop in enumerate(drops)]
    straight = clustered_t(*zip(*pairs, strict=True))
    random.shuffle(pairs)  # type: ignore[arg-type]
    shuffled = clustered_t(*zip(*pairs, strict=True))
    assert shuffled.mean == pytest.approx(straight.mean, abs=1e-9)
    if math.isfinite(straight.upper):
        assert shuffled.upper == pytest.approx(straight.upper, abs=1e-6)


def test_one_conversation_bounds_nothing() -> None:
    assert clustered_t([1.0, 2.0, 3.0], ["a"] * 3) == Interval(2.0, -math.inf, math.inf)


def test_no_drops_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one drop"):
        clustered_t([], [])


def test_every_drop_needs_its_cluster() -> None:
    with pytest.raises(ValueError, match="a cluster for each"):
        clustered_t([1.0, 2.0], ["a"])


def test_coverage_is_what_it_says() -> None:
    """The one-sided 95% upper bound misses the true mean in about 5% of simulated golden sets with dependent turns."""
    rng = np.random.default_rng(1)
    missed = 0
    for _ in range(1000):
        shared = rng.normal(0, 1, 20).repeat(4)
        drops = 1.0 + shared + rng.normal(0, 1, 80)
        missed += clustered_t(list(drops), list(np.arange(80) // 4)).upper < 1.0
    assert 30 <= missed <= 72  # 50 expected; 3.2 standard deviations


@pytest.mark.parametrize(
    ("sums", "p"),
    [
        ([1, 1], 1 / 4),
        ([1, 1, 1], 1 / 8),
        ([1] * 7, 1 / 128),
        ([1, 1, 1, -1], 5 / 16),  # 2 or more of -4, -2 (4 ways), 0 (6), 2 (4), 4
        ([2, 1], 1 / 4),
        ([2, 1, -1], 3 / 8),  # 2 or more of the eight signed sums: 4, 2, 2
        ([1] * 14, 1 / 2**14),
        ([1], 1 / 2),
        ([0, 0], 1.0),
        ([-1, -1, -1], 1.0),
        ([1, -1], 1.0),
    ],
)
def test_sign_flip_is_exact(sums: list[int], p: float) -> None:
    """``sums`` are net signs of one conversation each."""
    signs = [sign for total in sums for sign in [1 if total > 0 else -1] * abs(total) or [0]]
    clusters = [c for c, total in enumerate(sums) for _ in range(max(1, abs(total)))]
    assert sign_flip(signs, clusters) == pytest.approx(p)


def test_ten_drops_of_one_conversation_are_one_observation() -> None:
    assert sign_flip([1] * 10, ["a"] * 10) == 0.5


def test_sign_flip_ignores_what_did_not_move() -> None:
    assert sign_flip([1] * 8 + [0] * 500, range(508)) == pytest.approx(1 / 256)


def test_sign_flip_of_many_conversations_is_near_the_binomial_and_repeats_itself() -> None:
    signs = [1] * 30 + [-1] * 15
    exact = scipy_stats.binomtest(30, 45, alternative="greater").pvalue
    assert sign_flip(signs, range(45)) == pytest.approx(exact, abs=0.005)
    assert sign_flip(signs, range(45)) == sign_flip(signs, range(45))
