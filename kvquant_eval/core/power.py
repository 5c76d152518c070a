"""What a policy can see before anything runs: whether an arm that loses nothing would be promoted, and which drops it
would hold. Simulated with the bounds and tests that decide, from fixed seeds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import stats

from kvquant_eval.core.codec import DataError
from kvquant_eval.core.inference import PRACTICABLE
from kvquant_eval.core.policy import Policy, Rule, ScoreRole, Tier
from kvquant_eval.core.records import Decision, Verdict
from kvquant_eval.core.results import CandidateResult, ClassResult
from kvquant_eval.core.stats import CONFIDENCE, Array, standard_error
from kvquant_eval.core.targets import Mask, Target
from kvquant_eval.core.trials import beyond, broken, charges, draw, estimates, passes, surplus

RUNS = 400
"""Simulated arms that lose nothing; a chance of a half is known to 5 points of 100."""
FEWER_RUNS = 100
"""The same where a number is looked for."""
LIKELY = 0.8
"""Chance that what is asked for must have."""
LEAST = 0.5
"""Chance of promotion under which a policy is refused."""
MOST_EPOCHS = 64
_STEPS = 10
_GROWTH = 1.1


@dataclass(frozen=True, kw_only=True)
class ClassPower:
    """One class: ``chance`` (0..1) that it passes with an arm that loses nothing; the mean drop (points) that is
    ``detectable``, held with a chance of ``LIKELY`` (None: none is); how many conversations, or epochs of them,
    passing so would need (None: as many as there are, or no practicable number).
    """

    n_turns: int
    n_conversations: int
    chance: float
    detectable: float | None
    conversations: int | None = None
    epochs: int | None = None


@dataclass(frozen=True, kw_only=True)
class Power:
    """Over all classes that decide: the chances (0..1) that an arm that loses nothing is promoted, and that it is held.
    ``noise`` is the run that measured it (empty: it is assumed), ``advice`` what stands in the way, a sentence each,
    the worst first.
    """

    chance: float
    held: float
    noise: str
    classes: Mapping[str, ClassPower]
    advice: tuple[str, ...]

    @property
    def source(self) -> str:
        return "measured" if self.noise else "assumed"

    @property
    def enough(self) -> bool:
        return self.chance >= LEAST


def foresee(targets: Sequence[Target], policy: Policy, best: CandidateResult, noise: str = "") -> Power:
    """``best`` is the decision over an arm of which no turn moves: what keeps even that from passing is counted."""
    drops = [draw(target, RUNS) for target in targets]
    family = [p for target, moved in zip(targets, drops, strict=True) for p in charges(target, moved, policy)]
    level = policy.hold_level / max(1, len(family))
    held = np.zeros(RUNS, dtype=bool)
    for p in family:
        held |= p < level
    passing: dict[str, Mask] = {}
    for target, moved in zip(targets, drops, strict=True):
        if target.rule.role is ScoreRole.GATE:
            held |= broken(target, moved, policy)
            still = best.classes[target.workload].verdict is Verdict.PASS
            mine = passes(target, moved, policy) if still else np.zeros(RUNS, dtype=bool)
            passing[target.workload] = passing.get(target.workload, np.ones(RUNS, dtype=bool)) & mine
    classes = {w: _class_power([t for t in targets if t.workload == w], policy, passing[w], level) for w in passing}
    must = [mine for workload, mine in passing.items() if policy.tier(workload) is Tier.CRITICAL]
    promoted = np.all([*must, ~held], axis=0) & (best.decision is Decision.PROMOTE)
    return Power(
        chance=float(promoted.mean()),
        held=float(held.mean()),
        noise=noise,
        classes=classes,
        advice=tuple(_advice(targets, policy, best, classes)),
    )


def refuse_hopeless(power: Power, policy: Policy) -> None:
    """Raise DataError for a policy that would hardly promote an arm that loses nothing, unless it is allowed."""
    if power.enough or policy.allow_underpowered:
        return
    rule = f"gate: at least an even chance to promote a candidate that loses nothing, got {power.chance:.0%}"
    first = f" ({power.advice[0]})" if power.advice else ""
    remedy = "raise flag_over" if policy.rule is Rule.ZERO_FLAGS else "add conversations, lower gate.largest_break"
    remedy = f"{remedy}, or set gate.allow_underpowered=true"
    raise DataError(f"{rule} under {policy.name}{first}; {remedy}")


def as_data(power: Power, policy: Policy) -> dict[str, Any]:
    """What a run keeps of it; ``allowed``: also where the chance is small; ``run``: the one that measured the noise."""
    return {
        "chance": power.chance,
        "held": power.held,
        "noise": power.source,
        "run": power.noise,
        "allowed": policy.allow_underpowered,
        "classes": {workload: asdict(each) for workload, each in power.classes.items()},
        "advice": list(power.advice),
    }


def break_needs(margin: float, largest: float) -> int:
    """Conversations of which one that loses ``largest`` points would have been seen, were it so frequent that the mean
    drop is ``margin``: Clopper and Pearson's bound without an event. 1 where a break cannot reach the margin.
    """
    return math.ceil(math.log(1 - CONFIDENCE) / math.log(1 - margin / largest)) if largest > margin else 1


def turns_needed(variance: float, margin: float, chance: float, size: float = 1.0, correlation: float = 0.0) -> float:
    """Turns after which a mean drop of 0 is below ``margin`` (points) with this ``chance`` (0..1): ``variance`` is that
    of a turn's drop, ``size`` the turns of a conversation, ``correlation`` that within one.

    (z_0.95 + z)^2 variance / margin^2 (1 + (m - 1) rho): Miller, "Adding Error Bars to Evals" (arXiv 2411.00640).
    """
    z = float(stats.norm.ppf(CONFIDENCE) + stats.norm.ppf(chance))
    return z**2 * variance / margin**2 * (1 + (size - 1) * correlation)


def _class_power(targets: Sequence[Target], policy: Policy, passing: Mask, level: float) -> ClassPower:
    gating = [target for target in targets if target.rule.role is ScoreRole.GATE]
    found = [drop for target in gating if (drop := _detectable(target, policy, level)) is not None]
    chance = float(passing.mean())
    lacking = chance < LIKELY and policy.rule is not Rule.ZERO_FLAGS
    return ClassPower(
        n_turns=min(sum(target.sizes) for target in gating),
        n_conversations=min(len(target.sizes) for target in gating),
        chance=chance,
        detectable=min(found, default=None),
        conversations=_conversations(gating, policy) if lacking else None,
        epochs=_epochs(gating, policy) if lacking and any(target.sampled for target in gating) else None,
    )


def _detectable(target: Target, policy: Policy, level: float) -> float | None:
    """The mean drop, the same in every turn (in every turn as likely, of yes/no scores), that the score alone holds
    with a chance of ``LIKELY``, to a tenth of a point. ``level`` is that of a single reason.
    """
    drops = draw(target, FEWER_RUNS // 2)
    dice = np.random.default_rng(0).uniform(0.0, 100.0, drops.shape)
    needed = None if target.source.yes_no else _shifts(target, drops, policy, level)

    def held(shift: float) -> bool:
        moved = np.where(dice < shift, 100.0, drops) if needed is None else drops + shift
        found = broken(target, moved, policy)
        if policy.rule is not Rule.ZERO_FLAGS:
            found |= beyond(target, moved, policy) < level if needed is None else shift > needed
            if target.workload == policy.hardest:
                found |= surplus(target, moved) < level
        return bool(found.mean() >= LIKELY)

    low, high = 0.0, 100.0
    if not held(high):
        return None
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if held(middle) else (middle, high)
    return high


def _shifts(target: Target, drops: Array, policy: Policy, level: float) -> Array:
    """How far each run would have to move as a whole for ``Estimate.beyond`` to be under ``level``. With so few
    conversations that their signs may be chance, none is far enough.
    """
    count = len(target.sizes)
    if count < 2 or 0.5**count >= policy.hold_level:
        return np.full(len(drops), math.inf)
    reach = float(stats.t.isf(level, count - 1))
    seen = (each.seen for each in estimates(target, drops))
    return np.array([target.rule.margin - each.mean + reach * standard_error(each) for each in seen])


def _likely(targets: Sequence[Target], policy: Policy) -> bool:
    passing = np.ones(FEWER_RUNS, dtype=bool)
    for target in targets:
        passing &= passes(target, draw(target, FEWER_RUNS), policy)
    return bool(passing.mean() >= LIKELY)


def _conversations(targets: Sequence[Target], policy: Policy) -> int | None:
    """How many conversations like these would let the class pass with a chance of ``LIKELY``, to a tenth of them; None:
    over ``PRACTICABLE`` times as many. What no fewer can do is known without a simulation.
    """
    count = max(_least_conversations(target) for target in targets)
    most = PRACTICABLE * min(len(target.sizes) for target in targets)
    while count <= most:
        if _likely([target.of(count) for target in targets], policy):
            return count
        count = math.ceil(count * _GROWTH)
    return None


def _least_conversations(target: Target) -> int:
    """What the closed formula asks for, and every stratum for itself."""
    size = sum(target.sizes) / len(target.sizes)
    variance = float(draw(target, FEWER_RUNS).var())
    turns = turns_needed(variance, target.rule.margin, LIKELY)
    count = max(2, math.floor(turns / size), break_needs(target.rule.margin, target.largest))
    owners = np.repeat(np.arange(len(target.sizes)), target.sizes)
    shares = [len(set(owners[part])) / len(target.sizes) for part in target.strata]
    return math.ceil(count / min(shares, default=1.0))


def _epochs(targets: Sequence[Target], policy: Policy) -> int | None:
    """How many times the epochs would do the same with these conversations; None: over ``MOST_EPOCHS`` times."""
    times = 2
    while times <= MOST_EPOCHS:
        if _likely([target.averaged(times) if target.sampled else target for target in targets], policy):
            return times
        times *= 2
    return None


def _advice(
    targets: Sequence[Target], policy: Policy, best: CandidateResult, classes: Mapping[str, ClassPower]
) -> Iterator[str]:
    """A sentence a class that would rather not pass, those of the lowest chance and the fewest conversations first."""
    lacking = [(power.chance, power.n_conversations, name) for name, power in classes.items() if power.chance < LIKELY]
    for _, _, workload in sorted(lacking):
        if policy.tier(workload) is Tier.CRITICAL:
            gating = [t for t in targets if t.workload == workload and t.rule.role is ScoreRole.GATE]
            yield f"{workload}: {_obstacle(gating, policy, classes[workload], best.classes[workload])}"
    if best.decision is not Decision.PROMOTE and not lacking:
        yield from best.reasons


def _obstacle(targets: Sequence[Target], policy: Policy, power: ClassPower, best: ClassResult) -> str:
    if policy.rule is Rule.ZERO_FLAGS and best.verdict is Verdict.PASS:
        often = f"a candidate that loses nothing has no flag with a chance of {power.chance:.0%}"
        return f"{often}, and more turns make it less"
    first = max(targets, key=lambda t: break_needs(t.rule.margin, t.largest) - len(t.sizes))
    count, needed = len(first.sizes), break_needs(first.rule.margin, first.largest)
    if count < needed and policy.rule is not Rule.ZERO_FLAGS:
        why = f"before a break in an unseen one can be ruled out to {first.rule.margin:g} points"
        return f"{count} conversations; at least {needed} are needed {why}, or set gate.largest_break"
    more = f"{power.conversations} like these" if power.conversations else ""
    epochs = f"{power.epochs} times the epochs" if power.epochs else ""
    wanted = " or ".join(filter(None, [more, epochs])) or "no practicable number of them"
    if best.verdict is not Verdict.PASS:
        return best.reasons[0]
    return f"{power.n_conversations} conversations; {wanted} would let it pass with a chance of {LIKELY:.0%}"
