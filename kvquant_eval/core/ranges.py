"""How large K and V are before anything rounds them, head by head: counts that add up over blocks and workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class FormatCounts:
    """``beyond``: values whose magnitude is over the format's largest finite value at the scale in use. ``noise``: the
    sum of the squared differences between what the format gives back and the values, >= 0.
    """

    beyond: int = 0
    noise: float = 0.0


@dataclass(frozen=True, kw_only=True)
class HeadCounts:
    """K, or V, of one KV head of one layer.

    ``largest`` is the largest magnitude of every token of every step. All else is of a sample: how many ``values`` it
    has, the sum of their squares (``signal``), and what each of the ``formats`` does to them. What is not finite counts
    as the largest BF16 value.
    """

    values: int = 0
    largest: float = 0.0
    signal: float = 0.0
    formats: Mapping[str, FormatCounts] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class HalfRanges:
    """K, or V, of one layer. ``scale`` (> 0) is what values are divided by before a format stores them; ``limits`` has
    the largest finite value of each format at that scale, where it has one: the scales of others follow the values.
    """

    scale: float = 1.0
    limits: Mapping[str, float] = field(default_factory=dict)
    heads: tuple[HeadCounts, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LayerRanges:
    """K and V of one layer, by its index in the model."""

    index: int
    k: HalfRanges
    v: HalfRanges


def total(heads: Iterable[HeadCounts]) -> HeadCounts:
    """All of them as one."""
    listed = list(heads)
    names = dict.fromkeys(name for head in listed for name in head.formats)
    counted = {name: [head.formats[name] for head in listed if name in head.formats] for name in names}
    return HeadCounts(
        values=sum(head.values for head in listed),
        largest=max((head.largest for head in listed), default=0.0),
        signal=sum((head.signal for head in listed), 0.0),
        formats={
            name: FormatCounts(beyond=sum(one.beyond for one in all_), noise=sum((one.noise for one in all_), 0.0))
            for name, all_ in counted.items()
        },
    )


def joined(layers: Iterable[LayerRanges]) -> tuple[LayerRanges, ...]:
    """What the workers of one engine saw in the same steps, as layers of the whole model.

    With tensor parallelism each worker has other heads of a layer: they are put behind each other in the order of the
    workers, which is that of the model's heads. (Where vLLM gives a head to several workers because there are more of
    them than KV heads, it is there several times, with the same counts.) With pipeline parallelism each worker has
    other layers.
    """
    return tuple(
        LayerRanges(index=index, k=_joined([layer.k for layer in mine]), v=_joined([layer.v for layer in mine]))
        for index, mine in _by_index(layers).items()
    )


def merged(blocks: Iterable[Sequence[LayerRanges]]) -> tuple[LayerRanges, ...]:
    """What one arm saw in several blocks, head by head; sums are taken in the order of the blocks. Raises ValueError
    where they do not have the same heads.
    """
    layers = (layer for block in blocks for layer in block)
    return tuple(
        LayerRanges(index=index, k=_merged([layer.k for layer in mine]), v=_merged([layer.v for layer in mine]))
        for index, mine in _by_index(layers).items()
    )


def _joined(halves: Sequence[HalfRanges]) -> HalfRanges:
    heads = tuple(head for half in halves for head in half.heads)
    return HalfRanges(scale=halves[0].scale, limits=halves[0].limits, heads=heads)


def _merged(halves: Sequence[HalfRanges]) -> HalfRanges:
    heads = tuple(map(total, zip(*(half.heads for half in halves), strict=True)))
    return HalfRanges(scale=halves[0].scale, limits=halves[0].limits, heads=heads)


def _by_index(layers: Iterable[LayerRanges]) -> dict[int, list[LayerRanges]]:
    """In the order of the indices."""
    grouped: dict[int, list[LayerRanges]] = {}
    for layer in layers:
        grouped.setdefault(layer.index, []).append(layer)
    return dict(sorted(grouped.items()))
