"""The drops of one score over one class, summed up: no verdict yet."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from kvquant_eval.core.compare import Key
from kvquant_eval.core.confirm import Confirmation
from kvquant_eval.core.inference import Estimate, estimate
from kvquant_eval.core.policy import Policy, ScorePolicy, ScoreRole
from kvquant_eval.core.records import ScoreDelta
from kvquant_eval.core.results import ScoreResult
from kvquant_eval.core.stats import clustered, sign_flip
from kvquant_eval.core.strata import Axis, Position, Stratum, strata, trends


def summarise(
    paired: Sequence[ScoreDelta],
    counted: Sequence[ScoreDelta],
    n_headroom: int,
    rule: ScorePolicy,
    policy: Policy,
    positions: Mapping[str, Position],
    confirmations: Mapping[Key, Confirmation] | None,
) -> ScoreResult:
    """Flags look at every pair of a class; means, bounds, strata and trends at the ``counted`` ones."""
    whole = _estimate(counted, policy)
    bounds = whole.interval
    signs = [float(drop_of(d) > rule.flag_over) - (drop_of(d) < -rule.flag_over) for d in paired]
    baseline = [d.baseline or 0.0 for d in counted]
    candidate = [d.candidate or 0.0 for d in counted]
    mean_a, mean_b = math.fsum(baseline) / len(counted), math.fsum(candidate) / len(counted)
    nats = None
    if min(*baseline, *candidate) > 0:
        nats = math.fsum(math.log(a / b) for a, b in zip(baseline, candidate, strict=True)) / len(counted)
    drops_over = sum(sign > 0 for sign in signs)
    settled = bounds.lower > rule.margin or bounds.upper < rule.margin
    placed = [d for d in counted if d.turn_id in positions]
    tested = [c for d in paired if confirmations and (c := confirmations.get((d.turn_id, d.scorer)))]
    return ScoreResult(
        role=rule.role,
        margin=rule.margin,
        flag_over=rule.flag_over,
        n_turns=len(paired),
        n_headroom=n_headroom,
        n_conversations=len(whole.seen.sums),
        baseline_mean=mean_a,
        candidate_mean=mean_b,
        mean_drop=bounds.mean,
        ci_lower=finite(bounds.lower),
        ci_upper=finite(bounds.upper),
        beyond_p=whole.beyond(rule.margin, policy.hold_level),
        further_turns=0 if settled else whole.further_turns(rule.margin),
        drop_nats=nats,
        recovery=100.0 * mean_b / mean_a if mean_a > 0 else None,
        drops_over=drops_over,
        gains_over=sum(sign < 0 for sign in signs),
        direction_p=sign_flip(clustered(signs, [d.conversation_id for d in paired])),
        flagged_raw=drops_over if rule.role is ScoreRole.GATE else 0,
        flagged_confirmed=None if confirmations is None else sum(each.confirmed for each in tested),
        strata=_strata(placed, rule, policy, positions),
        trends=trends(
            [drop_of(d) for d in placed],
            [d.conversation_id for d in placed],
            [positions[d.turn_id] for d in placed],
        )
        if placed
        else (),
    )


def _estimate(deltas: Sequence[ScoreDelta], policy: Policy) -> Estimate:
    return estimate(
        [drop_of(d) for d in deltas],
        [d.baseline or 0.0 for d in deltas],
        [d.conversation_id for d in deltas],
        policy.largest_break,
    )


def _strata(
    deltas: Sequence[ScoreDelta], rule: ScorePolicy, policy: Policy, positions: Mapping[str, Position]
) -> tuple[Stratum, ...]:
    def measure(axis: Axis, places: Sequence[int], ends: tuple[int, int]) -> Stratum:
        found = _estimate([deltas[i] for i in places], policy)
        bounds = found.interval
        return Stratum(
            axis=axis,
            low=ends[0],
            high=ends[1],
            n_turns=len(places),
            n_conversations=len(found.seen.sums),
            mean_drop=bounds.mean,
            ci_lower=finite(bounds.lower),
            ci_upper=finite(bounds.upper),
            beyond_p=found.beyond(rule.margin, policy.hold_level),
        )

    return strata([positions[d.turn_id] for d in deltas], measure)


def finite(bound: float) -> float | None:
    """The bound, None for one that is none: JSON has no infinity."""
    return bound if math.isfinite(bound) else None


def has_drop(delta: ScoreDelta) -> bool:
    """Whether both arms were scored, with a number."""
    return delta.drop is not None and math.isfinite(delta.drop)


def drop_of(delta: ScoreDelta) -> float:
    """The drop of a delta that has one."""
    return delta.drop if delta.drop is not None else 0.0
