"""What a policy looks at in a golden set, score by score: the turns that count, and how they may move by chance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kvquant_eval.core.compare import Key
from kvquant_eval.core.draws import Averaged, Replayed, Source, assumed
from kvquant_eval.core.inference import yes_no
from kvquant_eval.core.noise import Noise, ScoreNoise, by_conversation
from kvquant_eval.core.policy import Policy, Rule, ScorePolicy, ScoreRole, Tier
from kvquant_eval.core.records import GoldenTurn, Measure, Outcome, RenderedTurn, Replay
from kvquant_eval.core.score import Score
from kvquant_eval.core.settings import Settings
from kvquant_eval.core.strata import Position, strata_of

NEARLY = -0.01
"""Log probability (nats) of a token in the best case; with 0 a score would be taken for one of yes and no."""
CONTROL = "placebo"
"""The control whose noise is that of an arm that loses nothing."""

Mask = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, eq=False)
class Target:
    """One score of one class. ``sizes`` are the turns that count in each conversation, ``largest`` is what a
    conversation may lose without one being seen to (points; 0: nothing).

    By turn, one conversation behind the other: ``strata`` that gate, and ``critical`` ones. ``sampled``: more epochs
    would tell more.
    """

    workload: str
    name: str
    rule: ScorePolicy
    sizes: tuple[int, ...]
    largest: float
    source: Source
    critical: Mask
    strata: tuple[Mask, ...] = ()
    sampled: bool = False

    def of(self, conversations: int) -> Target:
        """The same over so many conversations: these, again and again."""
        owners = np.arange(conversations) % len(self.sizes)
        ends = np.cumsum(self.sizes)
        turns = np.concatenate([np.arange(ends[i] - self.sizes[i], ends[i]) for i in owners])
        return replace(
            self,
            sizes=tuple(self.sizes[i] for i in owners),
            critical=self.critical[turns],
            strata=tuple(mask[turns] for mask in self.strata),
        )

    def averaged(self, times: float) -> Target:
        """The same with ``times`` as many epochs."""
        return replace(self, source=Averaged(self.source, times))


def find_targets(
    settings: Settings,
    found: Mapping[Key, float],
    rendered: Sequence[RenderedTurn],
    positions: Mapping[str, Position],
    noise: Noise | None,
) -> tuple[Target, ...]:
    """Every score that may decide over an arm. ``found`` has the turns that there is something to score in
    (``scorable``).
    """
    policy = settings.policy
    classes = [name for name in policy.scores if policy.tier(name) is not Tier.ADVISORY]
    if policy.rule is Rule.ZERO_FLAGS:
        classes = [policy.hardest]
    return tuple(
        target
        for workload in classes
        for name, rule in policy.scores[workload].items()
        if rule.role is not ScoreRole.REPORT
        and (target := _target(settings, workload, name, found, rendered, positions, noise))
    )


def scorable(
    settings: Settings, rendered: Sequence[RenderedTurn], turns: Sequence[GoldenTurn], noise: Noise | None = None
) -> dict[Key, float]:
    """The points of the baseline by (turn, score), as far as they are known before it runs: as its last controls had
    them, else those of a reply nearly as the golden one. Turns that have nothing for a score, such as a decisive span,
    are left out.
    """
    golden = {turn.turn_id: turn for turn in turns}
    points: dict[Key, float] = {}
    for turn in rendered:
        for name, rule in settings.policy.scores[turn.workload].items() if not turn.skip else ():
            seen = measured(noise, turn.workload, name)
            if seen is None and rule.role is not ScoreRole.REPORT:
                best = _points(settings, name, golden[turn.turn_id], turn)
                points |= {} if best is None else {(turn.turn_id, name): best}
    for classes in (noise.controls.get(CONTROL, {}) if noise else {}).values():
        for name, seen in classes.items():
            points |= {(turn, name): base for turn, base in zip(seen.turn_ids, seen.baseline, strict=True)}
    return points


def measured(noise: Noise | None, workload: str, name: str) -> ScoreNoise | None:
    """What the control showed of a score."""
    return noise.controls.get(CONTROL, {}).get(workload, {}).get(name) if noise else None


def _target(
    settings: Settings,
    workload: str,
    name: str,
    found: Mapping[Key, float],
    rendered: Sequence[RenderedTurn],
    positions: Mapping[str, Position],
    noise: Noise | None,
) -> Target | None:
    """None where no turn counts."""
    policy, rule = settings.policy, settings.policy.scores[workload][name]
    least = policy.headroom_points if _needs_headroom(policy, rule) else 0.0
    owners: dict[str, list[str]] = {}
    for turn in rendered:
        if turn.workload == workload and found.get((turn.turn_id, name), -1.0) >= least:
            owners.setdefault(turn.conversation_id, []).append(turn.turn_id)
    if not owners:
        return None
    turns = [turn for mine in owners.values() for turn in mine]
    seen, measure = measured(noise, workload, name), settings.scorers[workload][name].measure
    gates = policy.rule is Rule.STRICT and rule.role is ScoreRole.GATE
    return Target(
        workload=workload,
        name=name,
        rule=rule,
        sizes=tuple(len(mine) for mine in owners.values()),
        largest=policy.largest_break,
        source=_replayed(seen, least) if seen else assumed(name, measure, settings.sampling.epochs),
        critical=np.isin(turns, policy.critical_turns) & (rule.role is ScoreRole.GATE),
        strata=tuple(_mask(part, len(turns)) for part in strata_of([positions[t] for t in turns])) if gates else (),
        sampled=measure is not Measure.FORCED and settings.sampling.temperature > 0,
    )


def _needs_headroom(policy: Policy, rule: ScorePolicy) -> bool:
    """Flags look at every turn, means of gating scores at those with headroom."""
    return rule.role is ScoreRole.GATE and policy.rule is not Rule.ZERO_FLAGS


def _replayed(seen: ScoreNoise, least: float) -> Replayed:
    return Replayed(by_conversation(seen, least), yes_no=yes_no(seen.drops, seen.baseline))


def _mask(part: Sequence[int], turns: int) -> Mask:
    mask = np.zeros(turns, dtype=bool)
    mask[list(part)] = True
    return mask


def _points(settings: Settings, name: str, turn: GoldenTurn, rendered: RenderedTurn) -> float | None:
    """What the scorer gives a reply that has nearly every probability; None where the turn has nothing for it to score.
    Scorers of generated replies are not asked: there is none yet.
    """
    scorer, ids = settings.scorers[turn.workload][name], rendered.golden_ids
    if scorer.measure is not Measure.FORCED:
        return 100.0 * math.exp(NEARLY)
    replay = Replay(
        turn_id=turn.turn_id,
        measure=Measure.FORCED,
        epoch=0,
        outcome=Outcome.OK,
        token_ids=ids,
        logprobs=(NEARLY,) * len(ids),
    )
    score = scorer(replay, turn, rendered)
    return score.points if isinstance(score, Score) else None
