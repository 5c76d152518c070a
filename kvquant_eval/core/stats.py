"""Bounds and tests on paired drops. The unit is the turn, the cluster its conversation; > 0 is worse."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

CONFIDENCE = 0.95
EXACT_FLIPS = 20_000_000
"""Operations of ``sign_flip``: conversations times the range of the sum, in steps of the grid that the sums lie on."""
_GRID = 20_000
"""Steps of that grid where the sums lie on none: the range of the sum."""
_MOST_ROUNDED = 2_000
"""Conversations beyond which the sum of random signs is as good as normal."""
_MOST_VALUES = 1_000
_STEP = 0.1
_FAR = 4.5
_FREQUENCIES = np.exp(np.arange(-16.0, 6.5, _STEP))

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A mean drop in points and its one-sided 95% bounds; infinite where there are fewer than two clusters."""

    mean: float
    lower: float
    upper: float


@dataclass(frozen=True)
class Clusters:
    """Drops by conversation: ``sums`` (points) over ``sizes`` turns each, both of shape (conversations,).

    ``repeats`` (> 0) is how often each of them counts: more than once to see what more of the same would show.
    """

    sums: Array
    sizes: Array
    repeats: float = 1.0

    @property
    def count(self) -> float:
        return len(self.sums) * self.repeats

    @property
    def turns(self) -> float:
        return float(self.sizes.sum()) * self.repeats

    @property
    def degrees(self) -> float:
        """Of freedom of an error that is estimated from conversations; infinite where each is one turn."""
        return self.count - 1 if float(self.sizes.max()) > 1 else math.inf

    @property
    def mean(self) -> float:
        return float(self.sums.sum() / self.sizes.sum())

    @property
    def worst(self) -> float:
        """The largest mean drop of a conversation."""
        return float((self.sums / self.sizes).max())


def clustered(drops: Sequence[float], clusters: Sequence[Hashable]) -> Clusters:
    """Sum the drops of each cluster. Raises ValueError for no drops, or a drop without its cluster."""
    if len(drops) == 0 or len(drops) != len(clusters):
        raise ValueError(f"clustered: a cluster for each of at least one drop, got {len(clusters)} for {len(drops)}")
    places: dict[Hashable, int] = {}
    codes = [places.setdefault(each, len(places)) for each in clusters]
    return Clusters(np.bincount(codes, np.asarray(drops, dtype=float)).astype(float), np.bincount(codes).astype(float))


def standard_error(seen: Clusters) -> float:
    """Of the mean, robust to whatever the turns of a conversation share; infinite for fewer than two.

    Miller, "Adding Error Bars to Evals" (arXiv 2411.00640), eq. 4, times C / (C - 1) for few clusters.
    """
    if len(seen.sums) < 2:
        return math.inf
    residual = seen.sums - seen.mean * seen.sizes
    few = seen.count / (seen.count - 1)
    return math.sqrt(few * seen.repeats * float(np.square(residual).sum())) / seen.turns


def clustered_t(seen: Clusters) -> Interval:
    """The mean with Student's t bounds, C - 1 degrees of freedom."""
    error = standard_error(seen)
    if math.isinf(error):
        return Interval(seen.mean, -math.inf, math.inf)
    reach = float(stats.t.ppf(CONFIDENCE, seen.count - 1)) * error
    return Interval(seen.mean, seen.mean - reach, seen.mean + reach)


def beyond(seen: Clusters, margin: float) -> float:
    """One-sided p of a mean drop of at most ``margin`` (points), by the same t; 1.0 for fewer than two clusters."""
    error = standard_error(seen)
    if math.isinf(error):
        return 1.0
    above = seen.mean - margin
    return float(stats.t.sf(above / error, seen.count - 1)) if error else float(above <= 0)


def allowing_breaks(seen: Clusters, largest: float) -> float:
    """Upper 95% bound of the mean, whatever rare breaks were not seen: no conversation loses over ``largest`` points.

    The quantile of the mean under random weights of the conversations, one more among them, as long as the longest,
    that loses ``largest`` (or as much as the worst that was seen). Among conversations of one size it is ``largest * (1
    - 0.05 ** (1 / C))`` where nothing moved, Clopper and Pearson's bound where drops are nothing or all; it stays valid
    where a t interval misses breaks, also those of long conversations alone.
    Gaffke (2005); Learned-Miller and Thomas, "A New Confidence Interval for the Mean of a Bounded Random Variable"
    (arXiv 1905.06208).
    """
    worst = max(largest, seen.worst)
    low, high = seen.mean, worst
    if low >= high or proven_below(seen, largest, high) < CONFIDENCE:
        return high
    if proven_below(seen, largest, low) >= CONFIDENCE:
        return low
    return float(optimize.brentq(lambda x: proven_below(seen, largest, x) - CONFIDENCE, low, high, xtol=1e-6))


def proven_below(seen: Clusters, largest: float, margin: float) -> float:
    """The confidence (0..1) of ``allowing_breaks`` that the mean drop is below ``margin``."""
    worst = max(largest, seen.worst)
    values = np.append(seen.sums - margin * seen.sizes, float(seen.sizes.max()) * (worst - margin))
    return _share_below_zero(values, np.append(np.full(len(seen.sums), seen.repeats), 1.0))


def unseen(n: float) -> float:
    """Upper 95% bound of the share (0..1) of what was not seen in ``n``: Clopper and Pearson's without an event."""
    return float(1 - (1 - CONFIDENCE) ** (1 / n))


def tango(drops: float, gains: float, n: float, spread: float = 1.0, degrees: float = math.inf) -> Interval:
    """Difference of two paired proportions in points with one-sided 95% score bounds, from turns that flipped.

    ``spread`` (>= 1) is how much more the drops vary than those of independent turns would; it divides all counts.
    Where it was estimated, ``degrees`` of freedom make the bounds Student's.
    Tango, Statistics in Medicine 17 (1998) 891-908; without any flip, where the score interval is too short, the exact
    binomial bounds.
    """
    if not drops and not gains:
        reach = 100.0 * unseen(n)
        return Interval(0.0, -reach, reach)
    b, c, m = drops / spread, gains / spread, n / spread
    z = float(stats.t.ppf(CONFIDENCE, degrees))
    mean = (b - c) / m

    def bound(end: float, reach: float) -> float:
        """Where the score statistic is ``reach`` between the mean and ``end``."""
        if abs(_tango_z(b, c, m, end)) <= abs(reach):
            return end
        return float(optimize.brentq(lambda at: _tango_z(b, c, m, at) - reach, mean, end, xtol=1e-9))

    return Interval(100 * mean, 100 * bound(-1.0, z), 100 * bound(1.0, -z))


def tango_beyond(
    drops: float, gains: float, n: float, margin: float, spread: float = 1.0, degrees: float = math.inf
) -> float:
    """One-sided p of a difference of at most ``margin`` (points), by the same score statistic."""
    return float(stats.t.sf(_tango_z(drops / spread, gains / spread, n / spread, margin / 100), degrees))


def _tango_z(b: float, c: float, n: float, at: float) -> float:
    """The score statistic of a true difference ``at`` (-1..1), for ``b`` flips one way and ``c`` the other of ``n``."""
    linear = -b - c + (2 * n - b + c) * at
    shared = (math.sqrt(max(0.0, linear**2 + 8 * n * c * at * (1 - at))) - linear) / (4 * n)
    variance = n * (2 * shared + at * (1 - at))
    distance = b - c - n * at
    return distance / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, distance) if distance else 0.0


def spread(seen: Clusters, drops: Iterable[float]) -> float:
    """How much more the mean varies than that of independent turns would, at least 1 (Kish's design effect)."""
    values = np.fromiter(drops, dtype=float)
    plain = float(values.var(ddof=1)) / len(values) if len(values) > 1 else 0.0
    error = standard_error(seen)
    return max(1.0, error**2 / plain) if plain > 0 and math.isfinite(error) else 1.0


def sign_flip(seen: Clusters) -> float:
    """One-sided p that drops exceed gains by chance: whole conversations change their sign, as they may where both arms
    are the same.

    Exact where the sums are multiples of a whole number, others are rounded to a fine grid; normal beyond 2,000
    conversations whose grid would be too coarse. 1.0 when nothing moved, or more was gained.
    """
    sums = seen.sums[seen.sums != 0]
    total = float(sums.sum())
    if len(sums) == 0 or total <= 0:
        return 1.0
    sizes = np.abs(sums)
    moved, whole = float(sizes.sum()), np.rint(sizes).astype(np.int64)
    unit = float(np.gcd.reduce(whole)) if np.array_equal(whole, sizes) else 0.0
    if not unit or len(sums) * moved / unit > EXACT_FLIPS:
        if len(sums) > _MOST_ROUNDED:
            return float(stats.norm.sf(total / math.sqrt(float(np.square(sums).sum()))))
        unit = moved / min(_GRID, EXACT_FLIPS / len(sums))
    rounded = np.rint(sizes / unit).astype(np.int64)
    seen_total = float((np.sign(sums) * rounded).sum())  # what was seen counts among what chance does, rounded as it is
    return _exact_flip(rounded, math.ceil(min(seen_total, total / unit - 1e-6)))


def holm(chances: Sequence[float]) -> list[float]:
    """The p values of a family of tests, adjusted so that under its level none is rejected by chance (Holm 1979)."""
    adjusted, worst = [0.0] * len(chances), 0.0
    for rank, place in enumerate(sorted(range(len(chances)), key=lambda i: chances[i])):
        worst = max(worst, min(1.0, (len(chances) - rank) * chances[place]))
        adjusted[place] = worst
    return adjusted


def more_needed(seen: Clusters, settled: Callable[[Clusters], bool], most: float) -> float | None:
    """How many times the conversations, were the others like these, ``settled`` would hold for; None: over ``most``."""

    def at(times: float) -> bool:
        return settled(Clusters(seen.sums, seen.sizes, times))

    if not at(most):
        return None
    low, high = 1.0, most
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if at(middle) else (middle, high)
    return high


def _exact_flip(sizes: NDArray[np.int64], total: int) -> float:
    """P(sum of +-sizes >= total), all signs equally likely."""
    chance = np.ones(1)
    for size in sizes:
        moved = np.zeros(len(chance) + 2 * int(size))
        moved[: len(chance)] += chance
        moved[2 * int(size) :] += chance
        chance = moved / 2
    reach = int(sizes.sum())  # chance[i] is that of the sum i - reach, where i - reach and reach are of one parity
    return float(min(1.0, chance[reach + total :].sum()))


def _share_below_zero(values: Array, counts: Array) -> float:
    """P(sum of values[i] * E[i] <= 0), where E[i] are independent Gamma(counts[i]) variables.

    Gil-Pelaez (1951), over the logarithm of the frequency, where the trapezoidal rule is good to 1e-4. Where the mean
    lies ``_FAR`` standard deviations from 0 the integrand turns too fast for that: Cantelli's bound is enough there.
    """
    scale = float(np.abs(values).max())
    if float(values.max()) <= 0:
        return 1.0
    if float(values.min()) >= 0:
        return 0.0
    far = float(values @ counts) / math.sqrt(float(np.square(values) @ counts))
    if abs(far) > _FAR:
        return 1 - 1 / (1 + far**2) if far < 0 else 1 / (1 + far**2)
    values, counts = _grouped(values, counts)
    at = np.outer(_FREQUENCIES / scale, values)
    size = np.exp(-0.5 * (np.log1p(at * at) @ counts))
    angle = np.arctan(at) @ counts
    return float(min(1.0, max(0.0, 0.5 - _STEP / math.pi * float((np.sin(angle) * size).sum()))))


def _grouped(values: Array, counts: Array) -> tuple[Array, Array]:
    """At most about ``_MOST_VALUES`` values: equal ones together, then neighbours by their mean."""
    unique, place = np.unique(values, return_inverse=True)
    counts = np.bincount(place, counts).astype(float)
    if len(unique) <= _MOST_VALUES:
        return unique, counts
    width = float(unique[-1] - unique[0]) / _MOST_VALUES
    group = np.minimum(((unique - unique[0]) / width).astype(np.int64), _MOST_VALUES - 1)
    group = np.unique(group, return_inverse=True)[1]
    together = np.bincount(group, counts).astype(float)
    return np.bincount(group, counts * unique).astype(float) / together, together
