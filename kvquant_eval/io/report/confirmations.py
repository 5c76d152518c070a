"""The second test of flags of sampled scores: the reading list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvquant_eval.core.confirm import LISTED
from kvquant_eval.io.report.blocks import Items, Section, Table
from kvquant_eval.io.report.names import number

Data = Mapping[str, Any]
MOST = 100
"""Flags that are listed."""
COLUMNS = (
    "turn", "class", "score", "drop that flagged it", "fresh drop", "fresh epochs", "p", "Holm", "q", "confirmed",
)  # fmt: skip


def confirmation_sections(candidate: Data, hold_level: float) -> list[Section]:
    """One section, the surest flags first; none where no flag was put to a second test."""
    tested = sorted((flag for flag in candidate["flagged_turns"] if "q" in flag), key=lambda flag: flag["q"])
    if not tested:
        return []
    confirmed, listed = (sum(bool(flag[key]) for flag in tested) for key in ("confirmed", "listed"))
    said = (
        f"{len(tested)} flags were run again, on fresh epochs of both arms alone: {confirmed} are confirmed (p after "
        f"Holm under {hold_level:g}), {listed} are worth reading (q at most {LISTED:g}, the share of them that is "
        "expected to be chance)"
    )
    if len(tested) > MOST:
        said += f"; the surest {MOST} are listed, decision.json has them all"
    table = Table(COLUMNS, "lllrrrrrrl", tuple(_row(flag) for flag in tested[:MOST]))
    return [Section(3, f"{candidate['name']}: flags put to a second test", (Items((said,)), table))]


def second_test(flag: Data | None) -> str:
    """What became of a flag, in a word or two."""
    if flag is None:
        return ""
    return {None: "raw", True: "confirmed", False: "not confirmed"}[flag["confirmed"]]


def _row(flag: Data) -> tuple[str, ...]:
    return (
        flag["turn_id"],
        flag["class"],
        flag["score"],
        number(flag["drop"], "+.2f"),
        number(flag["fresh_drop"], "+.2f"),
        str(flag["fresh_epochs"]),
        *(number(flag[key], ".2g") for key in ("p", "holm", "q")),
        "yes" if flag["confirmed"] else "no",
    )
