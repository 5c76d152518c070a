"""A checkpoint with the scales of a calibration, as vLLM loads it: links to the weights, the rest copied."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from kvquant_eval.core.codec import DataError, to_data
from kvquant_eval.core.records import Prepared
from kvquant_eval.core.scales import CALIBRATION, Calibration, Per
from kvquant_eval.io.runfolder import write_json

SCALE_FILE = "kv_scales.safetensors"
INDEX = "model.safetensors.index.json"
TEMPLATE = "chat_template.jinja"
METHOD = "compressed-tensors"
_LEFT_OUT = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".msgpack", ".h5", ".onnx", ".gguf"})
"""Weights of other kinds: nothing loads them here."""
_ATTENTION = re.compile(r"(?P<attention>.*\.(?P<layer>\d+)\..*)\.(?:k|qkv)_proj\.weight")


def why_not(calibration: Calibration, prepared: Prepared) -> str:
    """Why the checkpoint cannot be one that vLLM takes these scales from (empty: it can)."""
    if (calibration.k_format, calibration.v_format) != ("fp8_e4m3", "fp8_e4m3"):
        return f"vLLM takes scales of fp8_e4m3 from a checkpoint, not of {calibration.k_format}/{calibration.v_format}"
    quantized = _config(Path(prepared.path)).get("quantization_config")
    if quantized and (quantized.get("quant_method") != METHOD or quantized.get("kv_cache_scheme")):
        return f"the checkpoint has a quantization_config of its own ({quantized.get('quant_method')})"
    places = _attention(Path(prepared.path))
    if several := [layer for layer, names in places.items() if len(names) > 1]:
        return f"layer {several[0]} has several attentions ({', '.join(sorted(places[several[0]]))})"
    if lost := [layer.index for layer in calibration.layers if layer.index not in places]:
        return f"the attention of layer {lost[0]} has no k_proj or qkv_proj to name its scales by"
    return ""


def export(calibration: Calibration, prepared: Prepared, target: Path) -> None:
    """Make the folder ``target``: weights as links, everything else as copies, the scales as tensors of their own, an
    index with all of them, and a ``kv_cache_scheme``. Raises DataError where ``why_not`` has a reason.
    """
    if reason := why_not(calibration, prepared):
        raise DataError(
            f"{target}: a checkpoint that can bring the scales, got one that cannot ({reason}); use scales.json"
        )
    source = Path(prepared.path)
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for entry in source.iterdir():
        if entry.suffix == ".safetensors":
            (target / entry.name).symlink_to(entry.resolve())
        elif entry.is_file() and not entry.name.startswith(".") and entry.suffix not in _LEFT_OUT:
            shutil.copyfile(entry, target / entry.name)
    places = _attention(source)
    save_file(
        {
            f"{min(places[layer.index])}.{half}_scale": _tensor(getattr(layer, half).scales)
            for layer in calibration.layers
            for half in ("k", "v")
        },
        target / SCALE_FILE,
        {"format": "pt"},
    )
    (target / TEMPLATE).write_text(prepared.chat_template, encoding="utf-8")
    write_json(target / CALIBRATION, to_data(calibration))
    write_json(target / INDEX, {"metadata": {}, "weight_map": {name: file for file, name in _names(target)}})
    write_json(target / "config.json", _with_scheme(_config(source), calibration.per))


def _tensor(scales: tuple[float, ...]) -> np.ndarray[Any, Any]:
    """[1], or [num_kv_heads, 1, 1] as LLM Compressor writes one scale a head."""
    made = np.array(scales, dtype=np.float32)
    return made if len(scales) == 1 else made.reshape(-1, 1, 1)


def _with_scheme(config: Mapping[str, Any], per: Per) -> dict[str, Any]:
    strategy = {Per.LAYER: "tensor", Per.HEAD: "attn_head"}[per]
    scheme = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": strategy, "dynamic": False}
    plain = {"quant_method": METHOD, "format": "dense", "quantization_status": "compressed"}
    own = config.get("quantization_config") or {**plain, "config_groups": {}, "ignore": []}
    return {**config, "quantization_config": {**own, "kv_cache_scheme": scheme}}


def _config(folder: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return read


def _attention(folder: Path) -> dict[int, set[str]]:
    """The names of each layer's attention in the weights, one where it is plain: a scale's name is that and
    ``.k_scale``.
    """
    found: dict[int, set[str]] = {}
    for _, name in _names(folder):
        if match := _ATTENTION.fullmatch(name):
            found.setdefault(int(match["layer"]), set()).add(match["attention"])
    return found


def _names(folder: Path) -> Iterator[tuple[str, str]]:
    """(file, tensor) of all weights that an engine loads: those of the index, where there is one, and of the scales."""
    index = folder / INDEX
    named = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()) if index.exists() else None
    for file in sorted(folder.glob("*.safetensors")):
        if named is not None and file.name not in named and file.name != SCALE_FILE:
            continue
        with safe_open(file, framework="numpy") as tensors:
            yield from ((file.name, name) for name in tensors.keys())  # noqa: SIM118 - no mapping
