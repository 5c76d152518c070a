"""What the magnitudes of K and V say: which layers and heads stand out, what a format's range clips, and its noise.

Diagnostic: nothing decides by it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from kvquant_eval.core.arms import ArmRecord
from kvquant_eval.core.codec import to_data
from kvquant_eval.core.ranges import HalfRanges, HeadCounts, LayerRanges, total

HALVES = ("k", "v")
OUTLIER = 8.0
"""A head (a layer) stands out when its largest magnitude is so many times the median of those of all heads (layers) of
the model, of K or of V: three bits of a format's range that the others leave unused."""
SHOWN = 3
"""Outliers that a sentence names, the largest first."""


@dataclass(frozen=True, kw_only=True)
class FormatFit:
    """How a format fits some values. ``limit``: its largest finite value at the scale in use, None where its scales
    follow the values or differ; ``beyond``: share (0..1) of the values over it, None with no limit; ``sqnr_db``: see
    below.
    """

    limit: float | None
    beyond: float | None
    sqnr_db: float | None


@dataclass(frozen=True, kw_only=True)
class HalfFit:
    """K, or V, of a layer or of all: the largest magnitude, in which layer and head (of the layer, from 0) it is, how
    many values were sampled, and how each format fits them. None where nothing was seen.
    """

    largest: float | None
    layer: int | None
    head: int | None
    values: int
    formats: Mapping[str, FormatFit]


@dataclass(frozen=True, kw_only=True)
class RangeProfile:
    """What one arm saw of K and V before they were stored; ``formats`` are those that were tried on them."""

    arm: str
    formats: tuple[str, ...]
    layers: tuple[LayerRanges, ...]
    sentences: tuple[str, ...]


@dataclass(frozen=True)
class _Seen:
    """One head's K or V, and where it is."""

    half: str
    layer: int
    head: int
    of: HalfRanges
    counts: HeadCounts

    @property
    def place(self) -> str:
        return f"|{self.half.upper()}| of layer {self.layer}, head {self.head}"


def profile(record: ArmRecord) -> RangeProfile:
    """The profile that this arm measured."""
    heads = [head for half in HALVES for head in _heads(record.ranges, half)]
    formats = tuple(dict.fromkeys(name for head in heads for name in head.counts.formats))
    return RangeProfile(
        arm=record.arm.name, formats=formats, layers=record.ranges, sentences=tuple(_sentences(heads, formats))
    )


def as_data(found: RangeProfile) -> dict[str, Any]:
    """As ``decision.json`` has it: K and V of all layers, then layer by layer; heads are in ``ranges.parquet``."""
    return {
        "arm": found.arm,
        "formats": list(found.formats),
        "sentences": list(found.sentences),
        **{half: to_data(_fit(_heads(found.layers, half))) for half in HALVES},
        "layers": [
            {"layer": layer.index, **{half: to_data(_fit(_heads([layer], half))) for half in HALVES}}
            for layer in found.layers
        ],
    }


def format_fit(of: Iterable[HalfRanges], counts: HeadCounts, name: str) -> FormatFit:
    """``counts`` are those of heads in these halves."""
    limits = {half.limits[name] for half in of if name in half.limits}
    found = counts.formats[name]
    return FormatFit(
        limit=min(limits) if len(limits) == 1 else None,
        beyond=found.beyond / counts.values if limits and counts.values else None,
        sqnr_db=sqnr_db(counts.signal, found.noise),
    )


def sqnr_db(signal: float, noise: float) -> float | None:
    """Signal-to-quantization-noise ratio in dB, 10 log10(sum of squares / sum of squared errors); None where there is
    no noise or no signal.
    """
    return 10 * math.log10(signal / noise) if signal > 0 and noise > 0 else None


def _heads(layers: Iterable[LayerRanges], half: str) -> list[_Seen]:
    return [
        _Seen(half, layer.index, number, of, counts)
        for layer in layers
        for of in [getattr(layer, half)]
        for number, counts in enumerate(of.heads)
    ]


def _fit(heads: Sequence[_Seen]) -> HalfFit:
    counts = total(head.counts for head in heads)
    worst = max(heads, key=_largest, default=None) if counts.values else None
    return HalfFit(
        largest=worst.counts.largest if worst else None,
        layer=worst.layer if worst else None,
        head=worst.head if worst else None,
        values=counts.values,
        formats={name: format_fit((head.of for head in heads), counts, name) for name in counts.formats},
    )


def _sentences(heads: Sequence[_Seen], formats: Sequence[str]) -> Iterator[str]:
    """Clipping first, then what stands out in K and in V."""
    if not any(head.counts.values for head in heads):
        yield "No K and V were seen."
        return
    limited = [name for name in formats if any(name in head.of.limits for head in heads)]
    yield from (_clipping([head for head in heads if name in head.of.limits], name) for name in limited)
    if others := [name for name in formats if name not in limited]:
        yield f"Their scales follow the values, so there is no fixed range to pass: {', '.join(others)}."
    for half in HALVES:
        yield from _outliers([head for head in heads if head.half == half])


def _clipping(heads: Sequence[_Seen], name: str) -> str:
    def ratio(head: _Seen) -> float:
        return head.counts.largest / head.of.limits[name]

    worst = max(heads, key=ratio)
    scales = "unit scales" if all(head.of.scale == 1 for head in heads) else "the scales in use"
    reaches = f"{worst.place} reaches {_number(worst.counts.largest)}"
    limit = _number(worst.of.limits[name])
    clipped = [head for head in heads if ratio(head) > 1]
    if not clipped:
        return f"{name} clips nothing at {scales}: {reaches}, the most, and {limit} is its largest value."
    counts = total(head.counts for head in heads)
    share = counts.formats[name].beyond / counts.values if counts.values else 0.0
    return (
        f"{name} clips at {scales}: {reaches}, {_number(ratio(worst))} times its largest value, {limit}. It clips in "
        f"{len(clipped)} of {len(heads)} heads (K and V), {share:.3%} of the values that were sampled."
    )


def _outliers(heads: Sequence[_Seen]) -> Iterator[str]:
    """Sentences on one half: outlier heads, outlier layers, or that there are none."""
    layers: dict[int, _Seen] = {}
    for head in heads:
        layers[head.layer] = max(layers.get(head.layer, head), head, key=_largest)
    found = False
    for what, group in (("head", list(heads)), ("layer", list(layers.values()))):
        middle = median(map(_largest, group))
        out = sorted(
            (h for h in group if _largest(h) >= OUTLIER * middle and _largest(h) > 0), key=_largest, reverse=True
        )
        if out:
            found = True
            named = f"Outlier {what}{'s' * (len(out) > 1)}: {_listed(out, middle)}"
            yield f"{named}, where the median {what} reaches {_number(middle)}."
    if not found:
        worst, middle = max(heads, key=_largest), median(map(_largest, heads))
        times = f", {_number(_largest(worst) / middle)} times what the median head reaches" if middle else ""
        yield (
            f"No head or layer stands out in |{worst.half.upper()}|: the largest is {_number(_largest(worst))} (layer "
            f"{worst.layer}, head {worst.head}){times}; an outlier has {OUTLIER:g} times that."
        )


def _listed(out: Sequence[_Seen], middle: float) -> str:
    named = [
        f"{head.place} reaches {_number(_largest(head))}"
        + (f" ({_number(_largest(head) / middle)} times)" if middle else "")
        for head in out[:SHOWN]
    ]
    return "; ".join(named) + (f"; and {len(out) - SHOWN} more" if len(out) > SHOWN else "")


def _largest(head: _Seen) -> float:
    return head.counts.largest


def _number(value: float) -> str:
    """Four digits; whole numbers up to a billion as they are."""
    return f"{value:,.0f}" if 1e4 <= value < 1e9 else f"{value:,.4g}"
