"""How an arm stores K and V: what is asked for, layer by layer, and how it is called."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from kvquant_eval.core.codec import DataError
from kvquant_eval.core.scales import LARGEST, LayerScales, ScaleSource

UNQUANTIZED = ("bfloat16", "float16", "float32", "auto")
SLIDING_WINDOW = "sliding_window"
_ALIASES = {"fp8": "fp8_e4m3", "half": "float16"}
_SKIP = re.compile(rf"(0|[1-9][0-9]{{0,5}})(\.[kv])?|{SLIDING_WINDOW}")  # as an engine writes a layer's number


class Realisation(StrEnum):
    """``NATIVE``: the engine stores the dtype. ``REFERENCE``: K and V are rounded to it, then stored as BF16."""

    NATIVE = "native"
    REFERENCE = "reference"


@dataclass(frozen=True, kw_only=True)
class KVTreatment:
    """How an arm stores K and V.

    ``dtype`` is what is asked for: an engine cache dtype (native) or a reference format's name; ``k`` and ``v`` stand
    in for it where one of the two has a format of its own (reference only). ``skip_layers`` lists what stays as the
    model computes it: layer indices (``"7"``), ``sliding_window``, or one half of a layer (``"7.k"``, reference only).
    ``scales`` says where K's and V's come from, ``layer_scales`` what they are, as far as that is known (none: 1.0, or
    whatever the engine takes where they come from the checkpoint).
    """

    name: str
    dtype: str = ""
    realisation: Realisation = Realisation.NATIVE
    skip_layers: tuple[str, ...] = ()
    k: str = ""
    v: str = ""
    scales: ScaleSource = ScaleSource.CHECKPOINT
    layer_scales: tuple[LayerScales, ...] = ()

    @property
    def formats(self) -> tuple[str, str]:
        """What is asked for K and for V, by their canonical names."""
        return canonical_dtype(self.k or self.dtype), canonical_dtype(self.v or self.dtype)

    @property
    def requested(self) -> str:
        """The KV dtype as it stands beside the model id: ``fp8_e4m3``, or ``k:fp8_e4m3,v:nvfp4``."""
        return together(*self.formats)

    @property
    def engine_dtype(self) -> str:
        """The cache dtype the engine itself is asked for."""
        return self.dtype if self.realisation is Realisation.NATIVE else "bfloat16"

    @property
    def takes_scales(self) -> bool:
        """Whether K and V have formats of a fixed range: the scales of others follow the values."""
        return all(name in LARGEST for name in self.formats)

    def at(self, layer: int) -> tuple[str, str]:
        """What is asked for K and for V in the layer of this index; ``bfloat16`` where it stays as it is."""
        if str(layer) in self.skip_layers:
            return "bfloat16", "bfloat16"
        k, v = self.formats
        return (
            "bfloat16" if f"{layer}.k" in self.skip_layers else k,
            "bfloat16" if f"{layer}.v" in self.skip_layers else v,
        )

    def scales_at(self, layer: int) -> LayerScales | None:
        """The scales that the layer of this index must run with; None where they are not known."""
        if self.layer_scales:
            return next((each for each in self.layer_scales if each.index == layer), None)
        known = self.scales is ScaleSource.UNIT or self.realisation is Realisation.REFERENCE
        return LayerScales(index=layer, k=(1.0,), v=(1.0,)) if known else None


def canonical_dtype(dtype: str) -> str:
    """One name for each dtype: ``fp8`` is ``fp8_e4m3``."""
    return _ALIASES.get(dtype, dtype)


def together(k: str, v: str) -> str:
    """One name for what K and V are stored as."""
    return k if k == v else f"k:{k},v:{v}"


def spans(layers: Iterable[int], to: str = "to") -> list[str]:
    """Layers in few words: ``0to24`` where they follow each other, by themselves where they do not."""
    runs: list[list[int]] = []
    for layer in sorted(layers):
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return [str(run[0]) if len(run) == 1 else f"{run[0]}{to}{run[-1]}" for run in runs]


def check_source(where: str, treatment: KVTreatment) -> None:
    """Raise DataError for a source of scales that the treatment cannot have."""
    source, given = treatment.scales, treatment.layer_scales
    if source is not ScaleSource.CHECKPOINT and not treatment.takes_scales:
        rule = f"a format of a fixed range ({', '.join(LARGEST)}) where scales are {source}"
        raise DataError(f"{where}.scales: {rule}, got {treatment.requested[:80]!r}; leave scales out")
    if source is ScaleSource.CALIBRATED and treatment.realisation is Realisation.NATIVE:
        rule = "checkpoint or unit for a native dtype, as an engine takes scales from its checkpoint alone"
        remedy = f"gate the checkpoint that calibrate exported, or set {where}.realisation=reference"
        raise DataError(f"{where}.scales: {rule}, got 'calibrated'; {remedy}")
    if source is ScaleSource.CALIBRATED and not given:
        raise DataError(f"{where}.scales_from: scales.json of a calibration, got none; set {where}.scales_from=...")
    if source is not ScaleSource.CALIBRATED and given:
        raise DataError(f"{where}.scales: calibrated where scales_from is set, got '{source}'; leave one of them out")


def is_skip_entry(entry: str) -> bool:
    """Whether ``skip_layers`` may hold it, in whatever model."""
    return _SKIP.fullmatch(entry) is not None


def skipped_index(entry: str) -> int | None:
    """The layer that an entry of ``skip_layers`` names; None for ``sliding_window``."""
    return None if entry == SLIDING_WINDOW else int(entry.partition(".")[0])
