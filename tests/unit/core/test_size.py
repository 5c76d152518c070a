"""Bytes a token of formats, against what their definitions add up to."""

from __future__ import annotations

import pytest

from kvquant_eval.core.engine import EngineFacts, LayerFacts
from kvquant_eval.core.size import BITS, bits, nominal_bytes
from kvquant_eval.core.treatment import KVTreatment, Realisation
from kvquant_eval.worker.formats import FORMATS


def plain(layers: int, heads: int, size: int) -> EngineFacts:
    """An arm that stores BF16."""
    one = [
        LayerFacts(
            name=f"layers.{index}", index=index, backend="X", kv_dtype="bfloat16", storage="bfloat16",
            bytes_per_token=2 * 2 * heads * size, k_scale=None, v_scale=None, k_scale_tensor=None, v_scale_tensor=None,
            head_size=size,
        )
        for index in range(layers)
    ]  # fmt: skip
    return EngineFacts(
        engine="x", version="1", device="x", model_dtype="bfloat16", layers=(tuple(one),), capacity_tokens=1,
        block_size=1, settings={}, versions={},
    )  # fmt: skip


def reference(dtype: str = "", **changes: str | tuple[str, ...]) -> KVTreatment:
    return KVTreatment(name="x", dtype=dtype, realisation=Realisation.REFERENCE, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fmt", "expected"),
    [
        ("fp8_e4m3", 8.0),
        ("nvfp4", 4.5),  # one E4M3 scale for 16 values
        ("mxfp4", 4.25),  # one E8M0 scale for 32
        ("mxfp8", 8.25),
        ("int8", 8.5),  # one float32 scale for a head of 64
        ("int4", 4.0 + 36 / 64),  # and a whole zero point
        ("bfloat16", 16.0),
        ("sixteen_bits_of_fun", None),
    ],
)
def test_bits_a_value(fmt: str, expected: float | None) -> None:
    assert bits(fmt, 64) == expected


def test_every_reference_format_has_a_size() -> None:
    assert BITS.keys() >= FORMATS.keys()


@pytest.mark.parametrize(
    ("treatment", "share"),
    [
        (reference("fp8_e4m3"), 0.5),
        (reference("nvfp4"), 4.5 / 16),
        (reference("fp8_e4m3", skip_layers=("0",)), 0.75),
        (reference("fp8_e4m3", skip_layers=("0.k",)), 0.625),
        (reference(k="fp8_e4m3", v="nvfp4"), (8 + 4.5) / 32),
        (reference("unheard_of"), None),
    ],
)
def test_bytes_of_a_mixed_cache(treatment: KVTreatment, share: float | None) -> None:
    facts = plain(2, 3, 64)
    expected = None if share is None else share * 2 * 768
    assert nominal_bytes(treatment, facts) == expected
