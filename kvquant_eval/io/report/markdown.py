"""A report as Markdown (GitHub's flavour): model output only ever stands in code spans and fences."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence

from kvquant_eval.core.text import head
from kvquant_eval.io.report.blocks import (
    Block,
    Card,
    Cards,
    Code,
    Facts,
    Figure,
    Items,
    Report,
    Section,
    Sides,
    Table,
    Texts,
    Verdicts,
)
from kvquant_eval.io.report.names import NONE

DIFFERING, DIFFERING_CHARS = 8, 60
"""How many pieces that differ are named below a text, and how much of each."""
_SYNTAX = re.compile(
    r"[\\`*|~$]|(?<![^\W_])_|_(?![^\W_])|\](?=[(\[:])|^[#+=-](?=[\s#=-]|$)"
    r"|^\[(?=[ xX]\])|#$|:(?=//)|(?<=\bwww)\."  # task, closing hash, bare addresses
)
_NUMBERED = re.compile(r"^(\d+)([.)])(?=\s|$)")


def render(report: Report) -> str:
    """The report, sign-off first."""
    parts = [f"# {escape(report.heading)}"]
    for section in report.sections:
        parts += _section(section)
    return "\n\n".join(parts) + "\n"


def escape(text: str) -> str:
    """``text`` on one line, with nothing in it that Markdown or HTML would read as syntax."""
    line = html.escape(" ".join(text.split()), quote=False)
    return _NUMBERED.sub(r"\1\\\2", _SYNTAX.sub(r"\\\g<0>", line))


def code(text: str) -> str:
    """``text`` as a code span that no backtick in it can end; fit for a table cell."""
    text = " ".join(text.split()).replace("|", "\\|")
    ticks = "`" * (_longest_run(text) + 1)
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{ticks}{space}{text}{space}{ticks}"


def fence(text: str) -> str:
    """``text`` as a fenced block, its fence longer than any run of backticks inside."""
    ticks = "`" * max(3, _longest_run(text) + 1)
    return f"{ticks}text\n{text}\n{ticks}"


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)


def _section(section: Section) -> Iterator[str]:
    yield f"{'#' * section.level} {escape(section.title)}"
    for block in section.blocks:
        yield from _block(block)


def _block(block: Block) -> Iterator[str]:
    match block:
        case Verdicts(rows):
            yield "\n".join(f"- **{decision}** {escape(name)}: {escape(why)}" for name, decision, why in rows)
        case Cards(rows):
            yield "\n".join(line for card in rows for line in _card(card))
        case Code(text):
            yield fence(text)
        case Facts(rows):
            yield "\n".join(f"- {escape(name)}: {escape(value)}" for name, value in rows)
        case Items(rows) if rows:
            yield "\n".join(f"- {escape(row)}" for row in rows)
        case Table(columns, align, rows):
            yield "\n".join([_row(columns, "l" * len(align)), _rule(align), *(_row(row, align) for row in rows)])
        case Texts() | Sides():
            yield from _texts(block)
        case Figure(caption):
            yield f"Plot, drawn in report.html: {escape(caption)}"


def _card(card: Card) -> Iterator[str]:
    name = f"{card.model} {card.kv}, candidate {card.name}"
    yield f"- **{card.decision}** {escape(name)}: {escape(card.why)}"
    for name, value in (*(("OVERRIDE", reason) for reason in card.overrides), *card.facts):
        yield f"  - {escape(name)}: {escape(value)}"
    classes = ", ".join(f"{name} {verdict}" for name, verdict in card.classes)
    for line in (*([classes] if classes else []), *card.marks, *card.signed):
        yield f"  - {escape(line)}"


def _texts(block: Texts | Sides) -> Iterator[str]:
    """Every text in a fence of its own; below it what of it differs."""
    rows = block.rows if isinstance(block, Sides) else [(label, ((text, False),)) for label, text in block.rows]
    for label, pieces in rows:
        yield f"{escape(label)}:"
        yield fence("".join(text for text, _ in pieces))
        if differing := [text for text, differs in pieces if differs and text.strip()]:
            shown = " ".join(code(head(text, DIFFERING_CHARS)) for text in differing[:DIFFERING])
            more = len(differing) - DIFFERING
            yield f"differs in: {shown}" + (f" and {more} more" if more > 0 else "")


def _row(cells: Sequence[str], align: str) -> str:
    shown = (
        code(cell) if letter == "q" and cell != NONE else escape(cell)
        for cell, letter in zip(cells, align, strict=True)
    )
    return f"| {' | '.join(shown)} |"


def _rule(align: str) -> str:
    return f"|{'|'.join(' ---: ' if letter == 'r' else ' --- ' for letter in align)}|"
