"""Where in a class the drops lie: late turns, long contexts, long replies, the first block. Aggregates hide it."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from scipy import stats

from kvquant_eval.core.records import RenderedTurn
from kvquant_eval.core.stats import clustered

LEAST = 10
"""Turns of a stratum; smaller ones are put together with their neighbour."""


class Axis(StrEnum):
    """Turn index in its conversation (from 0), tokens before the reply, tokens of the golden reply, and whether the
    turn runs in the first block of the plan (1) or not (0).
    """

    TURN_INDEX = "turn_index"
    CONTEXT = "context_tokens"
    REPLY = "reply_tokens"
    FIRST_BLOCK = "first_block"


Position = Mapping[Axis, int]
"""Where a turn stands on each axis."""


@dataclass(frozen=True, kw_only=True)
class Stratum:
    """The turns of a class from ``low`` to ``high`` on an axis, both among them. Drops and bounds are points, as in
    ``ScoreResult``.
    """

    axis: Axis
    low: int
    high: int
    n_turns: int
    n_conversations: int
    mean_drop: float
    ci_lower: float | None
    ci_upper: float | None
    beyond_p: float

    @property
    def name(self) -> str:
        span = f"{self.low:,}" if self.low == self.high else f"{self.low:,} to {self.high:,}"
        words = {
            Axis.TURN_INDEX: f"turn index {span}",
            Axis.CONTEXT: f"contexts of {span} tokens",
            Axis.REPLY: f"replies of {span} tokens",
            Axis.FIRST_BLOCK: "the first block" if self.low else "blocks but the first",
        }
        return words[self.axis]


@dataclass(frozen=True, kw_only=True)
class Trend:
    """How the drop grows along an axis: ``slope`` in points for each turn, or for each doubling of the context; ``p``
    is one-sided, of no growth.
    """

    axis: Axis
    slope: float
    p: float


def positions(turns: Iterable[RenderedTurn], first_block: frozenset[str]) -> dict[str, Position]:
    """The position of every turn, by its id."""
    return {
        turn.turn_id: {
            Axis.TURN_INDEX: turn.turn_index,
            Axis.CONTEXT: len(turn.prompt_ids),
            Axis.REPLY: len(turn.golden_ids),
            Axis.FIRST_BLOCK: int(turn.turn_id in first_block),
        }
        for turn in turns
    }


def groups(values: Sequence[int], axis: Axis) -> list[list[int]]:
    """Indices of ``values`` by strata: octaves (1, 2-3, 4-7 ... of ``value + 1`` for turns), low ones first, of
    ``LEAST`` turns each; one group where there are not more.
    """
    shift = 1 if axis is Axis.TURN_INDEX else 0
    octaves: dict[int, list[int]] = {}
    for i, value in enumerate(values):
        octaves.setdefault((value + shift).bit_length(), []).append(i)
    merged: list[list[int]] = []
    for octave in sorted(octaves):
        if merged and len(merged[-1]) < LEAST:
            merged[-1] += octaves[octave]
        else:
            merged.append(octaves[octave])
    if len(merged) > 1 and len(merged[-1]) < LEAST:
        last = merged.pop()
        merged[-1] += last
    return merged


def strata(
    place: Sequence[Position], measure: Callable[[Axis, Sequence[int], tuple[int, int]], Stratum]
) -> tuple[Stratum, ...]:
    """Every stratum of turns at ``place``, on axes that have more than one; ``measure`` gets the axis, the indices of
    its turns, and the ends of their values.
    """
    found = []
    for axis in Axis:
        values = [each[axis] for each in place]
        for part in _parts(values, axis):
            inside = [values[i] for i in part]
            found.append(measure(axis, part, (min(inside), max(inside))))
    return tuple(found)


def strata_of(place: Sequence[Position]) -> list[list[int]]:
    """The indices of the turns in every stratum, as ``strata`` has them."""
    return [sorted(part) for axis in Axis for part in _parts([each[axis] for each in place], axis)]


def _parts(values: Sequence[int], axis: Axis) -> list[list[int]]:
    """The groups; none where one has all turns."""
    parts = groups(values, axis)
    return parts if len(parts) > 1 else []


def worst_of(parts: Iterable[Stratum]) -> Stratum | None:
    """The stratum that is sure to lose the most: of the highest lower bound, then of the largest mean drop, then the
    first. The largest mean drop alone would name the stratum of the fewest turns. None for no strata.
    """

    def proven(part: Stratum) -> tuple[float, float]:
        return -math.inf if part.ci_lower is None else part.ci_lower, part.mean_drop

    return max(parts, key=proven, default=None)


def trends(drops: Sequence[float], conversations: Sequence[Hashable], place: Sequence[Position]) -> tuple[Trend, ...]:
    """Of drops on turn index, and on the logarithm of the context: one degree of freedom each, far stronger than tests
    by stratum. None where there is nothing to grow along.
    """
    by_axis = {
        Axis.TURN_INDEX: [float(each[Axis.TURN_INDEX]) for each in place],
        Axis.CONTEXT: [math.log2(max(1, each[Axis.CONTEXT])) for each in place],
    }
    found = ((axis, _trend(drops, conversations, values)) for axis, values in by_axis.items())
    return tuple(Trend(axis=axis, slope=each[0], p=each[1]) for axis, each in found if each)


def _trend(
    drops: Sequence[float], conversations: Sequence[Hashable], values: Sequence[float]
) -> tuple[float, float] | None:
    """Least squares with a standard error robust to clusters (as ``stats.standard_error``), C - 1 degrees."""
    x, y = np.asarray(values) - np.mean(values), np.asarray(drops) - np.mean(drops)
    square = float((x * x).sum())
    if square < 1e-9:
        return None
    slope = float((x * y).sum()) / square
    sums = clustered(list(x * (y - slope * x)), conversations).sums
    count = len(sums)
    error = math.sqrt(count / (count - 1) * float((sums * sums).sum())) / square if count > 2 else 0.0
    if error <= 0:
        return None
    return slope, float(stats.t.sf(slope / error, count - 1))
