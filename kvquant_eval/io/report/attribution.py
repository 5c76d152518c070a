"""What of a native candidate's cost is the format's, and what the engine's: in words, then the numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvquant_eval.io.report.blocks import Items, Section, Table
from kvquant_eval.io.report.names import NONE, identity, number

Data = Mapping[str, Any]
SAID = """
Codes: a sample of what the engine stored of K and V, read back right after it did, beside the correctly rounded \
codes of the same values. Steps are those of the format; a negative bias means that magnitudes are stored too small.
Saturated: codes of the format's largest value; flushed: zeros that stand for something else; in brackets what correct \
rounding gives.
The layers shown are those with the fewest right codes; attribution.json has all of them. Diagnostic, never deciding.
"""
WORST = 3
"""Layers that the table names, of K and of V each."""
COLUMNS = ("layers", "half", "values", "identical", "bias, steps", "worst", "magnitude", "saturated", "flushed")


def attribution_sections(document: Data) -> list[Section]:
    """One section for all native candidates; none where there is none."""
    found = document["attribution"]
    if not found:
        return []
    model = document["model"]
    blocks = [Items(tuple(SAID.strip().splitlines()))]
    inner = [_one(name, one, identity(model, model["kv"][name])) for name, one in found.items()]
    return [Section(2, "Format or engine?", tuple(blocks)), *inner]


def _one(name: str, one: Data, called: str) -> Section:
    tables = [Table(COLUMNS, "llrrrrrrr", tuple(_codes(one)))] if one["layers"] else []
    drops = tuple(_drops(one["gl"]))
    if drops:
        columns = ("class", "score", f"drop of {name}", f"drop of {one['reference']}")
        tables.append(Table(columns, "llrr", drops))
    return Section(3, f"{name}: {called}", (Items(tuple(one["sentences"])), *tables))


def _codes(one: Data) -> Iterator[tuple[str, ...]]:
    """All layers together, then those of K and of V with the fewest right codes."""
    for half in ("k", "v"):
        yield ("all", half.upper(), *_shares(one[half]))
    for half in ("k", "v"):
        seen = [layer for layer in one["layers"] if layer[half]["values"]]
        for layer in sorted(seen, key=lambda layer: layer[half]["identical"])[:WORST]:
            yield (str(layer["layer"]), half.upper(), *_shares(layer[half]))


def _shares(half: Data) -> tuple[str, ...]:
    return (
        f"{half['values']:,}",
        number(half["identical"], ".2%"),
        number(half["bias"], "+.3f"),
        number(half["worst"], "d"),
        f"{number(half['shrinkage'], '+.2%')} ({number(half['shrinkage_right'], '+.2%')})",
        f"{number(half['saturated'], '.3%')} ({number(half['saturated_right'], '.3%')})",
        f"{number(half['flushed'], '.3%')} ({number(half['flushed_right'], '.3%')})",
    )


def _drops(gl: Data) -> Iterator[tuple[str, ...]]:
    """A native loss smaller than the reference's is named: errors that cancel are no gain."""
    for workload, scores in gl.items():
        for score, (native, reference) in scores.items():
            compensated = native is not None and reference is not None and native < reference
            mark = " (compensation)" if compensated else ""
            yield workload, score, f"{number(native, '+.2f')}{mark}", number(reference, "+.2f") or NONE
