"""How large K and V are: what stands out in words, a plot by layer, and how each format fits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvquant_eval.core.range_profile import HALVES
from kvquant_eval.io.report.blocks import Block, Figure, Items, Panel, Section, Table
from kvquant_eval.io.report.names import NONE, identity, number

Data = Mapping[str, Any]
FORMS = {"sqnr_db": ("SQNR, dB", ".1f"), "beyond": ("beyond", ".3%")}
"""What the table says of a format: its heading and how numbers are written."""
DIAGNOSTIC = "Diagnostic, never deciding."
SAID = f"""
K (behind the position embedding) and V as the model computes them, before anything rounds them. The largest magnitude \
is of every token; SQNR and what is beyond are of a sample: the first 256 tokens of every 32nd step of a block.
SQNR: signal-to-quantization-noise ratio in dB, the sum of the squares by the sum of the squared errors; 6 dB are one \
bit. Beyond: the share of values over the format's largest finite value at the scale in use. Heads are in \
ranges.parquet.
{DIAGNOSTIC}
"""


def range_sections(document: Data) -> list[Section]:
    """One section; none where the profile was not asked for."""
    found = document.get("ranges")
    if not found:
        return []
    model = document["model"]
    called = identity(model, model["kv"][found["arm"]])
    shown = _columns(found)
    columns = ("layers", "half", "largest", "layer, head", *(f"{name}: {FORMS[key][0]}" for name, key in shown))
    table = Table(columns, "ll" + "r" * (len(columns) - 2), tuple(_rows(found, shown)))
    blocks: list[Block] = [Items(tuple(found["sentences"])), *_figure(found, called)]
    blocks += [table, Items(tuple(SAID.strip().splitlines()))]
    return [Section(2, f"Range of K and V: {called}", tuple(blocks))]


def _columns(found: Data) -> list[tuple[str, str]]:
    """(Format, key): what is beyond a range stands there for formats that have one."""
    ranged = {name for half in HALVES for name, fit in found[half]["formats"].items() if fit["beyond"] is not None}
    return [(name, key) for name in found["formats"] for key in FORMS if key != "beyond" or name in ranged]


def _rows(found: Data, shown: Sequence[tuple[str, str]]) -> Iterator[tuple[str, ...]]:
    """All layers together, then layer by layer."""
    for name, layer in [("all", found), *((str(layer["layer"]), layer) for layer in found["layers"])]:
        for half in HALVES:
            fit = layer[half]
            place = NONE if fit["head"] is None else f"{fit['layer']}, {fit['head']}"
            numbers = (number(fit["formats"].get(one, {}).get(key), FORMS[key][1]) for one, key in shown)
            yield name, half.upper(), number(fit["largest"], ",.4g"), place, *numbers


def _figure(found: Data, called: str) -> Iterator[Figure]:
    """The largest |K| and |V| by layer, on a logarithmic axis, below the range of the formats that have one."""
    layers = [layer for layer in found["layers"] if layer["k"]["largest"] and layer["v"]["largest"]]
    if not layers:
        return
    x = tuple(float(layer["layer"]) for layer in layers)
    series = tuple((f"|{half.upper()}|", x, tuple(layer[half]["largest"] for layer in layers)) for half in HALVES)
    fits = [(name, found[half]["formats"][name]["limit"]) for name in found["formats"] for half in HALVES]
    limits = dict.fromkeys((f"{name} {limit:,g}", limit) for name, limit in fits if limit is not None)
    panel = Panel("largest magnitude", "layer", series, None, None, "largest magnitude", (), tuple(limits), log=True)
    dashed = " Dashed: the largest value of a format at the scale in use." if limits else ""
    yield Figure(f"Largest |K| and |V| of each layer. {called}.{dashed} {DIAGNOSTIC}", (panel,))
