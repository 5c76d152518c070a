"""What may speak against an arm: drops beyond a margin, drops that outnumber gains, second tests, critical turns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kvquant_eval.core.compare import Key
from kvquant_eval.core.confirm import Confirmation
from kvquant_eval.core.judge_noise import JudgeNoise, Place, drowns
from kvquant_eval.core.policy import Policy, Rule, ScoreRole, Tier
from kvquant_eval.core.records import ScoreDelta, Verdict
from kvquant_eval.core.results import ScoreResult
from kvquant_eval.core.strata import Position, Stratum
from kvquant_eval.core.summary import drop_of, has_drop

NAMED = 3
"""Turns of a second test that a reason names; the report lists all."""
Said = tuple[Verdict, str]
"""What speaks for which verdict, in a sentence."""


@dataclass(frozen=True, kw_only=True)
class Grounds:
    """What is known beside the drops.

    ``headroom`` is the baseline score of each (turn, scorer), from baseline and repeat; ``skipped`` counts the turns of
    each class that no arm could run; ``judges`` is how far those who are asked differ from themselves; ``positions``
    are where turns stand, for strata; ``confirmations`` are second tests of flags (None: there was no such stage).
    """

    headroom: Mapping[Key, float]
    skipped: Mapping[str, int] = field(default_factory=dict)
    judges: Mapping[Place, JudgeNoise] = field(default_factory=dict)
    positions: Mapping[str, Position] = field(default_factory=dict)
    confirmations: Mapping[Key, Confirmation] | None = None


@dataclass(frozen=True, kw_only=True)
class Charge:
    """A reason to hold, and its chance ``p`` where nothing is lost. All charges against an arm are one family, adjusted
    by Holm: together they hold an arm that loses nothing with a chance of ``hold_level`` at most.
    """

    workload: str
    sentence: str
    p: float


def charges_against(
    scores: Mapping[str, Mapping[str, ScoreResult]], policy: Policy, grounds: Grounds
) -> Iterator[Charge]:
    """Everything that may hold the arm by chance."""
    if policy.rule is Rule.ZERO_FLAGS:
        return
    for workload, found in scores.items():
        for name, score in found.items():
            drowned = drowns(grounds.judges.get((workload, name)), score.margin)
            if score.role is ScoreRole.REPORT or drowned or policy.tier(workload) is Tier.ADVISORY:
                continue
            over = f"{name}: {at_least(score)} is beyond the margin of {score.margin:g}"
            yield Charge(workload=workload, sentence=over, p=score.beyond_p)
            if score.role is ScoreRole.GATE and workload == policy.hardest:
                counts = f"{score.drops_over} turns drop over {score.flag_over:g} points"
                sentence = f"{name}: {counts} against {score.gains_over} that gain as much"
                yield Charge(workload=workload, sentence=sentence, p=score.direction_p)
            if score.role is ScoreRole.GATE and policy.rule is Rule.STRICT:
                for part in score.strata:
                    sentence = f"{name}, {part.name}: {at_least(part)} is beyond the margin of {score.margin:g}"
                    yield Charge(workload=workload, sentence=sentence, p=part.beyond_p)


def confirmed(workload: str, deltas: Sequence[ScoreDelta], policy: Policy, grounds: Grounds) -> Iterator[Said]:
    """Flags of the hardest class that a second test confirmed, a sentence a score; the largest drops are named."""
    if workload != policy.hardest or not grounds.confirmations:
        return
    for name in policy.scores[workload]:
        mine = ((d.turn_id, grounds.confirmations.get((d.turn_id, name))) for d in deltas if d.scorer == name)
        tested = {turn_id: found for turn_id, found in mine if found}
        stand = sorted((t for t, found in tested.items() if found.confirmed), key=lambda t: -tested[t].drop)
        if stand:
            first = ", ".join(f"{t} by {tested[t].drop:.0f} points (p = {tested[t].holm:.2g})" for t in stand[:NAMED])
            more = f" and {len(stand) - NAMED} more" if len(stand) > NAMED else ""
            epochs = tested[stand[0]].epochs
            counts = f"{len(stand)} of {len(tested)} flagged turns drop again over {epochs} fresh epochs"
            yield Verdict.FAIL, f"{name}: {counts}: {first}{more}"


def critical_turns(
    deltas: Sequence[ScoreDelta], policy: Policy, grounds: Grounds
) -> Iterator[tuple[str, Verdict, str]]:
    """What speaks against turns that may never regress, with their class. Where flags are put to a second test, that
    decides.
    """
    wanted = {*policy.critical_turns}
    for d in deltas:
        rule = policy.scores[d.workload][d.scorer]
        if d.turn_id not in wanted or rule.role is not ScoreRole.GATE:
            continue
        if not has_drop(d):
            yield (
                d.workload,
                Verdict.INCONCLUSIVE,
                f"{d.scorer}: {d.turn_id}, which may never regress, has no pair of scores",
            )
            continue
        second = (grounds.confirmations or {}).get((d.turn_id, d.scorer))
        if drop_of(d) > rule.flag_over and (second is None or second.confirmed):
            drops = f"drops by {drop_of(d):.2f} points, over {rule.flag_over:g}"
            yield d.workload, Verdict.FAIL, f"{d.scorer}: {d.turn_id}, which may never regress, {drops}"


def at_least(found: ScoreResult | Stratum) -> str:
    """Of what is beyond a margin only the lower bound matters."""
    lower = "" if found.ci_lower is None else f", at least {found.ci_lower:.2f},"
    return f"mean drop {found.mean_drop:.2f} points{lower}"
