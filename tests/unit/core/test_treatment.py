"""What a treatment asks for, of K and V, layer by layer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvquant_eval.core.codec import DataError
from kvquant_eval.core.scales import LayerScales, ScaleSource
from kvquant_eval.core.treatment import (
    KVTreatment,
    Realisation,
    check_source,
    is_skip_entry,
    skipped_index,
    spans,
    together,
)

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


CALIBRATED = (LayerScales(index=0, k=(0.5,), v=(2.0,)),)
FP8 = KVTreatment(name="arm", dtype="fp8", realisation=Realisation.REFERENCE)


def test_the_scales_that_a_layer_must_have() -> None:
    unit = LayerScales(index=0, k=(1.0,), v=(1.0,))
    native = replace(FP8, realisation=Realisation.NATIVE)
    assert FP8.scales_at(0) == unit
    assert native.scales_at(0) is None, "whatever the engine takes"
    assert replace(native, scales=ScaleSource.UNIT).scales_at(0) == unit
    assert replace(native, layer_scales=CALIBRATED).scales_at(0) == CALIBRATED[0]
    assert replace(FP8, layer_scales=CALIBRATED).scales_at(1) is None


@pytest.mark.parametrize(
    "treatment",
    [
        FP8,
        replace(FP8, scales=ScaleSource.UNIT, realisation=Realisation.NATIVE),
        replace(FP8, scales=ScaleSource.CALIBRATED, layer_scales=CALIBRATED, v="nvfp4"),
        replace(FP8, dtype="int8"),
    ],
)
def test_sources_that_a_treatment_can_have(treatment: KVTreatment) -> None:
    check_source("kv.arm", treatment)


@pytest.mark.parametrize(
    ("treatment", "rule", "remedy"),
    [
        (
            replace(FP8, dtype="int8", scales=ScaleSource.UNIT),
            "scales: a format of a fixed range (fp8_e4m3, fp8_e5m2, nvfp4) where scales are unit, got 'int8'",
            "leave scales out",
        ),
        (
            replace(FP8, scales=ScaleSource.CALIBRATED),
            "scales_from: scales.json of a calibration, got none",
            "set kv.arm.scales_from=...",
        ),
        (
            replace(FP8, layer_scales=CALIBRATED),
            "scales: calibrated where scales_from is set, got 'checkpoint'",
            "leave one of them out",
        ),
        (
            replace(FP8, realisation=Realisation.NATIVE, scales=ScaleSource.CALIBRATED, layer_scales=CALIBRATED),
            (
                "scales: checkpoint or unit for a native dtype, as an engine takes scales from its checkpoint "
                "alone, got 'calibrated'"
            ),
            "gate the checkpoint that calibrate exported, or set kv.arm.realisation=reference",
        ),
    ],
)
def test_sources_that_it_cannot_have(treatment: KVTreatment, rule: str, remedy: str) -> None:
    with pytest.raises(DataError) as caught:
        check_source("kv.arm", treatment)
    assert str(caught.value) == f"kv.arm.{rule}; {remedy}"


@pytest.mark.parametrize(
    ("layers", "said"), [((), []), ((7,), ["7"]), ((0, 1, 2, 5), ["0to2", "5"]), ((29, 1, 0), ["0to1", "29"])]
)
def test_layers_in_few_words(layers: tuple[int, ...], said: list[str]) -> None:
    assert spans(layers) == said
