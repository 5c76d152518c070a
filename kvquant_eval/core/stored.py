"""What an engine stored of K and V, code by code, beside the correctly rounded codes of the same forward pass."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields


@dataclass(frozen=True, kw_only=True)
class StoredCodes:
    """Counts over values of K, or of V, that one layer stored; ``right`` means rounded to nearest, ties to even.

    Magnitudes are in units of the scale; a ulp is the step from one code to the next. ``ulps`` sums the distance from
    the right code, ``bias`` that of the magnitudes (< 0: stored too small), ``worst`` is the largest distance.
    ``saturated`` are codes of the largest magnitude, ``flushed`` zeros that stand for something else.
    """

    values: int = 0
    identical: int = 0
    ulps: int = 0
    bias: int = 0
    worst: int = 0
    saturated: int = 0
    saturated_right: int = 0
    flushed: int = 0
    flushed_right: int = 0
    magnitude: float = 0.0
    magnitude_stored: float = 0.0
    magnitude_right: float = 0.0


@dataclass(frozen=True, kw_only=True)
class StoredLayer:
    """One layer's K and V, all workers together."""

    index: int
    k: StoredCodes
    v: StoredCodes


def total(counts: Iterable[StoredCodes]) -> StoredCodes:
    """All of them as one."""
    listed = list(counts)
    summed = {f.name: sum(getattr(each, f.name) for each in listed) for f in fields(StoredCodes)}
    return StoredCodes(**{**summed, "worst": max((each.worst for each in listed), default=0)})


def merged(layers: Iterable[StoredLayer]) -> tuple[StoredLayer, ...]:
    """Layers of the same index (of several workers, of several blocks) as one, in the order of the indices."""
    grouped: dict[int, list[StoredLayer]] = {}
    for layer in layers:
        grouped.setdefault(layer.index, []).append(layer)
    return tuple(
        StoredLayer(index=index, k=total(layer.k for layer in mine), v=total(layer.v for layer in mine))
        for index, mine in sorted(grouped.items())
    )
