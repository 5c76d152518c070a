"""What a report is made of: sections of a few kinds of block. Renderers know these and nothing of gates."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Literal, TypeVar, cast

from kvquant_eval.core.text import safe

T = TypeVar("T")
DROP = "drop, points"
DIFFERS = "≠ "
"""Marks what is not as it should be, for those who see no colours."""


@dataclass(frozen=True)
class Verdicts:
    """(What is judged, decision or verdict, why)."""

    rows: tuple[tuple[str, str, str], ...]
    kind: Literal["verdicts"] = "verdicts"


@dataclass(frozen=True)
class Facts:
    """(Name, value) pairs."""

    rows: tuple[tuple[str, str], ...]
    kind: Literal["facts"] = "facts"


@dataclass(frozen=True)
class Table:
    """``align`` has a letter a column: l name, w text that wraps, r number, q quoted model output, v verdict, m text
    that is marked where it begins with ``DIFFERS``. With ``stacks`` a narrow screen shows each row as a block of its
    own.
    """

    columns: tuple[str, ...]
    align: str
    rows: tuple[tuple[str, ...], ...]
    stacks: bool = False
    kind: Literal["table"] = "table"


@dataclass(frozen=True)
class Card:
    """One candidate's decision as a person signs it.

    ``name`` is the candidate's; ``model`` is id and revision, ``kv`` the KV dtype beside it; ``why`` one sentence;
    ``marks`` what sets the decision apart from a usual one; ``classes`` (class, verdict); ``signed`` who signed;
    ``overrides`` reasons to serve against the decision; ``facts`` (name, value).
    """

    decision: str
    name: str
    model: str
    kv: str
    why: str
    marks: tuple[str, ...]
    classes: tuple[tuple[str, str], ...]
    signed: tuple[str, ...]
    overrides: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Cards:
    """Decisions side by side."""

    rows: tuple[Card, ...]
    kind: Literal["cards"] = "cards"


@dataclass(frozen=True)
class Code:
    """A command or flags to copy, exactly as they stand."""

    text: str
    kind: Literal["code"] = "code"


@dataclass(frozen=True)
class Items:
    """Sentences, one a bullet."""

    rows: tuple[str, ...]
    kind: Literal["items"] = "items"


@dataclass(frozen=True)
class Texts:
    """Long texts to read side by side: (label, text)."""

    rows: tuple[tuple[str, str], ...]
    kind: Literal["texts"] = "texts"


@dataclass(frozen=True)
class Sides:
    """Texts to compare, side by side: (label, pieces), a piece is (text, whether it differs)."""

    rows: tuple[tuple[str, tuple[tuple[str, bool], ...]], ...]
    kind: Literal["sides"] = "sides"


@dataclass(frozen=True)
class Panel:
    """One small plot: a mark for every turn's drop in points, > 0 is worse, or lines where ``y_label`` is another.

    ``series`` are (name, x values, y values); ``threshold`` is the drop that flags a turn; ``band`` (low, high) the
    placebo's; ``ticks`` what stands at x = 0, 1, 2, ... where that is no number; ``limits`` are dashed lines, (name,
    height); ``log``: the y axis is logarithmic, ``log_x``: the x axis. ``paired``: x and y are a turn's points in the
    baseline and in the arm, below the diagonal is worse, and the threshold lies so far below it. ``trends`` are lines:
    (number of the series, one end, other end), ends as (x, y). ``aside``: the series stand beside each other, as x has
    few values.
    """

    title: str
    x_label: str
    series: tuple[tuple[str, tuple[float, ...], tuple[float, ...]], ...]
    threshold: float | None
    band: tuple[float, float] | None
    y_label: str = DROP
    ticks: tuple[str, ...] = ()
    limits: tuple[tuple[str, float], ...] = ()
    log: bool = False
    log_x: bool = False
    paired: bool = False
    trends: tuple[tuple[int, tuple[float, float], tuple[float, float]], ...] = ()
    aside: bool = False


@dataclass(frozen=True)
class Figure:
    """Panels under one caption, which names model id and KV dtype."""

    caption: str
    panels: tuple[Panel, ...]
    kind: Literal["figure"] = "figure"


Block = Verdicts | Cards | Facts | Table | Items | Code | Texts | Sides | Figure


@dataclass(frozen=True)
class Section:
    """A heading of ``level`` 2 or 3 and what stands under it. ``label`` is its title in a list of sections, where that
    can be shorter (empty: it cannot).
    """

    level: int
    title: str
    blocks: tuple[Block, ...]
    label: str = ""


@dataclass(frozen=True)
class Report:
    """``title`` is the document's own (it names model id and KV dtype), ``heading`` the line on top of the page."""

    title: str
    heading: str
    sections: tuple[Section, ...]


def clean(value: T) -> T:
    """The same tree with every string made ``safe``."""
    if isinstance(value, str):
        return cast(T, safe(value))
    if isinstance(value, tuple):
        return cast(T, tuple(clean(part) for part in value))
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: clean(getattr(value, field.name)) for field in fields(value)})
    return value
