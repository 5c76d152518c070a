"""Counts over the seeded runs of a cell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from benchmarks.characteristics.cells import Cell
from benchmarks.characteristics.rules import RULES, Facts
from benchmarks.characteristics.sample import draw, generator
from kvquant_eval.core.records import Decision

_LEAST_STRICT = 200
"""Turns from which on strata are worth a look."""


@dataclass(frozen=True)
class Measured:
    """``decided`` counts the decisions of each rule that was asked; ``covered`` the runs whose upper bound (with and
    without breaks that were not seen) and lower bound hold for the true drop.
    """

    cell: Cell
    runs: int
    decided: Mapping[str, Mapping[Decision, int]]
    covered: Mapping[str, int]

    def share(self, rule: str, decision: Decision) -> float | None:
        """Of the runs (0..1); None where the rule was not asked."""
        return self.decided[rule][decision] / self.runs if rule in self.decided else None

    def coverage(self, bound: str) -> float:
        """Of the runs (0..1)."""
        return self.covered[bound] / self.runs


def asked(cell: Cell) -> list[str]:
    """The rules that are tried in a cell: strata need conversations, and the bootstrap takes long."""
    left_out = set() if cell.bootstrap else {"bootstrap"}
    if cell.sizes[0] == cell.sizes[1] or cell.turns < _LEAST_STRICT:
        left_out.add("strict")
    return [name for name in RULES if name not in left_out]


def measure(cell: Cell, runs: int) -> Measured:
    """The same for the same name and number of runs."""
    rng, names = generator(cell), asked(cell)
    decided: dict[str, Counter[Decision]] = {name: Counter() for name in names}
    covered: Counter[str] = Counter()
    for _ in range(runs):
        facts = Facts(draw(cell, rng), cell.margin)
        for name in names:
            decided[name][RULES[name](facts)] += 1
        plain = replace(facts.whole, largest=0.0).interval
        covered["upper"] += not facts.whole.below(cell.drop)
        covered["plain upper"] += plain.upper >= cell.drop
        covered["lower"] += plain.lower <= cell.drop
    return Measured(cell, runs, decided, covered)
