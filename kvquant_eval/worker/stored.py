"""Reads back what the engine stored of K and V, right after it did, and compares it with correct rounding.

Where a value lies in a block of the cache is the backend's own business (some transpose K, or pack it). It is learned
by having the backend store known values in a block of its own, so nothing here knows a layout.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kvquant_eval.core.stored import StoredCodes, total
from kvquant_eval.core.treatment import canonical_dtype
from kvquant_eval.worker.formats import FORMATS

DTYPES = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
"""Cache dtypes of one byte a value, whose codes torch can name."""
EVERY = 32
"""Engine steps of a block of which one is compared, the first to begin with."""
TOKENS = 256
"""Tokens of such a step that are compared, the first ones."""
_DIGITS = torch.tensor([m * 2.0**e for e in range(-3, 5) for m in (1.0, 1.5)])  # 16 values that every FP8 holds
_UNSET = -1
_log = logging.getLogger(__name__)

Update = Callable[[Any, Tensor, Tensor, Tensor, Tensor], None]


class StoredAudit:
    """Stands in for ``impl.do_kv_cache_update`` of one layer: lets it store, and compares a sample of what it did."""

    def __init__(self, layer: Any, num_blocks: int) -> None:
        self.update: Update = layer.impl.do_kv_cache_update
        self.dtype, self.num_blocks = canonical_dtype(layer.kv_cache_dtype), num_blocks
        self.places: tuple[Tensor, Tensor] | None = None
        self.reset()

    def reset(self) -> None:
        """Begin a block: what is found in it does not depend on the blocks before."""
        self.readable, self.step, self.k, self.v = True, 0, StoredCodes(), StoredCodes()

    def __call__(self, layer: Any, key: Tensor, value: Tensor, cache: Tensor, slots: Tensor) -> None:
        """key, value: [num_tokens, num_kv_heads, head_size]; slots: [num_tokens], negative for padding."""
        self.update(layer, key, value, cache, slots)
        if self.readable and self.step % EVERY == 0:
            try:
                self._compare(layer, key, value, cache, slots)
            except Exception as error:  # noqa: BLE001 - a diagnosis less, whatever it is, and no reason to stop
                self.readable = False
                _log.warning("%s: stored codes are not read back: %s", layer.layer_name, error)
        self.step += 1

    def _compare(self, layer: Any, key: Tensor, value: Tensor, cache: Tensor, slots: Tensor) -> None:
        if self.places is None:
            self.places = learn(self.update, layer, key, cache, self.num_blocks)
        rows = torch.nonzero(slots >= 0).flatten()[:TOKENS]
        bytes_of = _reader(cache, self.num_blocks, self.places[0].shape[0], slots[rows])
        k, v = (
            compare(x[rows], bytes_of(place), scale.float().reshape(-1, 1), self.dtype)  # one scale, or one a head
            for x, place, scale in zip((key, value), self.places, (layer._k_scale, layer._v_scale), strict=True)
        )
        self.k, self.v = total((self.k, k)), total((self.v, v))


def compare(x: Tensor, codes: Tensor, scale: Tensor, dtype: str) -> StoredCodes:
    """What was stored of ``x``, [tokens, heads, head_size], as ``codes`` of the same shape (uint8) under ``scale``,
    [1, 1] or [heads, 1]. Zeros of both signs are one code.
    """
    scaled = x.float() / scale
    right = FORMATS[dtype](scaled).to(DTYPES[dtype]).view(torch.uint8)
    stored_value, right_value = (each.view(DTYPES[dtype]).float() for each in (codes, right))
    stored, exact = codes.int() & 0x7F, right.int() & 0x7F
    distance = (torch.where(codes < 128, stored, -stored) - torch.where(right < 128, exact, -exact)).abs()
    largest = int(torch.tensor(torch.finfo(DTYPES[dtype]).max).to(DTYPES[dtype]).view(torch.uint8))
    nonzero = scaled != 0
    return StoredCodes(
        values=x.numel(),
        identical=int((distance == 0).sum()),
        ulps=int(distance.sum()),
        bias=int((stored - exact).sum()),
        worst=int(distance.max()) if x.numel() else 0,
        saturated=int((stored == largest).sum()),
        saturated_right=int((exact == largest).sum()),
        flushed=int(((stored == 0) & nonzero).sum()),
        flushed_right=int(((exact == 0) & nonzero).sum()),
        magnitude=_magnitude(scaled),
        magnitude_stored=_magnitude(stored_value),
        magnitude_right=_magnitude(right_value),
    )


def _magnitude(x: Tensor) -> float:
    """The sum of the magnitudes; NaN counts as nothing and infinity as the largest BF16 value, so that it is finite."""
    most = torch.finfo(torch.bfloat16).max
    return float(x.abs().nan_to_num(0.0, most, most).double().sum())


def learn(update: Update, layer: Any, key: Tensor, cache: Tensor, num_blocks: int) -> tuple[Tensor, Tensor]:
    """Where K and V of a block's tokens lie in it: byte numbers, [block_size, num_kv_heads, head_size] each.

    Every value gets a number, stored digit by digit (base 16). Raises ValueError where that cannot be read back.
    """
    scratch = torch.zeros_like(cache.index_select(_block_axis(cache, num_blocks), _one(cache.device)))
    heads, size = key.shape[1:]
    block, rest = divmod(scratch.numel(), 2 * heads * size)
    if rest or scratch.element_size() != 1:
        raise ValueError(f"a KV cache of one byte a value, got {scratch.numel()} values a block of {heads} x {size}")
    numbers = torch.arange(2 * block * heads * size, device=key.device)
    halves = numbers.view(2, block, heads, size)
    slots = torch.arange(block, device=key.device)
    read, digits = torch.zeros(scratch.numel(), dtype=torch.int64, device=key.device), _DIGITS.to(key.device)
    names = _names(canonical_dtype(layer.kv_cache_dtype)).to(key.device)
    for place in range(0, numbers[-1].item().bit_length(), 4):
        k, v = (
            (digits[half >> place & 15] * getattr(layer, f"_{name}_scale").float().reshape(-1, 1)).to(key.dtype)
            for name, half in zip("kv", halves, strict=True)
        )
        update(layer, k, v, scratch, slots)
        read += names[_bytes(scratch)] << place
    found = torch.full_like(numbers, _UNSET)
    known = read.clamp(0, len(numbers) - 1)
    found[known] = torch.arange(scratch.numel(), device=key.device)
    if not torch.equal(read.sort().values, numbers):
        raise ValueError(f"{layer.impl.__class__.__name__}: where it stores K and V could not be learned")
    k_places, v_places = found.view(2, block, heads, size)
    return k_places, v_places


def _names(dtype: str) -> Tensor:
    """The digit that each of the 256 codes stands for: the nearest one, so that a scale's own rounding does no harm."""
    values = torch.arange(256, dtype=torch.uint8).view(DTYPES[dtype]).float().nan_to_num(0.0, 0.0, 0.0)
    distance = (values.clamp(min=1e-9).log().unsqueeze(1) - _DIGITS.log()).abs()
    return distance.argmin(1)


def _reader(cache: Tensor, num_blocks: int, block: int, slots: Tensor) -> Callable[[Tensor], Tensor]:
    """A function from places in a block to the bytes of the tokens in ``slots``: [tokens, heads, head_size]."""
    blocks, inverse = (slots // block).unique(return_inverse=True)
    axis = _block_axis(cache, num_blocks)
    touched = cache.index_select(axis, blocks).movedim(axis, 0).reshape(len(blocks), -1).view(torch.uint8)
    return lambda place: touched[inverse.view(-1, 1, 1), place[slots % block]]


def _bytes(scratch: Tensor) -> Tensor:
    return scratch.reshape(-1).view(torch.uint8).int()


def _block_axis(cache: Tensor, num_blocks: int) -> int:
    return list(cache.shape).index(num_blocks)


def _one(device: torch.device) -> Tensor:
    return torch.zeros(1, dtype=torch.int64, device=device)
