"""What a treatment asks for, of K and V, layer by layer."""

from __future__ import annotations

import pytest

from kvquant_eval.core.treatment import KVTreatment, Realisation, is_skip_entry, skipped_index, together

MIXED = KVTreatment(
    name="mixed", k="fp8", v="nvfp4", realisation=Realisation.REFERENCE, skip_layers=("0", "3.k", "4.v", "5.k", "5.v")
)


def test_one_format_for_both() -> None:
    treatment = KVTreatment(name="arm", dtype="fp8")
    assert treatment.formats == ("fp8_e4m3", "fp8_e4m3")
    assert (treatment.requested, treatment.engine_dtype) == ("fp8_e4m3", "fp8")


def test_a_format_of_its_own_for_k_and_for_v() -> None:
    assert MIXED.formats == ("fp8_e4m3", "nvfp4")
    assert (MIXED.requested, MIXED.engine_dtype) == ("k:fp8_e4m3,v:nvfp4", "bfloat16")


def test_one_half_may_stand_in_for_the_dtype() -> None:
    assert KVTreatment(name="arm", dtype="fp8_e5m2", v="int4").requested == "k:fp8_e5m2,v:int4"


@pytest.mark.parametrize(
    ("layer", "k", "v"),
    [
        (0, "bfloat16", "bfloat16"),
        (1, "fp8_e4m3", "nvfp4"),
        (3, "bfloat16", "nvfp4"),
        (4, "fp8_e4m3", "bfloat16"),
        (5, "bfloat16", "bfloat16"),
        (30, "fp8_e4m3", "nvfp4"),
    ],
)
def test_layers_and_halves_that_stay_as_they_are(layer: int, k: str, v: str) -> None:
    assert MIXED.at(layer) == (k, v)


@pytest.mark.parametrize("entry", ["0", "29", "7.k", "7.v", "sliding_window"])
def test_entries_of_skip_layers(entry: str) -> None:
    assert is_skip_entry(entry)
    assert skipped_index(entry) == (None if entry == "sliding_window" else int(entry.split(".")[0]))


@pytest.mark.parametrize(
    "entry", ["", "x", "-1", "01", "007.k", "9" * 5000, "1.5", "7.q", ".k", "7.k.v", "٣", "7 ", "sliding"]
)
def test_no_entries_of_skip_layers(entry: str) -> None:
    assert not is_skip_entry(entry)


def test_names() -> None:
    assert together("int8", "int8") == "int8"
    assert together("int8", "bfloat16") == "k:int8,v:bfloat16"
