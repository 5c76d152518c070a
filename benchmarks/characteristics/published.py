"""How often the cases of public studies are decided as they deserve."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.characteristics.rules import RULES, Facts
from benchmarks.characteristics.sample import Sample
from kvquant_eval.core.records import Decision, ScoreDelta
from tests.fakes.published import CASES, article, simulate

REPLICATES = 500
WIDE, NARROW = 5.0, 2.0
"""Margins (points): of cases that are expected to have lost something, and of those that have not."""


@dataclass(frozen=True)
class Case:
    """A published case, its margin, the rules that it is put to, and how often each decides what."""

    name: str
    expect: str
    margin: float
    decided: Mapping[str, Mapping[Decision, int]]

    def share(self, rule: str, decision: Decision) -> float:
        """Of the replicates (0..1)."""
        return self.decided[rule][decision] / sum(self.decided[rule].values())

    def as_expected(self, rule: str) -> float:
        """Share of the replicates (0..1)."""
        word = self.expect.removeprefix("not ").split()[0].rstrip(":")
        share = self.share(rule, Decision(word))
        return 1 - share if self.expect.startswith("not ") else share


def margin(case: Mapping[str, Any]) -> float:
    """Points that the mean of a case may drop."""
    return WIDE if case["expect"] == "HOLD" or case["expect"].startswith("not PROMOTE") else NARROW


def study(name: str) -> Case:
    """The rates of one case; the same for the same name."""
    case = CASES[name]
    fleet = name.startswith("article-")
    counts: dict[str, Counter[Decision]] = {
        rule: Counter() for rule in (("zero_flags",) if fleet else ("default", "custom"))
    }
    for seed in range(REPLICATES):
        facts = Facts(sample((article if fleet else simulate)(case, seed)), margin(case))
        for rule, found in counts.items():
            found[RULES[rule](facts)] += 1
    return Case(name, case["expect"], margin(case), counts)


def sample(deltas: Sequence[ScoreDelta]) -> Sample:
    """The arrays of deltas that all have a drop."""
    places: dict[str, int] = {}
    return Sample(
        np.array([d.baseline for d in deltas], dtype=float),
        np.array([d.drop for d in deltas], dtype=float),
        np.array([places.setdefault(d.conversation_id, len(places)) for d in deltas]),
        np.array([d.turn_index for d in deltas]),
    )
