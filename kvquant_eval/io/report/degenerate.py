"""Degenerate replies of every arm, by sign and by class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvquant_eval.io.report.blocks import Items, Section, Table
from kvquant_eval.io.report.names import NONE, identity, number

Data = Mapping[str, Any]


def degenerate_section(document: Data) -> Section:
    """A row an arm: generated replies that show a sign of degeneration, the arm's and its baseline's."""
    compared = [*document["controls"].items(), *((c["name"], c) for c in document["candidates"])]
    signs = list(dict.fromkeys(sign for _, arm in compared for sign in arm["degeneration"]["signs"]))
    model = document["model"]
    rows = [(name, identity(model, arm["kv"]), *_signs(arm["degeneration"], signs)) for name, arm in compared]
    columns = ("arm", "model and KV dtype", "replies", "degenerate", "rise", "p", *signs, "classes")
    return Section(
        2,
        "Degenerate replies",
        (
            Items(("arm / its baseline; a rise beyond chance and beyond the controls holds a candidate",)),
            Table(columns, "lw" + "r" * (4 + len(signs)) + "w", tuple(rows)),
        ),
    )


def _signs(counted: Data, signs: list[str]) -> tuple[str, ...]:
    sides = [counted, *(counted["signs"][sign] for sign in signs)]
    degenerate, *by_sign = [f"{side['arm']}/{side['baseline']}" for side in sides]
    classes = [f"{w} {c['arm']}/{c['baseline']} of {c['n']}" for w, c in counted["classes"].items()]
    return (
        str(counted["n"]),
        degenerate,
        f"{counted['rise']:+d}",
        number(counted["p"], ".2g"),
        *by_sign,
        ", ".join(classes) or NONE,
    )
