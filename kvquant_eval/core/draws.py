"""Drops of an arm that loses nothing, drawn at random: as a placebo showed them, or as they are assumed to be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kvquant_eval.core.records import Measure
from kvquant_eval.core.stats import Array

JITTER = {"gl_reply": 0.5, "gl_span": 1.5}
"""Standard deviation of a turn's drop (points) of golden likelihood. The placebo of agents-v2 shows 0.5 to 1.3 and 1.1
to 2.4 in its five classes (embedded model): a gate of the same turns measures its own, and the next plans with that.
"""
LEAST_KNOWN = 1.5
"""The same for other scores of forced replies: a few tokens of one, as gl_span."""
FLIPS = 0.05
"""Share of the turns whose yes/no task score flips: about what the placebo showed on the embedded model (README.md, the
first table).
"""
_WHOLE = 100.0


class Source(Protocol):
    """Where drops come from. ``yes_no``: they are of a score that is 0 or 100."""

    @property
    def yes_no(self) -> bool: ...

    def draw(self, sizes: Sequence[int], runs: int, rng: np.random.Generator) -> Array:
        """Drops (points) of ``runs`` arms over conversations of ``sizes`` turns: shape (runs, turns), one conversation
        behind the other.
        """
        ...


@dataclass(frozen=True)
class Jitter:
    """Assumed: normal drops with a standard deviation of ``sd`` points, each turn by itself."""

    sd: float
    yes_no: bool = False

    def draw(self, sizes: Sequence[int], runs: int, rng: np.random.Generator) -> Array:
        return rng.normal(0.0, self.sd, (runs, sum(sizes)))


@dataclass(frozen=True)
class Flips:
    """Assumed: a share of ``rate`` (0..1) of the replies flips, as often up as down; the mean over ``epochs``."""

    rate: float
    epochs: int = 1

    @property
    def yes_no(self) -> bool:
        return self.epochs == 1

    def draw(self, sizes: Sequence[int], runs: int, rng: np.random.Generator) -> Array:
        shape = (runs, sum(sizes))
        down = rng.binomial(self.epochs, self.rate / 2, shape)
        up = rng.binomial(self.epochs - down, self.rate / 2 / (1 - self.rate / 2))
        return np.asarray(_WHOLE * (down - up) / self.epochs, dtype=float)


@dataclass(frozen=True, eq=False)
class Replayed:
    """Measured: each conversation takes over the drops of one of the ``pool``, drawn with replacement, in a random
    sign; a shorter one begins again. What the turns of a conversation share stays with them.
    """

    pool: tuple[Array, ...]
    yes_no: bool

    def draw(self, sizes: Sequence[int], runs: int, rng: np.random.Generator) -> Array:
        longest = max(sizes)
        table = np.stack([np.resize(drops, longest) for drops in self.pool])
        chosen = rng.integers(len(self.pool), size=(runs, len(sizes)))
        signs = rng.choice((-1.0, 1.0), size=(runs, len(sizes)))
        parts = [table[chosen[:, i], :size] * signs[:, i, None] for i, size in enumerate(sizes)]
        return np.concatenate(parts, axis=1)


@dataclass(frozen=True, eq=False)
class Averaged:
    """Another source over ``times`` as many epochs (> 1), which makes its drops smaller by the square root."""

    source: Source
    times: float
    yes_no: bool = False

    def draw(self, sizes: Sequence[int], runs: int, rng: np.random.Generator) -> Array:
        return self.source.draw(sizes, runs, rng) / math.sqrt(self.times)


def assumed(score: str, measure: Measure, epochs: int) -> Source:
    """What is assumed of a score that no control was seen with."""
    if measure is Measure.FORCED:
        return Jitter(JITTER.get(score, LEAST_KNOWN))
    return Flips(FLIPS, epochs)
