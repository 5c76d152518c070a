"""Bounds and tests on paired drops. The unit is the turn, the cluster its conversation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

CONFIDENCE = 0.95
_SIGN_FLIPS = 20_000


@dataclass(frozen=True)
class Interval:
    """A mean drop in points and its one-sided 95% bounds; infinite where there are fewer than two clusters."""

    mean: float
    lower: float
    upper: float


def clustered_t(drops: Sequence[float], clusters: Sequence[Hashable]) -> Interval:
    """Mean of ``drops`` with one-sided bounds from a cluster-robust standard error and Student's t, C - 1 degrees.

    The standard error is that of Miller, "Adding Error Bars to Evals" (arXiv 2411.00640), eq. 4, times C / (C - 1) for
    few clusters. Raises ValueError for no drops.
    """
    if not drops:
        raise ValueError("clustered_t: at least one drop, got none")
    values = np.asarray(drops, dtype=float)
    mean = float(values.mean())
    sums = _cluster_sums(values - mean, clusters)
    count = len(sums)
    if count < 2:
        return Interval(mean, -np.inf, np.inf)
    error = float(np.sqrt(count / (count - 1) * np.square(sums).sum())) / len(values)
    reach = float(stats.t.ppf(CONFIDENCE, count - 1)) * error
    return Interval(mean, mean - reach, mean + reach)


def no_flip(interval: Interval, n: int) -> Interval:
    """The interval of ``n`` yes/no scores (0 or 100 points) of which none flipped: zero spread proves nothing.

    The upper bound is at least 100 (1 - 0.05 ** (1 / n)), the exact one-sided binomial bound at 0 of n.
    """
    return replace(interval, upper=max(interval.upper, 100.0 * (1 - (1 - CONFIDENCE) ** (1 / n))))


def sign_flip(signs: Sequence[float], clusters: Sequence[Hashable]) -> float:
    """One-sided p that drops over the threshold (+1) exceed gains over it (-1) by chance, whole conversations flipped.

    A mean over epochs lies between. Exact for up to 14 conversations with a net sign, else from a fixed seed. 1.0 when
    nothing moved.
    """
    sums = _cluster_sums(np.asarray(signs, dtype=float), clusters)
    sums = sums[sums != 0]
    if len(sums) == 0 or sums.sum() <= 0:
        return 1.0
    if len(sums) == 1:
        return 0.5
    result = stats.permutation_test(
        (sums,),
        lambda x, axis: x.sum(axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=_SIGN_FLIPS,
        alternative="greater",
        rng=np.random.default_rng(0),
    )
    return float(result.pvalue)


def further_turns(interval: Interval, n: int, margin: float) -> int:
    """Roughly how many more turns would bring a bound to the other side of ``margin``, if mean and spread stay.

    0 where the bounds are already clear of it, or no number of turns would do (a mean on the margin). A bound narrows
    with the root of the turns, that of ``no_flip`` with the turns.
    """
    reach, distance = interval.upper - interval.mean, abs(margin - interval.mean)
    if not np.isfinite(reach) or distance == 0 or reach <= distance:
        return 0
    power = 1 if interval.lower == interval.mean else 2
    return int(np.ceil(n * (reach / distance) ** power)) - n


def _cluster_sums(values: np.ndarray, clusters: Sequence[Hashable]) -> np.ndarray:
    totals: dict[Hashable, float] = defaultdict(float)
    for value, cluster in zip(values, clusters, strict=True):
        totals[cluster] += float(value)
    return np.asarray(list(totals.values()))
