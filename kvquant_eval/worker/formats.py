"""Reference KV formats: what K or V would be after a round trip through the format, as pure torch functions.

Every function takes ``x``, [..., num_kv_heads, head_size], any float dtype, and returns the same shape in float32.
Element formats round to nearest, ties to even, and saturate. A new format is one function here; ``FORMATS`` is its
table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

Format = Callable[[Tensor], Tensor]

# E2M1 magnitudes and the midpoints between them. A tie goes to the even code, so the midpoints that belong to the upper
# neighbour (codes 1|2, 3|4, 5|6) are nudged down by one float32 step.
_E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
_E2M1_EDGES = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
_E2M1_EDGES[1::2] = torch.nextafter(_E2M1_EDGES[1::2], torch.tensor(0.0))

NVFP4_BLOCK = 16
_E4M3_TINY = 2.0**-9  # the smallest positive E4M3 value


def identity(x: Tensor) -> Tensor:
    """K and V as they are: a hook that must change nothing."""
    return x.float()


def fp8_e4m3(x: Tensor) -> Tensor:
    """OCP FP8 E4M3 at unit scale: 3 mantissa bits, largest finite value 448."""
    return _float8(x, torch.float8_e4m3fn)


def fp8_e5m2(x: Tensor) -> Tensor:
    """OCP FP8 E5M2 at unit scale: 2 mantissa bits, largest finite value 57344."""
    return _float8(x, torch.float8_e5m2)


def int8(x: Tensor) -> Tensor:
    """Symmetric INT8 with one float32 scale per token and head: amax over head_size / 127."""
    y = x.float()
    scale = y.abs().amax(-1, keepdim=True) / 127
    return torch.where(scale == 0, 0.0, torch.round(y / scale).clamp(-127, 127) * scale)


def nvfp4(x: Tensor) -> Tensor:
    """NVFP4 without a tensor scale: E2M1 in blocks of 16 along head_size, one E4M3 scale a block (amax / 6).

    Raises ValueError when head_size is no multiple of 16.
    """
    if x.shape[-1] % NVFP4_BLOCK:
        raise ValueError(f"nvfp4: head_size must be a multiple of {NVFP4_BLOCK}, got {x.shape[-1]}")
    y = x.float().reshape(*x.shape[:-1], -1, NVFP4_BLOCK)
    scale = fp8_e4m3(y.abs().amax(-1, keepdim=True) / 6).clamp(min=_E4M3_TINY)
    return (_e2m1(y / scale) * scale).reshape(x.shape)


def placebo(x: Tensor) -> Tensor:
    """BF16 jittered by one unit in the last place: down, up or (every other value) not at all; zero stays zero.

    The direction is a hash of the value's own bits and its place in the head, not a random stream, so that a token gets
    the same jitter in whatever batch it comes, and a resumed arm repeats itself.
    """
    bits = x.bfloat16().view(torch.int16).int()  # sign and magnitude: +1 moves away from zero
    place = torch.arange(x.shape[-1], device=x.device, dtype=torch.int64)
    mixed = (bits.long() & 0xFFFF) * 0x9E3779B1 + place * 0x85EBCA6B
    mixed = ((mixed ^ (mixed >> 15)) * 0x2C1B3C6D) & 0xFFFFFFFF
    step = torch.tensor([0, 0, -1, 1], device=x.device, dtype=torch.int32)[(mixed >> 16) & 3]
    magnitude = bits & 0x7FFF
    movable = (magnitude > 1) & (magnitude < 0x7F7F)  # neither to zero, nor to infinity
    return torch.where(movable, bits + step, bits).to(torch.int16).view(torch.bfloat16).float()


FORMATS: Mapping[str, Format] = {
    f.__name__: f for f in (identity, fp8_e4m3, fp8_e5m2, int8, nvfp4, placebo)
}  # fmt: skip


def _float8(x: Tensor, dtype: torch.dtype) -> Tensor:
    largest = torch.finfo(dtype).max
    return x.float().clamp(-largest, largest).to(dtype).float()


def _e2m1(x: Tensor) -> Tensor:
    codes = torch.bucketize(x.abs(), _E2M1_EDGES.to(x.device))
    return torch.copysign(_E2M1.to(x.device)[codes], x)
