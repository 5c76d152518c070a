"""What the workers report against what was asked for, and against the baseline."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from kvquant_eval.core.attest import (
    bytes_per_token,
    effective_dtype,
    judge_arm,
    judge_baseline,
    judge_pair,
    layers_quantized,
    refuse_impossible,
)
from kvquant_eval.core.codec import DataError
from kvquant_eval.core.engine import EngineFacts, LayerFacts
from kvquant_eval.core.records import Finding
from kvquant_eval.core.scales import LayerScales, ScaleSource
from kvquant_eval.core.treatment import KVTreatment, Realisation, canonical_dtype
from tests.fakes.records import facts, layer, treatment

REFERENCE = Realisation.REFERENCE


def found(wanted: KVTreatment, *layers: LayerFacts) -> list[str]:
    findings = judge_arm("arm", wanted, facts(*layers))
    assert all(finding.where == "arm" and finding.invalid for finding in findings)
    return [finding.what for finding in findings]


@pytest.mark.parametrize(
    ("wanted", "ran"),
    [
        ("fp8_e4m3", "fp8_e4m3"),
        ("fp8", "fp8_e4m3"),
        ("fp8_e4m3", "fp8"),
        ("bfloat16", "bfloat16"),
        ("fp8_e5m2", "fp8_e5m2"),
    ],
)
def test_the_dtype_that_was_asked_for(wanted: str, ran: str) -> None:
    assert found(treatment(wanted), layer(0, ran), layer(1, ran)) == []


def test_auto_is_judged_by_what_is_stored() -> None:
    assert found(treatment("auto"), layer(0, "auto", storage="bfloat16")) == []
    assert "layers run float8_e4m3fn" in found(treatment("auto"), layer(0, "auto", storage="float8_e4m3fn"))[0]


def test_a_checkpoint_that_flips_the_baseline_to_fp8() -> None:
    assert found(treatment("bfloat16"), layer(0, "fp8_e4m3"), layer(1, "fp8_e4m3")) == [
        "requested bfloat16, but 2 of 2 layers run fp8_e4m3 (first: layer 0)"
    ]


def test_an_engine_that_ignores_the_dtype() -> None:
    assert found(treatment("fp8_e4m3"), layer(0), layer(1)) == [
        "requested fp8_e4m3, but 2 of 2 layers run bfloat16 (first: layer 0)",
        "requested fp8_e4m3, but no layer is quantized",
    ]


def test_one_layer_left_out() -> None:
    assert found(treatment("fp8_e4m3"), layer(0, "fp8_e4m3"), layer(1), layer(2, "fp8_e4m3")) == [
        "requested fp8_e4m3, but 1 of 3 layers run bfloat16 (first: layer 1)"
    ]


def test_another_fp8_is_another_dtype() -> None:
    assert "run fp8_e5m2" in found(treatment("fp8_e4m3"), layer(0, "fp8_e5m2"))[0]


def test_no_layer_read_back() -> None:
    assert found(treatment("fp8_e4m3")) == ["no attention layer could be read back"]


def test_a_wrong_layer_of_the_second_worker() -> None:
    both = facts(layers=((layer(0, "fp8_e4m3"),), (layer(0),)))
    (finding,) = judge_arm("arm", treatment("fp8_e4m3"), both)
    assert finding.what == "requested fp8_e4m3, but 1 of 2 layers run bfloat16 (first: layer 0)"


def test_listed_layers_are_skipped() -> None:
    wanted = treatment("fp8_e4m3", Realisation.NATIVE, "1")
    assert found(wanted, layer(0, "fp8_e4m3"), layer(1)) == []
    assert found(wanted, layer(0, "fp8_e4m3"), layer(1, "fp8_e4m3")) == ["layer 1 should be skipped, runs fp8_e4m3"]


def test_a_skipped_layer_stays_as_the_model_computes() -> None:
    wanted = treatment("fp8_e4m3", Realisation.NATIVE, "1")
    assert found(wanted, layer(0, "fp8_e4m3"), layer(1, "auto", storage="float16")) == []


def test_a_skipped_layer_that_is_not_there() -> None:
    wanted = treatment("fp8_e4m3", Realisation.NATIVE, "7")
    assert found(wanted, layer(0, "fp8_e4m3"), layer(1, "fp8_e4m3")) == [
        "skip_layers entry '7' matches no layer (0..1)"
    ]


def test_sliding_window_layers_may_stay_unquantized() -> None:
    wanted = treatment("fp8_e4m3", Realisation.NATIVE, "sliding_window")
    assert found(wanted, layer(0, "fp8_e4m3"), layer(1)) == []
    assert "requested fp8_e4m3, but no layer is quantized" in found(wanted, layer(0), layer(1))


def test_sliding_window_does_not_excuse_another_quantized_dtype() -> None:
    wanted = treatment("fp8_e4m3", Realisation.NATIVE, "sliding_window")
    assert found(wanted, layer(0, "fp8_e5m2"), layer(1)) != []


@pytest.mark.parametrize("storage", ["bfloat16", "float32"])
def test_a_quantized_name_over_unquantized_storage(storage: str) -> None:
    """The string says FP8, the tensor is BF16 and as large as ever: nothing was quantized."""
    assert found(treatment("fp8_e4m3"), layer(0, "fp8_e4m3", storage=storage, bytes_per_token=64.0)) != []


def test_reference_formats_are_hooked_over_bf16_storage() -> None:
    wanted = treatment("int8", REFERENCE)
    assert found(wanted, layer(0, format="int8"), layer(1, format="int8")) == []
    assert found(wanted, layer(0, format="int8"), layer(1)) == [
        "requested int8, but 1 of 2 layers run bfloat16 (first: layer 1)"
    ]
    assert "run nvfp4 in bfloat16" in found(wanted, layer(0, format="nvfp4"))[0]
    assert "run int8 in fp8_e4m3" in found(wanted, layer(0, "fp8_e4m3", format="int8"))[0]


def test_halves_of_layers_are_judged_by_themselves() -> None:
    wanted = KVTreatment(name="arm", k="int8", v="nvfp4", realisation=REFERENCE, skip_layers=("1.k", "2"))
    runs = [layer(0, format="k:int8,v:nvfp4"), layer(1, format="k:bfloat16,v:nvfp4"), layer(2)]
    assert found(wanted, *runs) == []
    assert found(wanted, runs[0], replace(runs[0], index=1), runs[2]) == [
        "requested k:int8,v:nvfp4, but 1 of 3 layers run k:int8,v:nvfp4 in bfloat16 (first: layer 1)"
    ]
    assert "layer 2 should be skipped" in found(wanted, *runs[:2], layer(2, format="int8"))[0]
    assert found(replace(wanted, skip_layers=("4.v",)), layer(0, format="k:int8,v:nvfp4"))[0] == (
        "skip_layers entry '4.v' matches no layer (0..0)"
    )


def test_a_hook_left_in_a_native_arm() -> None:
    assert "run int8 in bfloat16" in found(treatment("bfloat16"), layer(0, format="int8"))[0]


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("name", ["k_scale", "v_scale"])
def test_scales_that_cannot_be(name: str, scale: float) -> None:
    changes: dict[str, Any] = {name: scale}
    assert found(treatment("fp8_e4m3"), layer(0, "fp8_e4m3", **changes)) == [f"layer 0: {name} is {scale}"]


def test_a_scale_applied_to_one_copy_only() -> None:
    assert found(treatment("fp8_e4m3"), layer(0, "fp8_e4m3", v_scale=0.25, v_scale_tensor=1.0)) == [
        "layer 0: v_scale is 0.25 in one place and 1.0 in another"
    ]


def test_a_scale_and_its_copy_may_differ_by_a_float32() -> None:
    assert found(treatment("fp8_e4m3"), layer(0, "fp8_e4m3", k_scale=0.1, k_scale_tensor=0.10000000149)) == []


def test_layers_without_scales() -> None:
    none = {"k_scale": None, "v_scale": None, "k_scale_tensor": None, "v_scale_tensor": None}
    assert found(treatment("bfloat16"), layer(0, **none)) == []


def test_calibrated_scales_that_are_all_the_same_are_worth_a_warning() -> None:
    """Scales of a real calibration differ between layers; one value everywhere is a stub."""
    layers = [layer(i, "fp8_e4m3", k_scale=0.5, k_scale_tensor=0.5, v_scale=0.5, v_scale_tensor=0.5) for i in range(4)]
    findings = judge_arm("arm", treatment("fp8_e4m3"), facts(*layers))
    assert [finding.invalid for finding in findings] == [False]


def test_a_backend_that_does_not_implement_the_dtype() -> None:
    assert found(treatment("nvfp4"), layer(0, "nvfp4")) == ["CPU_ATTN does not implement nvfp4"]
    assert found(treatment("nvfp4"), layer(0, "nvfp4", backend="FLASHINFER")) == []
    assert found(treatment("nvfp4"), layer(0, "nvfp4", backend="SOME_ATTN")) == []


def pair(accepted: tuple[str, ...] = (), **changes: Any) -> list[Finding]:
    return judge_pair("arm", facts(layer(0)), facts(layer(0), **changes), accepted)


def test_equal_arms_have_no_difference_and_the_treatment_is_none() -> None:
    assert pair() == []
    assert judge_pair("arm", facts(layer(0)), facts(layer(0, "fp8_e4m3", k_scale=0.1), capacity_tokens=2000)) == []


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"settings": {"cache_config.enable_prefix_caching": False}}, "cache_config.enable_prefix_caching"),
        ({"settings": {}}, "cache_config.enable_prefix_caching"),
        ({"settings": {"cache_config.enable_prefix_caching": True, "new": 1}}, "new"),
        ({"version": "0.33.0"}, "engine"),
        ({"device": "H200"}, "device"),
        ({"model_dtype": "float16"}, "model_dtype"),
        ({"block_size": 32}, "block_size"),
        ({"versions": {"torch": "3"}}, "versions.torch"),
        ({"layers": ((layer(0, backend="FLASHINFER"),),)}, "attention_backend"),
        ({"layers": ((layer(0, kernel="amx"),),)}, "attention_backend"),
        ({"layers": ((layer(0),), (layer(0),))}, "workers"),
        ({"layers": ((layer(0), layer(1)),)}, "layers"),
    ],
)
def test_any_other_difference_is_named_and_invalid(changes: dict[str, Any], named: str) -> None:
    (finding,) = pair(**changes)
    assert finding.invalid
    assert finding.what.startswith(f"{named} differs from the baseline: ")
    assert finding.what.endswith("; list it in gate.accept_differences if it is meant")
    (accepted,) = pair(accepted=(named,), **changes)
    assert not accepted.invalid
    assert accepted.what.endswith("(accepted)")


def test_effective_dtype_in_words() -> None:
    assert effective_dtype(facts(layer(0, "fp8"), layer(1, "fp8_e4m3"))) == "fp8_e4m3"
    assert effective_dtype(facts(layer(0, "fp8_e4m3"), layer(1))) == "bfloat16+fp8_e4m3"
    assert effective_dtype(facts(layer(0, format="int8"))) == "int8 in bfloat16"
    assert effective_dtype(facts(layer(0, "auto", storage="float16"))) == "float16"
    assert effective_dtype(facts()) == "none"


def test_quantized_layers_and_bytes() -> None:
    mixed = facts(layer(0, "fp8_e4m3"), layer(1), layer(2, format="int8"))
    assert layers_quantized(mixed) == ([0, 2], [1])
    assert bytes_per_token(mixed) == 32 + 64 + 64
    two_workers = facts(layers=((layer(0),), (layer(0),)))
    assert bytes_per_token(two_workers) == 64
    assert bytes_per_token(facts(layers=())) == 0


@pytest.mark.parametrize(("dtype", "name"), [("fp8", "fp8_e4m3"), ("half", "float16"), ("bfloat16", "bfloat16")])
def test_one_name_for_each_dtype(dtype: str, name: str) -> None:
    assert canonical_dtype(dtype) == name


@pytest.mark.parametrize("dtype", ["bfloat16", "auto", "fp8", "fp8_e4m3", "fp8_e5m2"])
@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_possible_dtypes_are_let_through(dtype: str, platform: str) -> None:
    refuse_impossible(treatment(dtype), platform)


def test_a_cpu_refuses_what_it_would_decode_wrongly_and_a_gpu_does_not() -> None:
    refuse_impossible(treatment("nvfp4"), "gpu")
    refuse_impossible(treatment("int8_per_token_head"), "gpu")
    for dtype in ("nvfp4", "int8_per_token_head", "turboquant_k8v4"):
        with pytest.raises(DataError, match=rf"^kv\.arm\.dtype: .*got '{dtype}', which it would accept and decode"):
            refuse_impossible(treatment(dtype), "cpu")


def test_a_misspelt_dtype_gets_the_nearest() -> None:
    with pytest.raises(DataError, match=r"got 'fp8_e4m4'; did you mean 'fp8_e4m3'\?"):
        refuse_impossible(treatment("fp8_e4m4"), "gpu")


def test_a_reference_format_is_the_preparers_business() -> None:
    refuse_impossible(treatment("my_own_format", REFERENCE), "cpu")


def test_the_engine_of_a_reference_arm_is_asked_for_bf16() -> None:
    assert treatment("int8", REFERENCE).engine_dtype == "bfloat16"
    assert treatment("fp8_e4m3").engine_dtype == "fp8_e4m3"


def test_facts_are_findings_for_every_arm_by_name() -> None:
    finding = judge_arm("fp8", treatment("fp8_e4m3"), EngineFacts(**{**vars(facts()), "layers": ()}))[0]
    assert finding == Finding(where="fp8", what="no attention layer could be read back", invalid=True)


def test_a_baseline_that_is_quantized() -> None:
    assert judge_baseline("baseline", facts(layer(0), layer(1))) == []
    for other in (layer(1, "fp8_e4m3"), layer(1, format="int8")):
        (finding,) = judge_baseline("baseline", facts(layer(0), other))
        assert finding.invalid
        assert finding.what.startswith("a baseline must not be quantized, 1 layers run ")


ASKED = (LayerScales(index=0, k=(0.5,), v=(2.0,)), LayerScales(index=1, k=(0.25,), v=(4.0,)))
RUNNING = tuple(
    layer(s.index, "fp8_e4m3", k_scale=s.k[0], k_scale_tensor=s.k[0], v_scale=s.v[0], v_scale_tensor=s.v[0])
    for s in ASKED
)
NATIVE = replace(treatment("fp8_e4m3"), layer_scales=ASKED)


def test_the_scales_that_were_asked_for() -> None:
    assert found(NATIVE, *RUNNING) == []
    assert found(replace(NATIVE, skip_layers=("1",)), RUNNING[0], layer(1)) == [], "what is not stored has no scale"
    hooked = [layer(s.index, format="fp8_e4m3", k_scales=s.k, v_scales=s.v) for s in ASKED]
    assert found(replace(NATIVE, realisation=REFERENCE), *hooked) == []


def test_a_scale_that_got_lost_on_the_way_is_named() -> None:
    lost = replace(RUNNING[1], v_scale=1.0, v_scale_tensor=1.0)
    assert found(NATIVE, RUNNING[0], lost) == [
        (
            "1 scales are not those that were asked for (checkpoint), lost or changed on the way: "
            "layer 1: v_scale is 1 and should be 4"
        )
    ]
    assert "layer 1: none for it" in found(replace(NATIVE, layer_scales=ASKED[:1]), *RUNNING)[0]
    assert "k_scale is none" in found(NATIVE, RUNNING[0], replace(RUNNING[1], k_scale=None, k_scale_tensor=None))[0]


def test_unit_scales_are_one_everywhere() -> None:
    unit = replace(treatment("fp8_e4m3"), scales=ScaleSource.UNIT)
    assert found(unit, layer(0, "fp8_e4m3"), layer(1, "fp8_e4m3")) == []
    assert "(unit), lost or changed on the way: layer 0: k_scale is 0.5 and should be 1" in found(unit, *RUNNING)[0]
    assert found(replace(unit, scales=ScaleSource.CHECKPOINT), *RUNNING) == [], "whatever the engine takes"


def test_a_hook_rounds_under_the_scales_that_were_asked_for() -> None:
    wrong = [layer(i, format="fp8_e4m3", k_scales=(1.0,), v_scales=(1.0,)) for i in (0, 1)]
    said = found(replace(NATIVE, realisation=REFERENCE, scales=ScaleSource.CALIBRATED), *wrong)
    assert said[0].startswith("4 scales are not those that were asked for (calibrated)")


def test_a_half_that_stays_as_it_is_has_no_scale_to_answer_for() -> None:
    wanted = replace(NATIVE, realisation=REFERENCE, skip_layers=("0.k",))
    layers = (
        layer(0, format="k:bfloat16,v:fp8_e4m3", k_scales=(1.0,), v_scales=(2.0,)),
        layer(1, format="fp8_e4m3", k_scales=(0.25,), v_scales=(4.0,)),
    )
    assert found(wanted, *layers) == []


@pytest.mark.parametrize(
    ("workers", "right"),
    [
        ([(0.5, 1.0, 2.0, 4.0)], True),
        ([(0.5, 1.0), (2.0, 4.0)], True),
        ([(2.0, 4.0), (0.5, 1.0)], False),
        ([(0.5,), (0.5,), (1.0,), (1.0,), (2.0,), (2.0,), (4.0,), (4.0,)], True),
        ([(0.5, 1.0, 2.0)], False),
        ([(4.0,)], False),
    ],
)
def test_one_scale_a_head_over_the_workers_of_an_engine(workers: list[tuple[float, ...]], right: bool) -> None:
    heads = (0.5, 1.0, 2.0, 4.0)
    wanted = replace(NATIVE, layer_scales=(LayerScales(index=0, k=heads, v=(1.0,)),))
    layers = [
        layer(0, "fp8_e4m3", k_scale=max(each), k_scale_tensor=max(each), k_scales=each, v_scales=(1.0,))
        for each in workers
    ]
    findings = judge_arm("arm", wanted, replace(facts(), layers=tuple((each,) for each in layers)))
    assert (not findings) is right


@pytest.mark.parametrize("half", ["k", "v"])
def test_one_scale_of_many_that_cannot_be_right(half: str) -> None:
    heads = layer(0, "fp8_e4m3", **{f"{half}_scales": (1.0, math.nan)})
    assert found(NATIVE, heads, RUNNING[1])
