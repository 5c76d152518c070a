"""Reference KV formats: what K or V would be after a round trip through the format, as pure torch functions.

Every function takes ``x``, [..., head_size], any float dtype and any leading shape (a token's head is the last axis),
and returns the same shape in float32: each value is rounded to the nearest one that the format can store, ties to the
even code. Beyond the largest one it saturates, infinity too. NaN stays NaN, and takes with it the values that share a
scale with it where the elements themselves have no NaN. Zero stays zero, blocks of zeros too. A head size that is no
multiple of the block has a shorter last block. A new format is one function here; ``FORMATS`` is its table.

Sources: OCP 8-bit Floating Point Specification (OFP8) 1.0; OCP Microscaling Formats (MX) 1.0; for NVFP4, NVIDIA's PTX
ISA (E2M1 elements, E4M3 scales of 16).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn.functional import pad

Format = Callable[[Tensor], Tensor]

NVFP4_BLOCK = 16
MX_BLOCK = 32
_E4M3_TINY = 2.0**-9  # the smallest positive E4M3 value
_LARGEST = torch.finfo(torch.bfloat16).max  # stands for infinity, so that scales stay finite
_EXPONENT = 0xFF  # of a float32, behind its 23 bits of mantissa


def identity(x: Tensor) -> Tensor:
    """K and V as they are: a hook that must change nothing."""
    return x.float()


def fp8_e4m3(x: Tensor) -> Tensor:
    """OCP FP8 E4M3: 3 mantissa bits, smallest normal value 2 ** -6, largest 448."""
    return _minifloat(x.float(), 3, -6, 448.0)


def fp8_e5m2(x: Tensor) -> Tensor:
    """OCP FP8 E5M2: 2 mantissa bits, smallest normal value 2 ** -14, largest finite value 57344."""
    return _minifloat(x.float(), 2, -14, 57344.0)


def fp8_e4m3_per_token_head(x: Tensor) -> Tensor:
    """FP8 E4M3 with one float32 scale per token and head, its largest magnitude / 448."""
    return _per_token_head(x, fp8_e4m3, 448)


def fp8_e5m2_per_token_head(x: Tensor) -> Tensor:
    """FP8 E5M2 with one float32 scale per token and head, its largest magnitude / 57344."""
    return _per_token_head(x, fp8_e5m2, 57344)


def int8(x: Tensor) -> Tensor:
    """Symmetric INT8 with one float32 scale per token and head, its largest magnitude / 127."""
    return _per_token_head(x, torch.round, 127)


def int4(x: Tensor) -> Tensor:
    """INT4 with one float32 scale and one whole zero point per token and head: 16 codes, -8 to 7, evenly from the least
    to the largest of its values and 0. vLLM's ``int4_per_token_head`` is that behind a rotation.
    """
    y = x.float().clamp(-_LARGEST / 2, _LARGEST / 2)  # halves, so that the difference of two is finite
    least = y.amin(-1, keepdim=True).clamp(max=0)
    scale = (y.amax(-1, keepdim=True).clamp(min=0) - least) / 15
    zero = torch.round(-8 - least / scale)
    return torch.where(scale == 0, 0.0, (torch.round(y / scale + zero).clamp(-8, 7) - zero) * scale)


def nvfp4(x: Tensor) -> Tensor:
    """NVFP4: E2M1 in blocks of 16 along head_size, one E4M3 scale a block, its largest magnitude / 6.

    The format's float32 tensor scale is what ``scaled`` puts around it. A scale that rounds to zero is the smallest
    positive one instead.
    """
    blocks = _blocks(x, NVFP4_BLOCK)
    scale = fp8_e4m3(_largest(blocks) / 6).clamp(min=_E4M3_TINY)
    return _joined(_e2m1(blocks / scale) * scale, x)


def mxfp4(x: Tensor) -> Tensor:
    """MXFP4: E2M1 in blocks of 32 along head_size, one power of two a block (E8M0)."""
    return _mx(x, _e2m1, 2, nan_elements=False)


def mxfp8(x: Tensor) -> Tensor:
    """MXFP8: E4M3 in blocks of 32 along head_size, one power of two a block (E8M0)."""
    return _mx(x, fp8_e4m3, 8, nan_elements=True)


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
    f.__name__: f
    for f in (
        identity, placebo, fp8_e4m3, fp8_e5m2, fp8_e4m3_per_token_head, fp8_e5m2_per_token_head, int8, int4,
        nvfp4, mxfp4, mxfp8,
    )
}  # fmt: skip


def scaled(fmt: Format, scale: Tensor) -> Format:
    """``fmt`` behind a tensor scale: what is stored is x / scale, what is read back is that times scale.

    ``scale``, float32 > 0, is one number ([]) or one a head ([num_kv_heads, 1], for x [..., num_kv_heads, head_size]).
    Powers of two add no rounding of their own.
    """
    return lambda x: fmt(x.float() / scale) * scale


def _minifloat(x: Tensor, mantissa: int, least: int, largest: float) -> Tensor:
    """x, float32, to the nearest value with ``mantissa`` bits behind the leading one, saturating at ``largest``.

    Below 2 ** ``least`` the steps stay as they are there (subnormal values). A step is a power of two built from the
    exponent's bits, so nothing but ``round`` rounds.
    """
    exponent = (x.view(torch.int32) >> 23) & _EXPONENT
    step = ((exponent.clamp(min=127 + least) - mantissa) << 23).view(torch.float32)
    return (torch.round(x / step) * step).clamp(-largest, largest)


def _e2m1(x: Tensor) -> Tensor:
    """FP4 E2M1: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives."""
    return _minifloat(x, 1, 0, 6.0)


def _per_token_head(x: Tensor, element: Format, largest: int) -> Tensor:
    """``element`` of each head over a scale that makes its largest magnitude ``largest``."""
    y = x.float().clamp(-_LARGEST, _LARGEST)
    scale = _largest(y) / largest
    return torch.where(scale == 0, 0.0, element(y / scale).clamp(-largest, largest) * scale)


def _mx(x: Tensor, element: Format, exponent: int, nan_elements: bool) -> Tensor:
    """Blocks of 32 under the power of two that OCP MX 1.0, section 6.3, gives: the largest power of two in the block,
    over that of the largest element, 2 ** ``exponent``; never below 2 ** -127.

    Where elements have a NaN of their own, it does not reach the block's scale.
    """
    blocks = _blocks(x, MX_BLOCK)
    largest = _largest(blocks.nan_to_num(0.0) if nan_elements else blocks)
    _, power = torch.frexp(largest)  # largest = m * 2 ** power, 0.5 <= m < 1
    scale = torch.ldexp(torch.ones_like(largest), (power - 1 - exponent).clamp(min=-127))
    scale = torch.where(largest.isnan(), largest, scale)
    return _joined(element(blocks / scale) * scale, x)


def _blocks(x: Tensor, size: int) -> Tensor:
    """[..., head_size] -> [..., blocks, size] in float32, finite or NaN; zeros fill up the last block."""
    y = pad(x.float().clamp(-_LARGEST, _LARGEST), (0, -x.shape[-1] % size))
    return y.unflatten(-1, (-1, size))


def _joined(blocks: Tensor, x: Tensor) -> Tensor:
    """The opposite of ``_blocks``, in the shape of ``x``."""
    return blocks.flatten(-2)[..., : x.shape[-1]]


def _largest(x: Tensor) -> Tensor:
    """The largest magnitude along the last axis, which stays: [..., 1]; NaN where there is one."""
    return x.abs().amax(-1, keepdim=True)
