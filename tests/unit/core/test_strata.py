"""Where the drops lie: strata of at least ten turns, the worst of them, trends by hand and against least squares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy import stats

from kvquant_eval.core.records import RenderedTurn
from kvquant_eval.core.strata import LEAST, Axis, Position, Stratum, Trend, groups, positions, strata, trends, worst_of


def place(index: int = 0, context: int = 1, reply: int = 1, first: int = 0) -> Position:
    return {Axis.TURN_INDEX: index, Axis.CONTEXT: context, Axis.REPLY: reply, Axis.FIRST_BLOCK: first}


def stratum(**changes: Any) -> Stratum:
    fields: dict[str, Any] = {
        "axis": Axis.TURN_INDEX, "low": 0, "high": 0, "n_turns": 10, "n_conversations": 10, "mean_drop": 0.0,
        "ci_lower": -1.0, "ci_upper": 1.0, "beyond_p": 1.0,
    }  # fmt: skip
    return Stratum(**{**fields, **changes})


def measured(axis: Axis, indices: Sequence[int], ends: tuple[int, int]) -> Stratum:
    return stratum(axis=axis, low=ends[0], high=ends[1], n_turns=len(indices))


def by_turn_index(
    values: Sequence[int], drops: Sequence[float], conversations: Sequence[int] = ()
) -> tuple[Trend, ...]:
    return trends(drops, conversations or range(len(drops)), [place(index=value) for value in values])


def test_turn_indices_are_grouped_by_octaves_of_the_turns_number() -> None:
    """The first turn; the second and third; the fourth to seventh; the eighth to fifteenth."""
    values = [0] * 10 + [1, 2] * 5 + [3, 4, 5, 6] * 3 + [7, 14] * 5
    assert [sorted({values[i] for i in part}) for part in groups(values, Axis.TURN_INDEX)] == [
        [0], [1, 2], [3, 4, 5, 6], [7, 14],
    ]  # fmt: skip


def test_lengths_are_grouped_by_octaves_of_tokens() -> None:
    values = [127] * 10 + [128, 255] * 5 + [256] * 10
    assert [sorted({values[i] for i in part}) for part in groups(values, Axis.CONTEXT)] == [[127], [128, 255], [256]]


def test_small_octaves_join_the_next_and_a_small_last_one_the_one_before() -> None:
    """12 of the first turn; 5, 4 and 12 of the next octaves are one: neither 5 nor 5 + 4 are ten."""
    values = [0] * 12 + [1] * 5 + [3] * 4 + [7] * 12
    assert [len(part) for part in groups(values, Axis.TURN_INDEX)] == [12, 21]
    assert [len(part) for part in groups(values + [15] * 9, Axis.TURN_INDEX)] == [12, 30]
    assert groups([0] * 3 + [1] * 3, Axis.TURN_INDEX) == [[0, 1, 2, 3, 4, 5]]
    assert groups([], Axis.TURN_INDEX) == []


@pytest.mark.parametrize("seed", range(5))
def test_every_turn_is_in_one_group_whatever_the_order(seed: int) -> None:
    values = [int(v) for v in np.random.default_rng(seed).integers(0, 40, 60)]
    found = groups(values, Axis.TURN_INDEX)
    assert sorted(i for part in found for i in part) == list(range(60))
    assert min(map(len, found)) >= LEAST


def test_an_axis_without_two_strata_has_none() -> None:
    everywhere = [place(context=100 + i % 2, first=i % 2) for i in range(20)]
    found = strata(everywhere, measured)
    assert [(part.axis, part.low, part.high, part.n_turns) for part in found] == [
        (Axis.FIRST_BLOCK, 0, 0, 10),
        (Axis.FIRST_BLOCK, 1, 1, 10),
    ]
    assert strata([], measured) == ()


@pytest.mark.parametrize(
    ("axis", "ends", "name"),
    [
        (Axis.TURN_INDEX, (7, 14), "turn index 7 to 14"),
        (Axis.TURN_INDEX, (0, 0), "turn index 0"),
        (Axis.CONTEXT, (1024, 2047), "contexts of 1,024 to 2,047 tokens"),
        (Axis.REPLY, (8, 15), "replies of 8 to 15 tokens"),
        (Axis.FIRST_BLOCK, (1, 1), "the first block"),
        (Axis.FIRST_BLOCK, (0, 0), "blocks but the first"),
    ],
)
def test_a_stratum_has_a_name(axis: Axis, ends: tuple[int, int], name: str) -> None:
    assert stratum(axis=axis, low=ends[0], high=ends[1]).name == name


def test_the_worst_stratum_is_the_one_sure_to_lose_the_most() -> None:
    """A mean drop of 9 over few turns may be chance; one of 5 that is at least 4 is not."""
    wild, sure = stratum(mean_drop=9.0, ci_lower=-3.0), stratum(mean_drop=5.0, ci_lower=4.0)
    unbounded = stratum(mean_drop=50.0, ci_lower=None)
    assert worst_of([unbounded, wild, sure]) is sure
    assert worst_of([unbounded, wild]) is wild
    assert worst_of([sure, stratum(mean_drop=6.0, ci_lower=4.0)]) == stratum(mean_drop=6.0, ci_lower=4.0)
    assert worst_of([]) is None


def test_a_trend_by_hand() -> None:
    """Drops 0, 3, 3 at 0, 1, 2: slope 3 / 2; residuals -0.5, 1, -0.5, times x - 1: 0.5, 0, -0.5; error = sqrt(3 / 2 *
    0.5) / 2; t = 2 sqrt(3) with 2 degrees of freedom: p = (1 - t / sqrt(2 + t * t)) / 2.
    """
    (trend,) = by_turn_index([0, 1, 2], [0, 3, 3])
    t = 2 * 3**0.5
    assert (trend.axis, trend.slope) == (Axis.TURN_INDEX, 1.5)
    assert trend.p == pytest.approx((1 - t / (2 + t * t) ** 0.5) / 2)


def test_a_trend_of_conversations_by_hand() -> None:
    """Two turns each, one before and one after the mean, drops (0, 2), (0, 4), (0, 6): slope 12 / 6; residuals times
    place sum to -2, 0 and 2 by conversation: error = sqrt(3 / 2 * 8) / 6.
    """
    (trend,) = by_turn_index([0, 2] * 3, [0, 2, 0, 4, 0, 6], [0, 0, 1, 1, 2, 2])
    assert trend.slope == pytest.approx(2.0)
    assert trend.p == pytest.approx(float(stats.t.sf(2.0 / (12**0.5 / 6), 2)))


def test_a_trend_along_the_context_is_by_doublings() -> None:
    """0, 1, 2, 3 points at 128, 256, 512, 1024 tokens, and noise that has no slope."""
    places = [place(context=128 * 2**i) for i in (0, 1, 2, 3) for _ in range(2)]
    drops = [i + e for i in (0, 1, 2, 3) for e in (0.5, -0.5)]
    (trend,) = trends(drops, range(8), places)
    assert (trend.axis, trend.slope) == (Axis.CONTEXT, pytest.approx(1.0))
    assert trend.p < 0.001


@pytest.mark.parametrize("slope", [0.0, 0.02, 0.1])
def test_of_single_turns_it_is_nearly_the_t_test_of_least_squares(slope: float) -> None:
    """The same slope; errors that allow for unequal spread differ a little where the spread is equal."""
    rng = np.random.default_rng(1)
    values = [int(v) for v in rng.integers(0, 12, 2000)]
    drops = [slope * v + e for v, e in zip(values, rng.normal(0, 1, 2000), strict=True)]
    (trend,) = by_turn_index(values, drops)
    plain = stats.linregress(values, drops, alternative="greater")
    assert trend.slope == pytest.approx(plain.slope)
    assert stats.norm.isf(trend.p) == pytest.approx(stats.norm.isf(plain.pvalue), rel=0.05, abs=0.05)


def test_drops_that_shrink_are_no_growth() -> None:
    (trend,) = by_turn_index([0, 1, 2, 3], [9, 7, 2, 1])
    assert trend.slope < 0
    assert trend.p > 0.9


@pytest.mark.parametrize(
    ("values", "drops", "conversations"),
    [
        ([3, 3, 3], [0.0, 5.0, 9.0], [0, 1, 2]),
        ([0, 1, 2, 3], [0.0, 5.0, 9.0, 1.0], [0, 0, 1, 1]),
        ([0, 1, 2], [1.0, 1.0, 1.0], [0, 1, 2]),
    ],
)
def test_nothing_to_grow_along_or_two_conversations_are_no_trend(
    values: list[int], drops: list[float], conversations: list[int]
) -> None:
    assert by_turn_index(values, drops, conversations) == ()


def test_positions_of_rendered_turns() -> None:
    turn = RenderedTurn(
        turn_id="a/t3", workload="faq", conversation_id="a", turn_index=3, prompt_ids=(1,) * 9, golden_ids=(1,) * 4,
        spans=(), max_tokens=8,
    )  # fmt: skip
    assert positions([turn], frozenset({"a/t3"})) == {"a/t3": place(3, 9, 4, 1)}
    assert positions([turn], frozenset())["a/t3"][Axis.FIRST_BLOCK] == 0
