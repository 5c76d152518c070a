"""``docs/operating-characteristics.md``, from what was measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

from benchmarks.characteristics.confirmation import RUNS, Confirmed
from benchmarks.characteristics.measure import Measured
from benchmarks.characteristics.published import REPLICATES, Case
from benchmarks.characteristics.rules import HOLD, INCONCLUSIVE, PROMOTE
from benchmarks.characteristics.sample import touched
from kvquant_eval.core.records import Decision

NAIVE = ("zero_flags", "relative", "unpaired", "paired", "guarded", "bootstrap")
FALSE_HOLD, FALSE_PROMOTE, COVERAGE = 0.01, 0.05, 0.94
_FEW = 5
_FEW_CONVERSATIONS = 7
_ERRORS = 3
"""Simulation errors within which a rate counts as its limit."""
BOUNDS = {"upper": "upper bound of `default`", "plain upper": "upper bound of `custom`", "lower": "lower bound"}

Table = Mapping[str, Sequence[Measured]]


@dataclass(frozen=True)
class Demand:
    """A limit, the worst that was measured, where, and the cells that miss it by over 3 simulation errors."""

    what: str
    limit: str
    worst: float
    where: str
    missed: Sequence[str]


def write(cells: Table, confirmed: Sequence[Confirmed], published: Sequence[Case]) -> str:
    """The whole document: ``page.md`` with its figures."""
    page = Template(Path(__file__).with_name("page.md").read_text())
    return page.substitute(
        runs=f"{cells['controls'][0].runs:,}",
        cells=sum(map(len, cells.values())),
        summary=_summary(demands(cells), confirmed),
        controls=_controls(cells["controls"]),
        margins=_margins(cells["margins"]),
        breaks=_margins(cells["breaks"]),
        powers=_powers(cells["powers"]),
        confirmation_runs=RUNS,
        confirmation=_confirmation(confirmed),
        replicates=REPLICATES,
        published=_published(published),
    )


def demands(cells: Table) -> list[Demand]:
    """Every limit of the simulated bounds and decisions, and how it was met."""
    at_margin = [*cells["margins"], *cells["breaks"]]
    every = [measured for group in cells.values() for measured in group]
    most = [measured for measured in every if not few(measured)]
    return [
        _demand("false HOLD of `default` on controls", FALSE_HOLD, cells["controls"], _share("default", HOLD)),
        _demand("false HOLD of `strict` on controls", FALSE_HOLD, cells["controls"], _share("strict", HOLD)),
        _demand("false PROMOTE of `default` at the margin", FALSE_PROMOTE, at_margin, _share("default", PROMOTE)),
        _demand("false PROMOTE of `strict` at the margin", FALSE_PROMOTE, at_margin, _share("strict", PROMOTE)),
        _demand("false PROMOTE of `custom`, no breaks", FALSE_PROMOTE, cells["margins"], _share("custom", PROMOTE)),
        _demand("false PROMOTE of `custom`, breaks", FALSE_PROMOTE, cells["breaks"], _share("custom", PROMOTE)),
        _covered("upper", "coverage, upper bound of `default`", every),
        _covered("lower", "coverage, lower bound, cells without *", most),
        _covered("plain upper", "coverage, upper bound of `custom`, cells without *, no breaks", [
            measured for measured in most if "breaks" not in measured.cell.where
        ]),
    ]  # fmt: skip


def few(measured: Measured) -> bool:
    """Whether fewer than 5 conversations are expected to move at all, or there are fewer than 7."""
    return touched(measured.cell) < _FEW or measured.cell.conversations < _FEW_CONVERSATIONS


def _share(rule: str, decision: Decision) -> Callable[[Measured], float | None]:
    return lambda measured: measured.share(rule, decision)


def _demand(what: str, limit: float, cells: Sequence[Measured], of: Callable[[Measured], float | None]) -> Demand:
    rates = [(rate, measured) for measured in cells if (rate := of(measured)) is not None]
    rate, worst = max(rates, key=lambda pair: pair[0])
    allowed = limit + _ERRORS * math.sqrt(limit * (1 - limit) / worst.runs)
    missed = [measured.cell.name for rate, measured in rates if rate > allowed]
    return Demand(what, f"at most {limit:.0%}", rate, worst.cell.name, missed)


def _covered(bound: str, what: str, cells: Sequence[Measured]) -> Demand:
    worst = min(cells, key=lambda measured: measured.coverage(bound))
    allowed = COVERAGE - _ERRORS * math.sqrt(COVERAGE * (1 - COVERAGE) / worst.runs)
    missed = [measured.cell.name for measured in cells if measured.coverage(bound) < allowed]
    return Demand(what, f"at least {COVERAGE:.0%}", worst.coverage(bound), worst.cell.name, missed)


def _summary(found: Sequence[Demand], confirmed: Sequence[Confirmed]) -> str:
    rows = [
        (
            each.what,
            each.limit,
            _percent(each.worst),
            each.where,
            f"missed in {len(each.missed)}" if each.missed else "met",
        )
        for each in found
    ]
    asked = [c for c in confirmed if c.stage.epochs != 32]
    precision = min(c.precision for c in asked if c.stage.damaged and c.precision is not None)
    power = min(c.power for c in asked if c.power is not None)
    rows += [
        (
            "confirmed flags: precision",
            "at least 95%",
            _percent(precision),
            "",
            "met" if precision >= 0.95 else "missed",
        ),
        (
            "confirmed flags: power for a loss of 0.5",
            "at least 85%",
            _percent(power),
            "",
            "met" if power >= 0.85 else "missed",
        ),
    ]
    heads = ("", "limit", "worst cell", "which", "within three simulation errors")
    missed = [f"- {each.what}: {name}" for each in found for name in each.missed]
    above = "\nBeyond their limit by more than three simulation errors:\n\n" + "\n".join(missed) if missed else ""
    return _table(heads, rows) + "\n" + above


def _controls(cells: Iterable[Measured]) -> str:
    heads = ("cell", "`default` HOLD", "PROMOTE", "INCONCLUSIVE", "`custom` PROMOTE", "`strict` HOLD", "PROMOTE",
             *(f"{rule} HOLD" for rule in NAIVE), "covers: `default`", "`custom`", "lower")  # fmt: skip
    return _table(heads, [
        (_name(m), *_rates(m, ("default", HOLD), ("default", PROMOTE), ("default", INCONCLUSIVE), ("custom", PROMOTE),
                           ("strict", HOLD), ("strict", PROMOTE), *((rule, HOLD) for rule in NAIVE)), *_coverage(m))
        for m in cells
    ])  # fmt: skip


def _margins(cells: Iterable[Measured]) -> str:
    heads = ("cell", "`default` PROMOTE", "INCONCLUSIVE", "HOLD", "`custom` PROMOTE", "`strict` PROMOTE",
             *(f"{rule} PROMOTE" for rule in NAIVE), "covers: `default`", "`custom`", "lower")  # fmt: skip
    return _table(heads, [
        (_name(m), *_rates(m, ("default", PROMOTE), ("default", INCONCLUSIVE), ("default", HOLD), ("custom", PROMOTE),
                           ("strict", PROMOTE), *((rule, PROMOTE) for rule in NAIVE)), *_coverage(m))
        for m in cells
    ])  # fmt: skip


def _powers(cells: Iterable[Measured]) -> str:
    rules = tuple(rule for rule in NAIVE if rule != "bootstrap")
    heads = ("cell", "`default` HOLD", "INCONCLUSIVE", "PROMOTE", "`custom` PROMOTE", "`strict` HOLD",
             *(f"{rule} HOLD" for rule in rules), "covers: `default`", "`custom`", "lower")  # fmt: skip
    return _table(heads, [
        (_name(m), *_rates(m, ("default", HOLD), ("default", INCONCLUSIVE), ("default", PROMOTE), ("custom", PROMOTE),
                           ("strict", HOLD), *((rule, HOLD) for rule in rules)), *_coverage(m))
        for m in cells
    ])  # fmt: skip


def _confirmation(found: Iterable[Confirmed]) -> str:
    heads = ("chances of success", "turns that lose 0.5", "fresh epochs", "flags a run", "of the damaged turns flagged",
             "runs with a false confirmation", "precision", "power", "fresh replies a run")  # fmt: skip
    return _table(heads, [
        (f"Beta({c.stage.difficulty[0]:g}, {c.stage.difficulty[1]:g})", str(c.stage.damaged), str(c.stage.epochs),
         f"{c.flagged / RUNS:.0f}", _percent(c.screened / (c.stage.damaged * RUNS) if c.stage.damaged else None),
         _percent(c.false_runs / RUNS), _percent(c.precision if c.stage.damaged else None), _percent(c.power),
         f"{2 * c.stage.epochs * c.flagged / RUNS:,.0f}")
        for c in found
    ])  # fmt: skip


def _published(found: Iterable[Case]) -> str:
    heads = ("case", "expected", "margin", "rule", "HOLD", "INCONCLUSIVE", "PROMOTE", "as expected")
    return _table(heads, [
        (case.name, case.expect, f"{case.margin:g}", f"`{rule}`",
         *(_percent(case.share(rule, decision)) for decision in (HOLD, INCONCLUSIVE, PROMOTE)),
         _percent(case.as_expected(rule)))
        for case in found
        for rule in case.decided
    ])  # fmt: skip


def _name(measured: Measured) -> str:
    return measured.cell.name + (" *" if few(measured) else "")


def _rates(measured: Measured, *asked: tuple[str, Decision]) -> list[str]:
    return [_percent(measured.share(rule, decision)) for rule, decision in asked]


def _coverage(measured: Measured) -> list[str]:
    return [_percent(measured.coverage(bound)) for bound in BOUNDS]


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """In Markdown; the first column is text, the others stand right."""
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
