"""Scales of K and V: what values are divided by before a format with a fixed range stores them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pydantic import ConfigDict

from kvquant_eval.core.codec import DataError, from_json
from kvquant_eval.core.ranges import HalfRanges, LayerRanges

SCHEMA_VERSION = 1
LARGEST: Mapping[str, float] = {"fp8_e4m3": 448.0, "fp8_e5m2": 57344.0, "nvfp4": 6 * 448.0}
"""The largest finite value at unit scale, of formats that have one: the scales of all others follow the values."""
CALIBRATION = "kv_calibration.json"
"""What an exported checkpoint says of the scales that it brings: the calibration, beside the weights."""
_EVERY_KEY = ConfigDict(extra="forbid")


class ScaleSource(StrEnum):
    """``CHECKPOINT``: those that the model's checkpoint brings, 1.0 where it brings none at all. ``UNIT``: 1.0, and
    nothing else will do. ``CALIBRATED``: those of a file that ``kvquant-eval calibrate`` wrote.
    """

    CHECKPOINT = "checkpoint"
    UNIT = "unit"
    CALIBRATED = "calibrated"


class Per(StrEnum):
    """What one scale is for: K (V) of a ``LAYER``, or of each KV ``HEAD`` of it."""

    LAYER = "layer"
    HEAD = "head"


@dataclass(frozen=True, kw_only=True)
class LayerScales:
    """K's and V's of the layer with this index: one number, or one a KV head; finite and > 0."""

    index: int
    k: tuple[float, ...]
    v: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class CalibratedHalf:
    """K, or V, of one layer: the ``largest`` magnitude of each KV head that was seen, and the scales made of them."""

    __pydantic_config__ = _EVERY_KEY

    largest: tuple[float, ...]
    scales: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class CalibratedLayer:
    """One layer, by its index in the model."""

    __pydantic_config__ = _EVERY_KEY

    index: int
    k: CalibratedHalf
    v: CalibratedHalf


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """``scales.json``: scales, for which model and formats they are, and what they were calibrated on.

    ``weights_sha256`` as in ``Prepared``; ``conversations`` are the sha256 (hex) of the ids of every conversation that
    was looked at: no turn of theirs may decide about these scales.
    """

    __pydantic_config__ = _EVERY_KEY

    schema_version: int
    model: str
    revision: str | None
    weights_sha256: str
    model_dtype: str
    golden: str
    golden_sha256: str
    folds: tuple[int, ...]
    conversations: tuple[str, ...]
    k_format: str
    v_format: str
    per: Per
    layers: tuple[CalibratedLayer, ...]

    @property
    def scales(self) -> tuple[LayerScales, ...]:
        """What a treatment is given."""
        return tuple(LayerScales(index=each.index, k=each.k.scales, v=each.v.scales) for each in self.layers)


def power_of_two(largest: float, limit: float) -> float:
    """The least power of two that makes ``largest`` (>= 0) at most ``limit`` (> 0); 1.0 where nothing but zeros was
    seen. FP8's relative step is the same everywhere, and dividing by a power of two rounds nothing.
    """
    if largest == 0:
        return 1.0
    mantissa, exponent = math.frexp(largest / limit)  # largest / limit = mantissa * 2 ** exponent, 0.5 <= mantissa < 1
    return math.ldexp(1.0, exponent - 1 if mantissa == 0.5 else exponent)


def calibrated(
    ranges: Iterable[LayerRanges],
    formats: tuple[str, str],
    per: Per,
    rule: Callable[[float, float], float] = power_of_two,
) -> tuple[CalibratedLayer, ...]:
    """Scales for K and V stored as ``formats`` (of ``LARGEST``), of the magnitudes that one arm saw."""
    k, v = (LARGEST[name] for name in formats)
    return tuple(
        CalibratedLayer(index=each.index, k=_half(each.k, k, per, rule), v=_half(each.v, v, per, rule))
        for each in ranges
    )


def _half(ranges: HalfRanges, limit: float, per: Per, rule: Callable[[float, float], float]) -> CalibratedHalf:
    largest = tuple(head.largest for head in ranges.heads)
    groups = largest if per is Per.HEAD else (max(largest),)
    return CalibratedHalf(largest=largest, scales=tuple(rule(each, limit) for each in groups))


def hashes(conversations: Iterable[str]) -> tuple[str, ...]:
    """sha256 (hex) of each conversation id, sorted, each once."""
    return tuple(sorted({hashlib.sha256(each.encode()).hexdigest() for each in conversations}))


def refuse_seen(where: str, calibrated_on: Sequence[str], conversations: Iterable[str]) -> None:
    """Raise DataError where scales that were calibrated on some conversations would be judged by one of them."""
    named = {hashes([each])[0]: each for each in conversations}
    seen = sorted(named[each] for each in {*calibrated_on} & named.keys())
    if seen:
        rule = "turns of conversations that its scales were not calibrated on"
        found = f"{len(seen)} of {len(named)} that they were ({seen[0][:80]!r} first)"
        remedy = "take other folds: golden.folds=[...] (a search: search.*_folds)"
        raise DataError(f"{where}: {rule}, got {found}; {remedy}")


def parse(text: str | bytes, where: str) -> Calibration:
    """A calibration out of JSON that nobody vouches for. Raises DataError."""
    return checked(from_json(Calibration, text, where), where)


def checked(made: Calibration, where: str) -> Calibration:
    """The calibration itself. Raises DataError for one of another schema, and for scales that cannot be any."""
    if made.schema_version != SCHEMA_VERSION:
        raise DataError(f"{where}: schema_version {SCHEMA_VERSION}, got {made.schema_version}; calibrate again")
    check_scales(where, made.scales)
    if not made.conversations:
        raise DataError(f"{where}: the conversations that were looked at, got none; calibrate again")
    for layer in made.layers:
        for half in (layer.k, layer.v):
            if not all(map(math.isfinite, half.largest)):
                raise DataError(f"{where}: finite magnitudes, got others in layer {layer.index}; calibrate again")
            if len(half.scales) not in (1, len(half.largest)):
                rule = f"one scale, or one for each of the {len(half.largest)} heads"
                raise DataError(f"{where}: {rule}, got {len(half.scales)} in layer {layer.index}; calibrate again")
    return made


def check_scales(where: str, layers: Sequence[LayerScales]) -> None:
    """Raise DataError for a layer that is there twice, one without scales, and a scale that cannot be one."""
    if not layers:
        raise DataError(f"{where}: scales, got none; calibrate again")
    seen: set[int] = set()
    for layer in layers:
        if layer.index < 0 or layer.index in seen:
            raise DataError(f"{where}: each layer once, by its index, got layer {layer.index}; calibrate again")
        seen.add(layer.index)
        for half, scales in (("k", layer.k), ("v", layer.v)):
            wrong = next((scale for scale in scales if not 0 < scale < math.inf), None)
            if wrong is not None or not scales:
                found = "none" if wrong is None else f"{wrong}"
                rule = f"scales over 0 and finite, got {found} for {half.upper()} of layer {layer.index}"
                raise DataError(f"{where}: {rule}; calibrate again")
