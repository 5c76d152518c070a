"""Looks at K and V on their way into the cache, and changes nothing: how large they are, what formats do to them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kvquant_eval.core.ranges import FormatCounts, HalfRanges, HeadCounts, LayerRanges
from kvquant_eval.core.scales import LARGEST
from kvquant_eval.worker.formats import FORMATS, scaled
from kvquant_eval.worker.stored import EVERY, TOKENS

_MOST = torch.finfo(torch.bfloat16).max
_log = logging.getLogger(__name__)


class RangeProbe:
    """Forward pre-hook of one attention layer.

    Maxima are of every token; all else of the first ``TOKENS`` tokens of every ``EVERY``-th step of a block, the first
    step to begin with. ``scales`` are K's and V's, as the layer's cache would have them: 1.0 until there are others.
    """

    def __init__(
        self, layer: Any, formats: Sequence[str], device: torch.device, scales: tuple[float, float] = (1.0, 1.0)
    ) -> None:
        self.k, self.v = (_Half(layer.num_kv_heads, formats, scale, device) for scale in scales)
        self.reset()

    def reset(self) -> None:
        """Begin a block."""
        self.step, self.readable = 0, True
        self.k.reset()
        self.v.reset()

    def __call__(self, layer: Any, args: tuple[Any, ...]) -> None:
        """args: query, key, value, ...; key and value: [num_tokens, num_kv_heads * head_size]."""
        sampled = self.step % EVERY == 0
        self.step += 1
        if not self.readable:
            return
        try:
            self.k.add(args[1], sampled)
            self.v.add(args[2], sampled)
        except Exception as error:  # noqa: BLE001 - a diagnosis less, whatever it is, and no reason to stop
            self.readable = False
            _log.warning("%s: K and V are not looked at: %s", layer.layer_name, error)

    def found(self, index: int) -> LayerRanges:
        """The counts since ``reset``, of the layer with this index."""
        return LayerRanges(index=index, k=self.k.found(), v=self.v.found())


class _Half:
    """K, or V, of one layer; what is counted stays on the device, so that no step waits for it."""

    def __init__(self, heads: int, formats: Sequence[str], scale: float, device: torch.device) -> None:
        self.heads, self.scale, self.device = heads, scale, device
        self.formats = {name: scaled(FORMATS[name], torch.tensor(scale)) for name in formats}
        self.limits = {name: LARGEST[name] * scale for name in formats if name in LARGEST}

    def reset(self) -> None:
        self.values = 0
        self.largest = torch.zeros(self.heads, device=self.device)
        self.signal = self._zeros()
        self.beyond = {name: self._zeros() for name in self.formats}
        self.noise = {name: self._zeros() for name in self.formats}

    def add(self, x: Tensor, sampled: bool) -> None:
        """x: [num_tokens, num_kv_heads * head_size], num_tokens > 0."""
        by_head = x.view(x.shape[0], self.heads, -1)
        self.largest = torch.maximum(self.largest, _finite(by_head.abs().amax((0, 2))))
        if sampled:
            self._sample(_finite(by_head[:TOKENS]))

    def _sample(self, x: Tensor) -> None:
        """x: [tokens, heads, head_size], float32 and finite."""
        exact = x.double()
        self.values += x.shape[0] * x.shape[2]
        self.signal += exact.square().sum((0, 2))
        for name, fmt in self.formats.items():
            self.noise[name] += (fmt(x).double() - exact).square().sum((0, 2))
        for name, limit in self.limits.items():
            self.beyond[name] += (x.abs() > limit).sum((0, 2))

    def found(self) -> HalfRanges:
        largest, signal = self.largest.tolist(), self.signal.tolist()
        beyond, noise = ({name: t.tolist() for name, t in of.items()} for of in (self.beyond, self.noise))
        heads = tuple(
            HeadCounts(
                values=self.values,
                largest=largest[head],
                signal=signal[head],
                formats={
                    name: FormatCounts(beyond=int(beyond[name][head]), noise=noise[name][head]) for name in self.formats
                },
            )
            for head in range(self.heads)
        )
        return HalfRanges(scale=self.scale, limits=self.limits, heads=heads)

    def _zeros(self) -> Tensor:
        return torch.zeros(self.heads, dtype=torch.float64, device=self.device)


def _finite(x: Tensor) -> Tensor:
    """In float32; what is not finite as the largest BF16 value, so that it is counted and sums stay numbers."""
    return x.float().nan_to_num(_MOST, _MOST, -_MOST)
