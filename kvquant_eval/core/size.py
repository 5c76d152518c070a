"""How many bytes of K and V a token takes in a format, whatever an engine without it stores instead."""

from __future__ import annotations

from collections.abc import Mapping

from kvquant_eval.core.engine import EngineFacts, LayerFacts
from kvquant_eval.core.treatment import UNQUANTIZED, KVTreatment

_PLAIN = 16
_FP32 = 32
BITS: Mapping[str, float] = {
    "fp8_e4m3": 8, "fp8_e5m2": 8, "int8": 8, "int4": 4, "nvfp4": 4 + 8 / 16, "mxfp4": 4 + 8 / 32, "mxfp8": 8 + 8 / 32,
    "fp8_e4m3_per_token_head": 8, "fp8_e5m2_per_token_head": 8, "identity": _PLAIN, "placebo": _PLAIN,
    "int8_per_token_head": 8, "int4_per_token_head": 4, "fp8_per_token_head": 8,
}  # fmt: skip
"""Bits a value, block scales among them."""
_PER_TOKEN_HEAD: Mapping[str, float] = {
    "int8": _FP32, "fp8_e4m3_per_token_head": _FP32, "fp8_e5m2_per_token_head": _FP32, "int4": _FP32 + 4,
    "int8_per_token_head": _FP32, "int4_per_token_head": _FP32 + 4, "fp8_per_token_head": _FP32,
}  # fmt: skip
"""Bits of scale and zero point that each token has for each head."""


def bits(fmt: str, head_size: int) -> float | None:
    """Bits a value of a head of ``head_size`` values takes; None for a format whose size is not known here."""
    if fmt in UNQUANTIZED:
        return _PLAIN
    return BITS[fmt] + _PER_TOKEN_HEAD.get(fmt, 0) / head_size if fmt in BITS and head_size else BITS.get(fmt)


def nominal_bytes(treatment: KVTreatment, plain: EngineFacts) -> float | None:
    """Bytes a token of K and V of all layers of one worker under ``treatment``; None where a format's size is not
    known. ``plain`` are the facts of an arm that stores 16 bits a value.
    """
    sizes = [_layer(treatment, layer) for layer in (plain.layers[0] if plain.layers else ())]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def _layer(treatment: KVTreatment, layer: LayerFacts) -> float | None:
    """K and V take half of the plain bytes each, times the bits a value by 16."""
    found = [bits(fmt, layer.head_size) for fmt in treatment.at(layer.index)]
    return None if None in found else layer.bytes_per_token * sum(b for b in found if b is not None) / (2 * _PLAIN)
