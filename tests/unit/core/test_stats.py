"""Bounds and tests on paired drops, against hand-computed and textbook values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from kvquant_eval.core import stats as core_stats
from kvquant_eval.core.stats import (
    Clusters,
    Interval,
    allowing_breaks,
    beyond,
    clustered,
    holm,
    more_needed,
    proven_below,
    spread,
    tango,
    tango_beyond,
)


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


def test_sign_flip_of_sums_on_no_grid_is_that_of_all_signs() -> None:
    """A grid for sums that lie on none: what was seen still counts among what chance does."""
    sums = np.array([1.37, 2.21, -0.45, 3.08, 0.92, -1.73, 0.61])
    signs = np.array(list(itertools.product((-1, 1), repeat=7)))
    exact = float((signs @ np.abs(sums) >= sums.sum() - 1e-9).mean())
    assert core_stats.sign_flip(Clusters(sums, np.ones(7))) == pytest.approx(exact)


def test_sign_flip_of_hundreds_of_uneven_sums_is_near_the_normal() -> None:
    sums = np.random.default_rng(2).normal(0.15, 1, 300)
    normal = scipy_stats.norm.sf(sums.sum() / math.sqrt((sums**2).sum()))
    assert core_stats.sign_flip(Clusters(sums, np.ones(300))) == pytest.approx(float(normal), rel=0.05)


def test_sign_flip_knows_no_unit() -> None:
    """100 points for each turn, or 1: the same, exactly."""
    sums = np.array([3.0, 2, 2, -1, 1, 4, -2, 1, 1, 5] * 30)
    once = core_stats.sign_flip(Clusters(sums, np.ones(300)))
    assert core_stats.sign_flip(Clusters(100 * sums, np.ones(300))) == pytest.approx(once, rel=1e-9)


def test_tangos_published_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """12 against 2 of 50, two-sided 95%: 0.0611 to 0.3447."""
    monkeypatch.setattr(core_stats, "CONFIDENCE", 0.975)
    interval = tango(12, 2, 50)
    assert (interval.lower, interval.upper) == (pytest.approx(6.11, abs=0.005), pytest.approx(34.47, abs=0.005))


def test_tangos_bounds_at_the_edge(monkeypatch: pytest.MonkeyPatch) -> None:
    """53 of 54 dropped: Tango gives 0.8499 to 0.9967."""
    monkeypatch.setattr(core_stats, "CONFIDENCE", 0.975)
    interval = tango(53, 0, 54)
    assert interval.lower == pytest.approx(84.99, abs=0.005)
    assert interval.upper == pytest.approx(99.67, abs=0.005)


@pytest.mark.parametrize("at", [-0.0664, 0.0664])
def test_tangos_statistic_without_flips(at: float) -> None:
    """No flip among 54: Tango's two-sided 95% bounds are where the statistic is 1.96."""
    assert abs(core_stats._tango_z(0, 0, 54, at)) == pytest.approx(1.96, abs=0.002)


@pytest.mark.parametrize(("n", "upper"), [(1, 95.0), (10, 25.887), (149, 1.9905)])
def test_no_flips_bound_by_the_binomial(n: int, upper: float) -> None:
    """1 - 0.05 ** (1 / n): 149 turns are the first to prove less than 2 points."""
    interval = tango(0, 0, n)
    assert (interval.mean, interval.upper, interval.lower) == (0, pytest.approx(upper, abs=1e-3), -interval.upper)


def test_tangos_test_and_bounds_are_one() -> None:
    interval = tango(9, 3, 80)
    assert tango_beyond(9, 3, 80, interval.lower) == pytest.approx(0.05, abs=1e-6)
    assert tango_beyond(9, 3, 80, interval.upper) == pytest.approx(0.95, abs=1e-6)


def test_tango_at_nothing_is_mcnemars() -> None:
    """At a difference of 0 the statistic is (b - c) / sqrt(b + c)."""
    assert tango_beyond(12, 2, 50, 0.0) == pytest.approx(scipy_stats.norm.sf(10 / math.sqrt(14)))


def test_a_spread_of_two_is_half_the_turns() -> None:
    assert tango(10, 4, 100, spread=2.0) == tango(5, 2, 50)


def test_few_degrees_of_freedom_widen_tangos_bounds_as_students() -> None:
    """Where the spread comes from 4 conversations: t(0.95, 3) = 2.3534 in the place of 1.6449."""
    interval = tango(10, 4, 48, spread=1.5, degrees=3)
    assert core_stats._tango_z(10 / 1.5, 4 / 1.5, 32, interval.upper / 100) == pytest.approx(-2.3534, abs=1e-3)
    assert tango_beyond(10, 4, 48, interval.lower, spread=1.5, degrees=3) == pytest.approx(0.05, abs=1e-6)


def alone(sums: Sequence[float]) -> Clusters:
    return Clusters(np.asarray(sums, dtype=float), np.ones(len(sums)))


@pytest.mark.parametrize(("broken", "n"), [(0, 20), (1, 20), (3, 40), (10, 200)])
def test_breaks_of_everything_are_bounded_by_clopper_and_pearson(broken: int, n: int) -> None:
    upper = 100 * float(scipy_stats.beta.ppf(0.95, broken + 1, n - broken))
    assert allowing_breaks(alone([100] * broken + [0] * (n - broken)), 100.0) == pytest.approx(upper, abs=1e-3)


@pytest.mark.parametrize(("size", "largest"), [(1, 100.0), (7, 65.0), (12, 40.0)])
def test_what_did_not_move_is_bounded_by_one_more_break(size: int, largest: float) -> None:
    seen = Clusters(np.zeros(50), np.full(50, float(size)))
    assert allowing_breaks(seen, largest) == pytest.approx(largest * (1 - 0.05 ** (1 / 50)), abs=1e-4)


def test_the_confidence_is_that_of_random_weights() -> None:
    """One more conversation, as long as the longest, among conversations of uneven sizes."""
    rng = np.random.default_rng(3)
    sizes = rng.integers(1, 13, 25).astype(float)
    sums = rng.normal(0.5, 2, 25) * sizes
    weights = rng.exponential(size=(200_000, 26))
    means = (weights @ np.append(sums, sizes.max() * 60)) / (weights @ np.append(sizes, sizes.max()))
    for margin in (2.0, 5.0, 10.0):
        expected = float((means <= margin).mean())
        assert proven_below(Clusters(sums, sizes), 60.0, margin) == pytest.approx(expected, abs=0.005)


def test_long_conversations_that_break_are_allowed_for() -> None:
    """60 of one turn and 40 of 12, of which one in 45 loses all: a mean of 100 * 12 * 0.4 / 45 / 5.4, 1.98 points. 100
    conversations see no such break with a chance of 0.41, and must not prove less than 2 points.
    """
    seen = Clusters(np.zeros(100), np.array([1.0] * 60 + [12.0] * 40))
    assert pytest.approx(0.41, abs=0.005) == (1 - 0.4 / 45) ** 100
    assert allowing_breaks(seen, 100.0) > 5.0
    assert 100 * (1 - 0.05 ** (1 / 100)) < 3.0


def test_a_break_worse_than_the_largest_counts_as_it_is() -> None:
    assert allowing_breaks(alone([0] * 20 + [80]), 40.0) == allowing_breaks(alone([0] * 20 + [80]), 80.0)


def test_beyond_is_scipys_one_sided_t_test() -> None:
    drops = [2.1, 3.4, 1.2, 4.0, 2.8, 3.1]
    for margin in (0.0, 2.0, 5.0):
        expected = scipy_stats.ttest_1samp(drops, margin, alternative="greater").pvalue
        assert beyond(alone(drops), margin) == pytest.approx(float(expected))


def test_beyond_without_spread_or_conversations() -> None:
    assert beyond(alone([3.0] * 5), 2.0) == 0.0
    assert beyond(alone([2.0] * 5), 2.0) == 1.0
    assert beyond(alone([50.0]), 2.0) == 1.0


def test_holm_by_hand() -> None:
    """Sorted 0.005, 0.01, 0.03, 0.04 times 4, 3, 2, 1, never falling: 0.02, 0.03, 0.06, 0.06."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.parametrize(("drops", "gains"), [(8, 0), (12, 3), (30, 15), (200, 150)])
def test_sign_flip_of_single_turns_is_the_binomial(drops: int, gains: int) -> None:
    exact = scipy_stats.binomtest(drops, drops + gains, alternative="greater").pvalue
    assert sign_flip([1] * drops + [-1] * gains, range(drops + gains)) == pytest.approx(float(exact))


def test_spread_of_equal_turns_is_their_number() -> None:
    """Copies within a conversation: 4 turns count as one. Independent turns of their own: 1."""
    values = [1.0, 5, 3, 2, 8, 1]
    copied = [v for v in values for _ in range(4)]
    found = spread(clustered(copied, [i // 4 for i in range(24)]), copied)
    assert found == pytest.approx(4 * (6 / 5) / (24 / 23))
    assert spread(clustered(values, range(6)), values) == pytest.approx(1.0)
    assert spread(clustered([0.0, 0.0], "ab"), [0.0, 0.0]) == 1.0


def test_more_needed_by_hand() -> None:
    """The error falls with the root of the conversations: half of it takes four times as many."""
    seen = alone([1.0, -1.0] * 50)
    error = core_stats.standard_error(seen)
    times = more_needed(seen, lambda more: core_stats.standard_error(more) < error / 2, 100)
    assert times == pytest.approx(4, rel=0.02)
    assert more_needed(seen, lambda more: core_stats.standard_error(more) < error / 20, 100) is None
