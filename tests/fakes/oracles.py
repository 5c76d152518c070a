"""KV formats as others implement them, and values to compare ours with theirs on.

The elements come from ml_dtypes, whole formats from compressed-tensors; neither shares code with ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import torch
from compressed_tensors.quantization import QuantizationArgs, fake_quantize
from compressed_tensors.quantization.utils.helpers import calculate_qparams
from torch import Tensor

ELEMENTS: Mapping[str, tuple[Any, float]] = {
    "fp8_e4m3": (ml_dtypes.float8_e4m3fn, 448.0),
    "fp8_e5m2": (ml_dtypes.float8_e5m2, 57344.0),
    "e2m1": (ml_dtypes.float4_e2m1fn, 6.0),
}
"""Their element types, with the largest finite value of each."""


def element(name: str, x: Tensor) -> Tensor:
    """ml_dtypes' rounding, of values clipped to what is finite."""
    dtype, largest = ELEMENTS[name]
    return torch.from_numpy(x.float().numpy().clip(-largest, largest).astype(dtype).astype(np.float32))


def per_token_head(kind: str, bits: int, largest: float, x: Tensor) -> Tensor:
    """compressed-tensors' rounding, row by row, under the scale largest magnitude / ``largest``."""
    y = x.float()
    scale = y.abs().amax(-1, keepdim=True) / largest
    theirs = fake_quantize(y, scale, None, QuantizationArgs(num_bits=bits, type=kind, strategy="channel"))
    return torch.where(scale == 0, 0.0, theirs)


def int4(x: Tensor) -> Tensor:
    """compressed-tensors' asymmetric INT4, of values whose differences are finite."""
    most = torch.finfo(torch.bfloat16).max / 2
    rows = x.float().reshape(-1, x.shape[-1]).clamp(-most, most)
    scheme = QuantizationArgs(num_bits=4, type="int", strategy="channel", symmetric=False, zp_dtype=torch.int8)
    least, largest = rows.amin(-1, keepdim=True), rows.amax(-1, keepdim=True)
    scale, zero = calculate_qparams(least, largest, scheme)
    return fake_quantize(rows, scale, zero, scheme).reshape(x.shape)


def e5m2_per_token_head(x: Tensor) -> Tensor:
    """compressed-tensors has no E5M2: ml_dtypes under the same scale."""
    y = x.float()
    scale = y.abs().amax(-1, keepdim=True) / 57344
    return torch.where(scale == 0, 0.0, element("fp8_e5m2", y / scale) * scale)


def nvfp4(x: Tensor) -> Tensor:
    """Each E4M3 scale and E2M1 element by ml_dtypes."""
    blocks = x.float().reshape(-1, 16)
    scale = element("fp8_e4m3", blocks.abs().amax(-1, keepdim=True) / 6).clamp(min=2.0**-9)
    return (element("e2m1", blocks / scale) * scale).reshape(x.shape)


def mx(name: str, largest: int, x: Tensor) -> Tensor:
    """By the words of OCP MX 1.0, section 6.3, in float64: scales from the logarithm, elements by ml_dtypes."""
    blocks = x.double().numpy().reshape(-1, 32)
    with np.errstate(divide="ignore"):
        power = np.floor(np.log2(abs(blocks).max(axis=1, keepdims=True))) - largest
    scale = np.exp2(power.clip(min=-127))
    elements = element(name, torch.from_numpy((blocks / scale).astype(np.float32))).double().numpy()
    return torch.from_numpy((elements * scale).astype(np.float32)).reshape(x.shape)


def compressed_nvfp4(x: Tensor) -> Tensor:
    """compressed-tensors' FP4 under its own E4M3 scales of 16."""
    blocks = x.float().reshape(-1, 16)
    scheme = QuantizationArgs(num_bits=4, type="float", strategy="channel", scale_dtype=torch.float8_e4m3fn)
    scale, _ = calculate_qparams(blocks.amin(-1, keepdim=True), blocks.amax(-1, keepdim=True), scheme)
    return fake_quantize(blocks, scale.float(), None, scheme).reshape(x.shape)


def compressed_mx(bits: int, x: Tensor) -> Tensor:
    """compressed-tensors' MX, under its own scales of 32."""
    blocks = x.float().reshape(-1, 32)
    scheme = QuantizationArgs(num_bits=bits, type="float", strategy="group", group_size=32, scale_dtype=torch.uint8)
    scale, _ = calculate_qparams(blocks.amin(-1, keepdim=True), blocks.amax(-1, keepdim=True), scheme)
    return fake_quantize(blocks, scale.float(), None, scheme).reshape(x.shape)


ORACLES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "fp8_e4m3": partial(element, "fp8_e4m3"),
    "fp8_e5m2": partial(element, "fp8_e5m2"),
    "fp8_e4m3_per_token_head": partial(per_token_head, "float", 8, 448),
    "fp8_e5m2_per_token_head": e5m2_per_token_head,
    "int8": partial(per_token_head, "int", 8, 127),
    "int4": int4,
    "nvfp4": nvfp4,
    "mxfp4": partial(mx, "e2m1", 2),
    "mxfp8": partial(mx, "fp8_e4m3", 8),
}
"""Every format as others would round it."""

WHOLE: Mapping[str, tuple[Callable[[Tensor], Tensor], int, Callable[[Tensor], Tensor]]] = {
    "nvfp4": (compressed_nvfp4, 16, lambda largest: largest > 6 * 2.0**-10),
    "mxfp4": (partial(compressed_mx, 4), 32, lambda largest: _floors(largest, 2)),
    "mxfp8": (partial(compressed_mx, 8), 32, lambda largest: _floors(largest, 8)),
}
"""compressed-tensors' whole formats, with their block and the largest magnitudes whose scale it takes from the format's
own rule: it stores nothing of an NVFP4 block whose scale rounds to zero, and it rounds MX scales up from 1.75 of a
power of two, where OCP takes the floor.
"""


def differences(name: str, x: Tensor, ours: Tensor) -> dict[str, tuple[int, int]]:
    """(values that differ, values compared) by what is compared."""
    found = {"element types": (int((ours != ORACLES[name](x)).sum()), ours.numel())}
    if name in WHOLE:
        theirs, block, alike = WHOLE[name]
        largest = x.float().abs().unflatten(-1, (-1, block)).amax(-1)
        counted = (alike(largest) | (largest == 0)).repeat_interleave(block, -1)
        found["whole"] = int(((ours != theirs(x)) & counted).sum()), int(counted.sum())
    return found


def _floors(largest: Tensor, exponent: int) -> Tensor:
    """Whether ``largest`` over 2 ** ``exponent`` is a normal number, and rounded down to a power of two by both."""
    mantissa, power = torch.frexp(largest)  # 0.5 <= mantissa < 1
    return (mantissa < 0.875) & (power - 1 - exponent > -126)


def all_bf16() -> Tensor:
    """Every finite BF16 value, [65280]."""
    values = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    return values[values.isfinite()]


def codes(name: str) -> Tensor:
    """Every finite value of an element type, float32, in order."""
    dtype, _ = ELEMENTS[name]
    values = np.arange(16 if name == "e2m1" else 256, dtype=np.uint8).view(dtype).astype(np.float32)
    return torch.from_numpy(np.unique(values[np.isfinite(values)]))


def ties(name: str) -> Tensor:
    """The midpoints between the codes, each with its two neighbours in float32."""
    values = codes(name)
    middle = (values[1:] + values[:-1]) / 2
    return torch.cat([middle, torch.nextafter(middle, middle * 0), torch.nextafter(middle, middle * 2)])


def inputs(tokens: int) -> dict[str, Tensor]:
    """Heads of 64 to compare formats on, by what they are: [..., 64]; those of random values are [tokens, 3, 64]."""
    generator = torch.Generator().manual_seed(0)
    every = all_bf16()
    shuffled = every[torch.randperm(len(every), generator=generator)]
    points = torch.cat([torch.cat([codes(name), ties(name)]) for name in ELEMENTS])
    led = torch.cat([torch.full((len(points), 1), 6.0), points.unsqueeze(1).expand(-1, 63)], 1)
    normal = torch.randn(tokens, 3, 64, generator=generator)
    tails = normal / torch.randn(tokens, 3, 64, generator=generator).abs().clamp(min=1e-3)
    spiked = normal.clone()
    spiked[..., ::16] *= 300
    made = {
        "every BF16 value, in order": every.view(-1, 64),
        "every BF16 value, shuffled": shuffled.view(-1, 64),
        "every code and tie under a block's largest of 6": led,
        "normal": normal.bfloat16(),
        "normal, float32": normal,
        "heavy tails": tails.bfloat16(),
        "an outlier a block": spiked.bfloat16(),
        "blocks of zeros": torch.where(torch.arange(64) < 32, 0.0, normal).bfloat16(),
    }
    return made | {f"normal x {size:g}": (normal * size).bfloat16() for size in (1e-38, 1e-4, 0.02, 40.0, 1e4, 1e37)}
