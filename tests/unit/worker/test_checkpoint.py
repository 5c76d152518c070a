"""The scales that a checkpoint brings: read under every name that vLLM takes, refused where they cannot be right."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from kvquant_eval.core.codec import DataError, to_json
from kvquant_eval.core.records import Prepared
from kvquant_eval.core.scales import CALIBRATION, CalibratedHalf, CalibratedLayer, Calibration, LayerScales, Per, hashes
from kvquant_eval.core.treatment import KVTreatment, Realisation
from kvquant_eval.io.export import SCALE_FILE, export, why_not
from kvquant_eval.worker.checkpoint import checkpoint_scales, taken
from kvquant_eval.worker.folder import check_folder
from tests.fakes.model import write_model

FP8 = KVTreatment(name="fp8", dtype="fp8_e4m3")
SCHEME = {"quantization_config": {"kv_cache_scheme": {"num_bits": 8}}}
RIGHT = {f"model.layers.{i}.self_attn.{half}_scale": torch.tensor([0.5 * (i + 1)]) for i in (0, 1) for half in "kv"}


def write(folder: Path, tensors: Mapping[str, Tensor]) -> Path:
    save_file(dict(tensors), folder / "model.safetensors")
    return folder


def test_scales_of_each_layer(tmp_path: Path) -> None:
    assert checkpoint_scales(write(tmp_path, RIGHT)) == (
        LayerScales(index=0, k=(0.5,), v=(0.5,)),
        LayerScales(index=1, k=(1.0,), v=(1.0,)),
    )


@pytest.mark.parametrize(
    "names",
    [
        ("self_attn.k_scale", "self_attn.v_scale"),
        ("self_attn.attn.k_scale", "self_attn.attn.v_scale"),
        ("self_attn.k_proj.k_scale", "self_attn.v_proj.v_scale"),
        ("self_attn.k_cache.scale", "self_attn.v_cache.scale"),
        ("self_attn.kv_scale",),
    ],
)
def test_the_names_that_vllm_takes(tmp_path: Path, names: tuple[str, ...]) -> None:
    others = {"model.layers.7.self_attn.k_proj.weight_scale": torch.ones(1), "model.norm.weight": torch.ones(2)}
    mine = {f"model.layers.7.{name}": torch.tensor(0.25).bfloat16() for name in names}
    assert checkpoint_scales(write(tmp_path, mine | others)) == (LayerScales(index=7, k=(0.25,), v=(0.25,)),)


def test_one_scale_a_head(tmp_path: Path) -> None:
    heads = {f"model.layers.0.self_attn.{half}_scale": torch.tensor([0.5, 2.0]).reshape(2, 1, 1) for half in "kv"}
    found = (LayerScales(index=0, k=(0.5, 2.0), v=(0.5, 2.0)),)
    assert taken(write(tmp_path, heads), {}, [FP8], per_tensor=False) == (found, ())
    with pytest.raises(DataError, match=r"^kv\.fp8\.scales: one scale a layer for this attention, got one a head in"):
        taken(tmp_path, {}, [FP8], per_tensor=True)


@pytest.mark.parametrize("scale", [0.0, -0.5, float("nan"), float("inf")])
def test_what_cannot_be_a_scale(tmp_path: Path, scale: float) -> None:
    name = "model.layers.1.self_attn.v_scale"
    with pytest.raises(DataError) as caught:
        checkpoint_scales(write(tmp_path, {**RIGHT, name: torch.tensor([scale])}))
    rule = f"KV scales over 0 and finite, got {scale} in {name}"
    assert str(caught.value) == f"{tmp_path / 'model.safetensors'}: {rule}; restore the file, or calibrate"


def test_half_a_layer_is_lost(tmp_path: Path) -> None:
    """VLLM would run V of that layer at 1.0, or at K's scale."""
    lost = {name: tensor for name, tensor in RIGHT.items() if name != "model.layers.1.self_attn.v_scale"}
    with pytest.raises(DataError, match=r"scales of K and of V in each layer, got none of V in layer 1; restore"):
        checkpoint_scales(write(tmp_path, lost))


def test_scales_that_config_json_announces_and_nobody_brings(tmp_path: Path) -> None:
    write(tmp_path, {"model.norm.weight": torch.ones(2)})
    assert taken(tmp_path, {}, [FP8], per_tensor=True) == ((), ())
    assert taken(tmp_path, SCHEME, [KVTreatment(name="b", dtype="bfloat16")], per_tensor=True) == ((), ())
    with pytest.raises(DataError) as caught:
        taken(tmp_path, SCHEME, [FP8], per_tensor=True)
    assert str(caught.value) == (
        "kv.fp8.scales: scales in a checkpoint whose config.json has a kv_cache_scheme, got none in "
        f"{tmp_path}; restore them, or say that you want none: kv.fp8.scales=unit"
    )


MADE = Calibration(
    schema_version=1,
    model="test/small",
    revision=None,
    weights_sha256="w",
    model_dtype="bfloat16",
    golden="set 1",
    golden_sha256="g",
    folds=(0,),
    conversations=hashes(["a"]),
    k_format="fp8_e4m3",
    v_format="fp8_e4m3",
    per=Per.LAYER,
    layers=tuple(
        CalibratedLayer(
            index=i,
            k=CalibratedHalf(largest=(3.0, 10.0), scales=(2.0 ** -(i + 5),)),
            v=CalibratedHalf(largest=(3.0, 1.0), scales=(0.25,)),
        )
        for i in (0, 1)
    ),
)


def prepared(folder: Path) -> Prepared:
    return Prepared(
        path=str(folder),
        weights_sha256="w",
        template_sha256="t",
        device="cpu",
        versions={},
        kv_cache_scheme=False,
        chat_template="{{ messages }}",
        turns=(),
    )


def test_an_exported_checkpoint_brings_what_was_calibrated(tmp_path: Path) -> None:
    source, target = write_model(tmp_path / "source"), tmp_path / "checkpoint"
    (source / "pytorch_model.bin").write_bytes(b"pickle")
    export(MADE, prepared(source), target)
    config = check_folder(target)
    assert config["quantization_config"]["kv_cache_scheme"]["strategy"] == "tensor"
    assert taken(target, config, [FP8], per_tensor=True) == (MADE.scales, MADE.conversations)
    assert (target / "model.safetensors").resolve() == source / "model.safetensors"
    assert (target / "chat_template.jinja").read_text() == "{{ messages }}"
    assert (target / CALIBRATION).read_text().strip()
    names = {"model.safetensors", SCALE_FILE, "model.safetensors.index.json", "config.json", "tokenizer.json"}
    assert {path.name for path in target.iterdir()} - names == {
        "chat_template.jinja",
        CALIBRATION,
        "tokenizer_config.json",
    }
    weight_map = json.loads((target / "model.safetensors.index.json").read_text())["weight_map"]
    for file in ("model.safetensors", SCALE_FILE):
        with safe_open(target / file, framework="pt") as tensors:
            assert sorted(name for name, where in weight_map.items() if where == file) == sorted(tensors.keys())


def test_scales_of_heads_are_exported_as_such(tmp_path: Path) -> None:
    half = CalibratedHalf(largest=(3.0, 10.0), scales=(0.25, 0.5))
    made = Calibration(
        **{**vars(MADE), "per": Per.HEAD, "layers": tuple(CalibratedLayer(index=i, k=half, v=half) for i in (0, 1))}
    )
    export(made, prepared(write_model(tmp_path / "source")), tmp_path / "checkpoint")
    config = json.loads((tmp_path / "checkpoint" / "config.json").read_text())
    assert config["quantization_config"]["kv_cache_scheme"]["strategy"] == "attn_head"
    assert checkpoint_scales(tmp_path / "checkpoint") == made.scales


def test_checkpoints_that_cannot_bring_scales(tmp_path: Path) -> None:
    source = prepared(write_model(tmp_path / "source"))
    assert why_not(MADE, source) == ""
    assert "not of fp8_e5m2/nvfp4" in why_not(
        Calibration(**{**vars(MADE), "k_format": "fp8_e5m2", "v_format": "nvfp4"}), source
    )
    quantized = prepared(write_model(tmp_path / "quantized", config={"quantization_config": {"quant_method": "awq"}}))
    assert "quantization_config of its own (awq)" in why_not(MADE, quantized)
    with pytest.raises(DataError, match=r"got one that cannot \(.*awq\)\); use scales.json$"):
        export(MADE, quantized, tmp_path / "target")
    more = (*MADE.layers, CalibratedLayer(index=9, k=MADE.layers[0].k, v=MADE.layers[0].v))
    assert "attention of layer 9 has no k_proj" in why_not(Calibration(**{**vars(MADE), "layers": more}), source)


def test_a_note_that_is_none_is_refused(tmp_path: Path) -> None:
    write(tmp_path, RIGHT)
    (tmp_path / CALIBRATION).write_text(to_json(MADE).replace("0.25", "0.0"))
    with pytest.raises(DataError, match=r"kv_calibration\.json: scales over 0 and finite, got 0\.0 for V of layer 0"):
        taken(tmp_path, {}, [FP8], per_tensor=True)


def test_a_reference_takes_the_scales_of_the_checkpoint_too(tmp_path: Path) -> None:
    hooked = KVTreatment(name="ref", dtype="fp8_e4m3", realisation=Realisation.REFERENCE)
    found, _ = taken(write(tmp_path, RIGHT), {}, [hooked], per_tensor=True)
    assert [each.k for each in found] == [(0.5,), (1.0,)]
