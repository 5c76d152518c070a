"""The decision: drops per turn to a verdict per class to one decision per candidate. Pure, and fails closed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvquant_eval.core.compare import Key
from kvquant_eval.core.noise import Noise, Place, drowns
from kvquant_eval.core.policy import Policy, Rule, ScorePolicy, ScoreRole
from kvquant_eval.core.records import Decision, Finding, ScoreDelta, Verdict
from kvquant_eval.core.stats import Interval, clustered_t, further_turns, no_flip, sign_flip

PRACTICABLE = 100
"""Times the turns of a class beyond which it is no advice to write more."""


@dataclass(frozen=True, kw_only=True)
class ScoreResult:
    """One score over one class. Means, bounds and drops are points; ``drop_nats`` is the mean drop of the log score,
    None where a score is 0; counts are turns. Gate scores count the turns with headroom only.
    """

    role: ScoreRole
    margin: float
    flag_over: float
    n_turns: int
    n_headroom: int
    baseline_mean: float
    candidate_mean: float
    mean_drop: float
    ci_lower: float | None
    ci_upper: float | None
    drop_nats: float | None
    recovery: float | None
    drops_over: int
    gains_over: int
    direction_p: float
    flagged_raw: int
    flagged_confirmed: int | None = None


@dataclass(frozen=True, kw_only=True)
class ClassResult:
    """The verdict over one workload class, with its reasons."""

    verdict: Verdict
    reasons: tuple[str, ...]
    n_turns: int
    n_headroom: int
    n_missing: int
    scores: Mapping[str, ScoreResult]


@dataclass(frozen=True, kw_only=True)
class CandidateResult:
    """The decision over one arm."""

    decision: Decision
    reasons: tuple[str, ...]
    classes: Mapping[str, ClassResult]
    flagged: tuple[ScoreDelta, ...] = ()
    findings: tuple[Finding, ...] = field(default=())


def decide(
    deltas: Sequence[ScoreDelta],
    policy: Policy,
    headroom: Mapping[Key, float],
    skipped: Mapping[str, int],
    findings: Sequence[Finding] = (),
    noise: Mapping[Place, Noise] | None = None,
) -> CandidateResult:
    """Judge one arm against its baseline.

    ``headroom`` is the baseline score of each (turn, scorer), from baseline and repeat; ``skipped`` counts the turns of
    each class that no arm could run; ``noise`` is that of scores that ask somebody. Any subset of turns can be decided.
    No evidence is never PROMOTE.
    """
    classes = {
        workload: _judge_class(
            workload,
            [d for d in deltas if d.workload == workload],
            policy,
            headroom,
            skipped.get(workload, 0),
            noise or {},
        )
        for workload in policy.scores
    }
    decision, reasons = _join(classes, policy, findings)
    gating = {(w, s) for w, scores in policy.scores.items() for s, p in scores.items() if p.role is ScoreRole.GATE}
    flagged = [d for d in deltas if (d.workload, d.scorer) in gating and _over(d, policy)]
    flagged.sort(key=lambda d: (-(d.drop or 0.0), d.turn_id, d.scorer))
    return CandidateResult(
        decision=decision, reasons=reasons, classes=classes, flagged=tuple(flagged), findings=tuple(findings)
    )


def worst(decisions: Sequence[Decision]) -> Decision:
    """The worst of several decisions: INVALID, HOLD, INCONCLUSIVE, PROMOTE; INVALID for none at all."""
    order = [Decision.INVALID, Decision.HOLD, Decision.INCONCLUSIVE, Decision.PROMOTE]
    return min(decisions, key=order.index, default=Decision.INVALID)


def _join(
    classes: Mapping[str, ClassResult], policy: Policy, findings: Sequence[Finding]
) -> tuple[Decision, tuple[str, ...]]:
    """The classes' verdicts to a decision. Under ``zero_flags`` only the hardest class decides; a finding that holds
    does so under every rule.
    """
    invalid = tuple(f"{finding.where}: {finding.what}" for finding in findings if finding.invalid)
    unfinished = tuple(f"{finding.where}: {finding.what}" for finding in findings if finding.unfinished)
    if invalid or unfinished:
        return (Decision.INVALID, invalid) if invalid else (Decision.INCONCLUSIVE, unfinished)
    held = tuple(f"{finding.where}: {finding.what}" for finding in findings if finding.holds)
    deciding = [policy.hardest] if policy.rule is Rule.ZERO_FLAGS else list(classes)
    for verdict, decision in ((Verdict.FAIL, Decision.HOLD), (Verdict.INCONCLUSIVE, Decision.INCONCLUSIVE)):
        reasons = tuple(f"{w}: {r}" for w in deciding if classes[w].verdict is verdict for r in classes[w].reasons)
        reasons += held if decision is Decision.HOLD else ()
        if reasons:
            return decision, reasons
    total = sum(result.n_turns for result in classes.values())
    if total < policy.min_turns:
        return Decision.INCONCLUSIVE, (f"golden set: at least {policy.min_turns} turns compared, got {total}",)
    return Decision.PROMOTE, tuple(f"{w}: {r}" for w in deciding for r in classes[w].reasons)


def _judge_class(
    workload: str,
    deltas: Sequence[ScoreDelta],
    policy: Policy,
    headroom: Mapping[Key, float],
    skipped: int,
    noise: Mapping[Place, Noise],
) -> ClassResult:
    results: dict[str, ScoreResult] = {}
    fails: list[str] = []
    opens: list[str] = []
    passes: list[str] = []
    missing = {d.turn_id: d.missing or "a drop that is no number" for d in deltas if not _has_drop(d)}
    hardest = workload == policy.hardest
    for name, rule in policy.scores[workload].items():
        paired = [d for d in deltas if d.scorer == name and _has_drop(d)]
        room = [d for d in paired if headroom.get((d.turn_id, name), 0.0) >= policy.headroom_points]
        counted = room if rule.role is ScoreRole.GATE else paired
        if not counted:
            if rule.role is ScoreRole.GATE:
                opens.append(f"{name}: no turn with headroom")
            continue
        interval = _interval(counted)
        result = _summarise(paired, counted, len(room), interval, rule)
        results[name] = result
        drowned = _drowned(name, noise.get((workload, name)), rule)
        for bucket, sentence in drowned or _judge_score(name, result, interval, rule, policy, hardest):
            {Verdict.FAIL: fails, Verdict.INCONCLUSIVE: opens, Verdict.PASS: passes}[bucket].append(sentence)
    if missing:
        turn_id, why = sorted(missing.items())[0]
        opens.append(f"{len(missing)} turns without a pair of scores, such as {turn_id} ({why})")
    if skipped and hardest:
        opens.append(f"{skipped} turns skipped in the hardest class")
    verdict = Verdict.FAIL if fails else Verdict.INCONCLUSIVE if opens else Verdict.PASS
    return ClassResult(
        verdict=verdict,
        reasons=tuple(fails or opens or passes),
        n_turns=len({d.turn_id for d in deltas if _has_drop(d)}),
        n_headroom=min((r.n_headroom for r in results.values() if r.role is ScoreRole.GATE), default=0),
        n_missing=len(missing) + skipped,
        scores=results,
    )


def _interval(counted: Sequence[ScoreDelta]) -> Interval:
    interval = clustered_t([_drop(d) for d in counted], [d.conversation_id for d in counted])
    yes_no = all({d.baseline, d.candidate} <= {0.0, 100.0} for d in counted)
    return no_flip(interval, len(counted)) if yes_no and not any(map(_drop, counted)) else interval


def _drowned(name: str, noise: Noise | None, rule: ScorePolicy) -> list[tuple[Verdict, str]]:
    """What is said of a score that its own noise drowns: it leaves the class open where it gates, and holds nothing."""
    why = drowns(noise, rule.margin)
    if why is None or rule.role is ScoreRole.REPORT:
        return []
    return [(Verdict.INCONCLUSIVE if rule.role is ScoreRole.GATE else Verdict.PASS, f"{name}: {why}")]


def _judge_score(
    name: str, result: ScoreResult, interval: Interval, rule: ScorePolicy, policy: Policy, hardest: bool
) -> list[tuple[Verdict, str]]:
    """What this score says about the class, as (verdict, sentence) pairs; nothing for a score that only reports."""
    if rule.role is ScoreRole.REPORT:
        return []
    drop = f"mean drop {interval.mean:.2f} points [{interval.lower:.2f}, {interval.upper:.2f}]"
    if rule.role is ScoreRole.BOUND:
        proven = interval.lower > rule.margin
        return [(Verdict.FAIL, f"{name}: {drop} is beyond the margin of {rule.margin:g}")] if proven else []
    said: list[tuple[Verdict, str]] = []
    if result.n_headroom < policy.min_headroom:
        said.append(
            (
                Verdict.INCONCLUSIVE,
                f"{name}: {result.n_headroom} turns with headroom, at least {policy.min_headroom} are needed",
            )
        )
    if policy.rule is Rule.ZERO_FLAGS:
        verdict = Verdict.FAIL if result.flagged_raw else Verdict.PASS
        said.append((verdict, f"{name}: {result.flagged_raw} turns drop over {rule.flag_over:g} points ({drop})"))
        return said
    if hardest and result.direction_p < policy.direction_p:
        counts = f"{result.drops_over} turns drop over {rule.flag_over:g} points against {result.gains_over} that gain"
        said.append((Verdict.FAIL, f"{name}: {counts} as much (p = {result.direction_p:.2g}; {drop})"))
    said.append(_non_inferior(name, drop, result, interval, rule, policy))
    return said


def _non_inferior(
    name: str, drop: str, result: ScoreResult, interval: Interval, rule: ScorePolicy, policy: Policy
) -> tuple[Verdict, str]:
    if interval.lower > rule.margin:
        return Verdict.FAIL, f"{name}: {drop} is beyond the margin of {rule.margin:g}"
    if interval.upper < -policy.anomalous_gain:
        return Verdict.INCONCLUSIVE, f"{name}: {drop} is a gain too good to be true"
    if interval.upper < rule.margin:
        return Verdict.PASS, f"{name}: {drop} stays within the margin of {rule.margin:g}"
    more = further_turns(interval, result.n_headroom, rule.margin)
    if more > PRACTICABLE * result.n_headroom:
        hint = "; it lies on the margin, where more turns hardly help"
    else:
        hint = f"; about {more} more turns would settle it" if more else ""
    return Verdict.INCONCLUSIVE, f"{name}: {drop} does not settle the margin of {rule.margin:g}{hint}"


def _summarise(
    paired: Sequence[ScoreDelta], counted: Sequence[ScoreDelta], n_headroom: int, interval: Interval, rule: ScorePolicy
) -> ScoreResult:
    """Flags look at every pair; means and bounds at the counted ones."""
    signs = [(_drop(d) > rule.flag_over) - (_drop(d) < -rule.flag_over) for d in paired]
    baseline = [d.baseline or 0.0 for d in counted]
    candidate = [d.candidate or 0.0 for d in counted]
    mean_a, mean_b = math.fsum(baseline) / len(counted), math.fsum(candidate) / len(counted)
    nats = None
    if min(*baseline, *candidate) > 0:
        nats = math.fsum(math.log(a / b) for a, b in zip(baseline, candidate, strict=True)) / len(counted)
    drops_over = sum(sign > 0 for sign in signs)
    return ScoreResult(
        role=rule.role,
        margin=rule.margin,
        flag_over=rule.flag_over,
        n_turns=len(paired),
        n_headroom=n_headroom,
        baseline_mean=mean_a,
        candidate_mean=mean_b,
        mean_drop=interval.mean,
        ci_lower=interval.lower if math.isfinite(interval.lower) else None,
        ci_upper=interval.upper if math.isfinite(interval.upper) else None,
        drop_nats=nats,
        recovery=100.0 * mean_b / mean_a if mean_a > 0 else None,
        drops_over=drops_over,
        gains_over=sum(sign < 0 for sign in signs),
        direction_p=sign_flip(signs, [d.conversation_id for d in paired]),
        flagged_raw=drops_over if rule.role is ScoreRole.GATE else 0,
    )


def _has_drop(delta: ScoreDelta) -> bool:
    return delta.drop is not None and math.isfinite(delta.drop)


def _drop(delta: ScoreDelta) -> float:
    return delta.drop if delta.drop is not None else 0.0


def _over(delta: ScoreDelta, policy: Policy) -> bool:
    return _drop(delta) > policy.scores[delta.workload][delta.scorer].flag_over
