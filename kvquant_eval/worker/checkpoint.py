"""The scales of K and V that a checkpoint brings, read before an engine does: one that lost or spoilt them says so."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import safe_open

from kvquant_eval.core.codec import DataError
from kvquant_eval.core.scales import CALIBRATION, LayerScales, ScaleSource, parse
from kvquant_eval.core.treatment import KVTreatment, Realisation
from kvquant_eval.worker.folder import read_text, weight_files

_SCALE = re.compile(r"\.(\d+)\..*\.(?:(kv|k|v)_scale|([kv])_cache\.scale|([kv])_proj\.output_scale)$")
"""A scale of K, of V, or of both, under the names that vLLM takes: ``model.layers.7.self_attn.k_scale``."""


def taken(
    folder: Path, config: Mapping[str, Any], treatments: Sequence[KVTreatment], per_tensor: bool
) -> tuple[tuple[LayerScales, ...], tuple[str, ...]]:
    """The scales of the checkpoint and the conversations that they were calibrated on, where a treatment takes them.

    ``per_tensor``: the engine's attention has one scale a layer. Raises DataError for scales that are 0, negative or
    not finite, for half a layer's, for those that config.json announces and nobody brings, and for one a head where the
    engine has no place for it.
    """
    taking = [kv for kv in treatments if kv.takes_scales and kv.scales is ScaleSource.CHECKPOINT]
    if not taking:
        return (), ()
    where, found = f"kv.{taking[0].name}.scales", checkpoint_scales(folder)
    if not found and (config.get("quantization_config") or {}).get("kv_cache_scheme"):
        rule = "scales in a checkpoint whose config.json has a kv_cache_scheme"
        raise DataError(f"{where}: {rule}, got none in {folder}; restore them, or say that you want none: {where}=unit")
    several = next((each for each in found if max(len(each.k), len(each.v)) > 1), None)
    if several and per_tensor and any(kv.realisation is Realisation.NATIVE for kv in taking):
        got = f"one a head in layer {several.index} of {folder}"
        raise DataError(f"{where}: one scale a layer for this attention, got {got}; calibrate per layer")
    note = folder / CALIBRATION
    return found, parse(read_text(note), str(note)).conversations if found and note.exists() else ()


def checkpoint_scales(folder: Path) -> tuple[LayerScales, ...]:
    """By layer; none where the checkpoint has none. Raises DataError."""
    halves: dict[tuple[int, str], tuple[float, ...]] = {}
    for file in weight_files(folder):
        for name, index, half, scales in _tensors(file):
            wrong = next((scale for scale in scales if not 0 < scale < math.inf), None)
            if wrong is not None or not scales:
                rule = f"KV scales over 0 and finite, got {wrong} in {name}"
                raise DataError(f"{file}: {rule}; restore the file, or calibrate")
            twice = next((each for each in half if (index, each) in halves), None)
            if twice:
                rule = f"scales of one attention in layer {index}, got a second one of {twice.upper()}, {name}"
                raise DataError(f"{file}: {rule}; take them out, or say that you want none: scales=unit")
            halves |= {(index, each): scales for each in half}
    layers = sorted({index for index, _ in halves})
    lost = next(((i, half) for i in layers for half in "kv" if (i, half) not in halves), None)
    if lost:
        rule = f"scales of K and of V in each layer, got none of {lost[1].upper()} in layer {lost[0]}"
        raise DataError(f"{folder}: {rule}; restore the checkpoint, or calibrate")
    return tuple(LayerScales(index=i, k=halves[i, "k"], v=halves[i, "v"]) for i in layers)


def _tensors(file: Path) -> Iterator[tuple[str, int, str, tuple[float, ...]]]:
    """Name, layer, ``k``, ``v`` or ``kv``, and the numbers of every scale in the file."""
    with safe_open(file, framework="pt") as tensors:
        for name in tensors.keys():  # noqa: SIM118 - no mapping
            if match := _SCALE.search(name):
                numbers = tensors.get_tensor(name).float().flatten().tolist()
                yield name, int(match[1]), match[2] or match[3] or match[4], tuple(numbers)
