"""Treatments that keep parts of a model in BF16.

A *unit* is what may stay in BF16 by itself, written as an entry of ``skip_layers``: a layer (``"7"``), or K or V of one
(``"7.k"``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from kvquant_eval.core.treatment import UNQUANTIZED, KVTreatment, Realisation

Kept = tuple[str, ...]
"""Units that stay in BF16, in the order of the model."""


def units_of(layers: Iterable[int], halves: bool, treatment: KVTreatment) -> Kept:
    """What may be kept in BF16: the layers that the treatment quantizes, or those of their halves that it does."""
    quantized = {
        layer: [half for half, fmt in zip("kv", treatment.at(layer), strict=True) if fmt not in UNQUANTIZED]
        for layer in sorted(layers)
    }
    if halves:
        return tuple(f"{layer}.{half}" for layer, mine in quantized.items() for half in mine)
    return tuple(str(layer) for layer, mine in quantized.items() if mine)


def keeping(treatment: KVTreatment, kept: Iterable[str], name: str) -> KVTreatment:
    """The treatment with these units in BF16 too; both halves of a layer become the layer."""
    entries = {*treatment.skip_layers, *kept}
    whole = {entry.partition(".")[0] for entry in entries if entry.endswith(".k") and f"{entry[:-1]}v" in entries}
    entries = {entry for entry in entries if "." not in entry or entry.partition(".")[0] not in whole} | whole
    return replace(treatment, name=name, skip_layers=tuple(sorted(entries, key=place)))


def probes(treatment: KVTreatment, units: Kept) -> list[KVTreatment]:
    """The passes of a sensitivity analysis, beside that of all units: for each unit only it, and all but it."""
    found = []
    for unit in units:
        found.append(keeping(treatment, [other for other in units if other != unit], f"only-{unit}"))
        found.append(keeping(treatment, [unit], f"without-{unit}"))
    return found


def in_order(units: Iterable[str]) -> Kept:
    """In the order of the model."""
    return tuple(sorted(units, key=place))


def place(unit: str) -> tuple[bool, int, str]:
    """Layers by number, K before V; ``sliding_window`` last."""
    layer, _, half = unit.partition(".")
    return not layer.isdecimal(), int(layer) if layer.isdecimal() else 0, half


_NATIVE = {
    "fp8_e4m3": "fp8_e4m3",
    "fp8_e5m2": "fp8_e5m2",
    "nvfp4": "nvfp4",
    "int8": "int8_per_token_head",
    "fp8_e4m3_per_token_head": "fp8_per_token_head",
}
"""The engine dtype that stores what a reference format rounds to. INT4 has none: vLLM's is behind a rotation."""


def native_of(treatment: KVTreatment, name: str) -> KVTreatment | None:
    """The native treatment of a reference; None where an engine has no such dtype, or stores K and V of a layer alike
    and this does not.
    """
    k, v = treatment.formats
    if k != v or k not in _NATIVE or any("." in entry for entry in treatment.skip_layers):
        return None
    return replace(treatment, name=name, dtype=_NATIVE[k], k="", v="", realisation=Realisation.NATIVE)
