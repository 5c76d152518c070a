"""Mixed precision: which layers carry the damage, and the cheapest set of them whose BF16 lets a dtype pass.

Everything here is a plan: which sets of units (``core.mixed``) to try next, and what to make of what came back.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from kvquant_eval.core.codec import digest
from kvquant_eval.core.mixed import Kept, in_order, keeping, place
from kvquant_eval.core.policy import Policy, ScoreRole
from kvquant_eval.core.records import Decision
from kvquant_eval.core.results import CandidateResult
from kvquant_eval.core.treatment import KVTreatment

EIGHTHS = 8
"""Into so many parts the units are cut for the first look at the curve."""
FEWEST = 8
"""Passes beyond the ranking that a search is not begun without: baseline, controls, and a look at the curve."""
TRUST = 9.0
"""Times that one of two measurements may weigh more than the other: an effect that is masked wherever others are
quantized too has no variance there, and says nothing.
"""
PREDICT = 2.0
"""Times the way from the mean drop to its bound that must fit under the margin on the conversations that choose, for
the others to be likely to pass. With a standard error s on each half, passing there has a probability of 90% where the
mean here is under the margin by 1.65 s + 1.28 sqrt(2) s = 3.5 s; the bound lies at 1.65 s."""


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One engine pass: a treatment over some golden turns, against its baseline.

    ``kl``: mean KL to the baseline, nats a token. ``drop``: mean drop over all turns and gating scores, points, > 0 is
    worse. ``worst``: the class and score whose bound comes nearest to its margin or goes furthest beyond;
    ``worst_drop`` and ``worst_bound``: its mean drop and upper bound (points, None: no bound). ``reach``: the largest
    share of a margin that a bound takes up, < 1 passes, None where one has no bound; ``predicted``: the same for other
    conversations (``PREDICT``).
    ``bytes_per_token`` is what the format takes, None where that is not known, ``compression`` what the baseline takes
    by it; ``kept``: the units in BF16, where it is a pass of a search; ``shares``: what each turn adds to ``kl``.
    """

    name: str
    decision: Decision
    kl: float | None
    drop: float | None
    worst: str
    worst_drop: float | None
    worst_bound: float | None
    reach: float | None
    predicted: float | None
    bytes_per_token: float | None
    compression: float | None
    kept: Kept = ()
    shares: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """What a unit does: ``alone`` only it is quantized, ``spared`` all but it are.

    ``brings``, nats a token, is the KL of it alone, what it adds as the first of all units; ``saves`` the KL that
    sparing it takes away, what it adds as the last. ``harm`` is the mean of both, each weighted by the inverse of its
    variance over turns, within ``TRUST``: the KL of all other units is noise to ``saves``. ``error``: its standard
    error.
    """

    unit: str
    alone: Pass
    spared: Pass
    brings: float
    saves: float
    harm: float
    error: float


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a search came to. ``chosen`` is None where nothing below BF16 passes; ``sure``: the chosen one is likely to
    pass on other conversations too. ``curve`` has every pass by its strategy, ``sensitive`` being the search's own.
    """

    chosen: Pass | None
    sure: bool
    curve: Mapping[str, tuple[Pass, ...]]
    passes: int


Measure = Callable[[Sequence[KVTreatment]], list[Pass]]


def rank(units: Kept, passes: Sequence[Pass]) -> list[Sensitivity]:
    """The units by their harm, the worst first, from the passes of ``core.mixed.probes`` and the one named ``all``."""
    by_name = {each.name: each for each in passes}
    found = [_sensitivity(unit, by_name["all"], by_name[f"only-{unit}"], by_name[f"without-{unit}"]) for unit in units]
    return sorted(found, key=lambda each: (-each.harm, place(each.unit)))


def _sensitivity(unit: str, everything: Pass, alone: Pass, spared: Pass) -> Sensitivity:
    saved = [a - b for a, b in zip(everything.shares, spared.shares, strict=True)]
    brings, saves = math.fsum(alone.shares), math.fsum(saved)
    first, second = _variance(alone.shares), _variance(saved)
    left, right = second + first / TRUST, first + second / TRUST  # the weights, inverse to the variances within bounds
    weight = left / (left + right) if left + right else 0.5
    return Sensitivity(
        unit=unit,
        alone=alone,
        spared=spared,
        brings=brings,
        saves=saves,
        harm=weight * brings + (1 - weight) * saves,
        error=math.sqrt(weight**2 * first + (1 - weight) ** 2 * second),
    )


def _variance(shares: Sequence[float]) -> float:
    """Of their sum, turns taken as independent."""
    return len(shares) * statistics.variance(shares) if len(shares) > 1 else 0.0


def find(treatment: KVTreatment, units: Kept, ranking: Sequence[str], measure: Measure, budget: int) -> Found:
    """The fewest units in BF16 that pass, in at most ``budget`` passes.

    First the curve: none, an eighth, two eighths, ... and all but one of the units in BF16, the most sensitive first.
    Then bisection, between the largest number of most sensitive units that does not do and the smallest that does. Then
    the folk remedies on the same bytes, at every other place of the curve. Last, each kept unit is tried without, as
    long as the budget lasts. A set *does* that is likely to pass on other conversations (``PREDICT``); where none is,
    one that passes.
    """
    trial = _Trial(treatment, measure, budget)
    sizes = [len(units) * part // EIGHTHS for part in (0, 4, 2, 6, 1, 3, 5, 7)]  # a small budget sees the whole curve
    most = max(0, len(units) - 1)
    trial.run([(SENSITIVE, in_order(ranking[:size])) for size in dict.fromkeys((sizes[0], most, *sizes[1:]))])
    does, sure = _standard(trial)
    best = None if does is None else _bisect(trial, ranking, does)
    compared = [*([len(best.kept)] if best else []), *sizes[1:4]]
    trial.run([(name, pick(units, size)) for size in compared for name, pick in REMEDIES.items()])
    if best and does:
        best = _pruned(trial, ranking, best, does)
    return trial.found(best, sure=sure)


SENSITIVE = "sensitive"
REMEDIES: Mapping[str, Callable[[Kept, int], Kept]] = {
    "first": lambda units, size: units[:size],
    "last": lambda units, size: units[len(units) - size :],
    "both ends": lambda units, size: units[: (size + 1) // 2] + units[len(units) - size // 2 :],
}
"""What people keep in BF16 without looking: so many units of the model, by name."""


class _Trial:
    """Passes that were run, by what they keep, and how many are left."""

    def __init__(self, treatment: KVTreatment, measure: Measure, budget: int) -> None:
        self.treatment, self.measure, self.left = treatment, measure, budget
        self.known: dict[Kept, Pass] = {}
        self.curve: dict[str, list[Kept]] = {strategy: [] for strategy in (SENSITIVE, *REMEDIES)}

    def run(self, wanted: Sequence[tuple[str, Kept]]) -> list[Pass]:
        """The passes of these (strategy, kept) pairs, each set once; those that the budget does not allow are left
        out.
        """
        new = [kept for kept in dict.fromkeys(kept for _, kept in wanted) if kept not in self.known][: self.left]
        self.left -= len(new)
        treatments = [keeping(self.treatment, kept, f"kept-{len(kept)}-{digest(list(kept))[:8]}") for kept in new]
        measured = self.measure(treatments) if new else []
        self.known |= {kept: replace(each, kept=kept) for kept, each in zip(new, measured, strict=True)}
        done = [(strategy, kept) for strategy, kept in wanted if kept in self.known]
        for strategy, kept in done:
            self.curve[strategy].append(kept)
        return [self.known[kept] for _, kept in done]

    def found(self, chosen: Pass | None, *, sure: bool) -> Found:
        curve = {
            strategy: tuple(sorted((self.known[kept] for kept in dict.fromkeys(mine)), key=lambda each: len(each.kept)))
            for strategy, mine in self.curve.items()
        }
        return Found(chosen=chosen, sure=sure, curve=curve, passes=len(self.known))


def passes(each: Pass) -> bool:
    """Whether the policy passes on the turns of this pass."""
    return each.decision is Decision.PROMOTE


def likely(each: Pass) -> bool:
    """Whether it would be likely to pass on as many other turns too."""
    return passes(each) and each.predicted is not None and each.predicted < 1


def _standard(trial: _Trial) -> tuple[Callable[[Pass], bool] | None, bool]:
    """What is asked of a set, and whether that is the stricter one: what at least one pass of the curve fulfils."""
    curve = trial.found(None, sure=False).curve[SENSITIVE]
    if any(likely(each) for each in curve):
        return likely, True
    return (passes, False) if any(passes(each) for each in curve) else (None, False)


def _bisect(trial: _Trial, ranking: Sequence[str], does: Callable[[Pass], bool]) -> Pass:
    """The fewest most sensitive units that do, above the most that do not."""
    curve = trial.found(None, sure=False).curve[SENSITIVE]
    best = min((each for each in curve if does(each)), key=lambda each: len(each.kept))
    low = max((len(each.kept) for each in curve if len(each.kept) < len(best.kept)), default=-1)
    while len(best.kept) - low > 1:
        middle = (low + len(best.kept)) // 2
        tried = trial.run([(SENSITIVE, in_order(ranking[:middle]))])
        if not tried:
            break
        best, low = (tried[0], low) if does(tried[0]) else (best, middle)
    return best


def _pruned(trial: _Trial, ranking: Sequence[str], best: Pass, does: Callable[[Pass], bool]) -> Pass:
    """Without the units that can go: each is tried alone, then those that can are taken out together, one by one."""
    kept = [unit for unit in reversed(ranking) if unit in best.kept]
    tried = {each.kept: each for each in trial.run([(SENSITIVE, _without(best.kept, unit)) for unit in kept])}
    spare = [unit for unit in kept if (each := tried.get(_without(best.kept, unit))) and does(each)]
    for unit in spare:
        fewer = trial.run([(SENSITIVE, _without(best.kept, unit))])
        best = fewer[0] if fewer and does(fewer[0]) else best
    return best


def _without(kept: Kept, unit: str) -> Kept:
    return tuple(each for each in kept if each != unit)


def measured(
    name: str,
    result: CandidateResult,
    policy: Policy,
    *,
    kl: float | None,
    shares: tuple[float, ...],
    size: float | None,
    plain: float,
) -> Pass:
    """One pass, from what the gate made of it. ``size`` and ``plain``: bytes a token of it and of its baseline."""
    margins = {
        (workload, name): (score, policy.scores[workload][name].margin)
        for workload, judged in result.classes.items()
        for name, score in judged.scores.items()
        if score.role is ScoreRole.GATE
    }
    counts = sum(score.n_turns for score, _ in margins.values())
    reach = {
        place: (score.ci_upper / margin, (score.mean_drop + PREDICT * (score.ci_upper - score.mean_drop)) / margin)
        if score.ci_upper is not None
        else (math.inf, math.inf)
        for place, (score, margin) in margins.items()
    }
    worst = max(reach, key=lambda place: (reach[place], place), default=None)
    return Pass(
        name=name,
        decision=result.decision,
        kl=kl,
        drop=sum(s.n_turns * s.mean_drop for s, _ in margins.values()) / counts if counts else None,
        worst=" ".join(worst) if worst else "",
        worst_drop=margins[worst][0].mean_drop if worst else None,
        worst_bound=margins[worst][0].ci_upper if worst else None,
        reach=_finite(max((now for now, _ in reach.values()), default=math.inf)),
        predicted=_finite(max((later for _, later in reach.values()), default=math.inf)),
        bytes_per_token=size,
        compression=plain / size if size else None,
        shares=shares,
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
