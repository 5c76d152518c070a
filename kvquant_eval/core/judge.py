"""From stored replays to results: scores, drops, controls, decisions. A pure function, the same with or without an
engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kvquant_eval.core.arms import Arm
from kvquant_eval.core.attest import canonical_dtype, judge_arm, judge_baseline, judge_pair
from kvquant_eval.core.compare import Key, compare, identical
from kvquant_eval.core.engine import EngineFacts
from kvquant_eval.core.gate import CandidateResult, decide, worst
from kvquant_eval.core.noise import Noise, Place, measure, sample, second
from kvquant_eval.core.policy import ScoreRole
from kvquant_eval.core.records import (
    Decision,
    Finding,
    GoldenTurn,
    Measure,
    Outcome,
    Prepared,
    Replay,
    Role,
    ScoreDelta,
    TurnScore,
)
from kvquant_eval.core.score import Answers, Ask, Places, Question, asks, questions, score_replays
from kvquant_eval.core.scorers.likelihood import golden_likelihood
from kvquant_eval.core.settings import Settings

BROKEN_POINTS = 5.0
"""A baseline whose mean golden likelihood is lower speaks nonsense (a perplexity of 20)."""
BROKEN_SHARE = 0.5
"""Share of empty or looping replies beyond which a baseline is broken."""
ROUNDING = 1e-3
"""Nats by which a log probability may be over 0."""


@dataclass(frozen=True, kw_only=True)
class ArmRecord:
    """What an arm left behind. ``error`` is how its engine died, ``unfinished`` what is still to do (empty: nothing of
    the kind); ``counts`` as ``io.runfolder.count``.
    """

    arm: Arm
    facts: EngineFacts | None
    replays: tuple[Replay, ...]
    counts: Mapping[str, float]
    error: str = ""
    unfinished: str = ""


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """Everything a report needs: scores and drops by arm, results of controls and candidates, and the decision.

    ``noise`` is that of who was asked, by class and score.
    """

    decision: Decision
    reasons: tuple[str, ...]
    scores: Mapping[str, tuple[TurnScore, ...]]
    deltas: Mapping[str, tuple[ScoreDelta, ...]]
    results: Mapping[str, CandidateResult]
    arms: Mapping[str, ArmRecord]
    noise: Mapping[Place, Noise] = field(default_factory=dict)


def judge(
    settings: Settings,
    prepared: Prepared,
    turns: Sequence[GoldenTurn],
    records: Sequence[ArmRecord],
    answers: Answers | None = None,
) -> Judgement:
    """Controls first: a gate that holds one of them proves nothing, and every candidate is INVALID.

    ``answers`` are those to ``asked``.
    """
    arms = {record.arm.name: _sound(record) for record in records}
    places = _places(prepared, turns)
    scores = {name: score_replays(record.replays, places, settings.scorers, answers) for name, record in arms.items()}
    noise = measure(_baseline_asks(settings, places, records), answers or {}, settings.policy.scores)
    headroom = {name: _headroom(scores, name) for name, r in arms.items() if r.arm.role is Role.BASELINE}
    skipped = Counter(turn.workload for turn in prepared.turns if turn.skip)
    shared = [f for r in arms.values() if r.arm.role is Role.BASELINE for f in _baseline_findings(r)]
    shared += [f for r in arms.values() if r.arm.role is not Role.CANDIDATE for f in _unfinished(r)]
    results: dict[str, CandidateResult] = {}
    deltas: dict[str, tuple[ScoreDelta, ...]] = {}
    for role in (Role.CONTROL, Role.CANDIDATE):
        for name, record in arms.items():
            if record.arm.role is role:
                base = arms[record.arm.baseline]
                unanswered = _unanswered(settings, prepared, base, record)
                deltas[name] = compare(prepared.turns, scores[base.arm.name], scores[name], unanswered)
                findings = [*shared, *_arm_findings(record, base, settings)]
                findings += _unfinished(record) if role is Role.CANDIDATE else []
                room = headroom[base.arm.name]
                results[name] = decide(deltas[name], settings.policy, room, skipped, findings, noise)
        shared += _held_controls(results) if role is Role.CONTROL else []
    counted = settings.policy.require or tuple(settings.candidates)
    decision = worst([results[name].decision for name in counted])
    reasons = tuple(
        f"{name}: {reason}"
        for name in counted
        if results[name].decision is decision
        for reason in dict.fromkeys(results[name].reasons)
    )
    return Judgement(
        decision=decision, reasons=reasons, scores=scores, deltas=deltas, results=results, arms=arms, noise=noise
    )


def asked(
    settings: Settings, prepared: Prepared, turns: Sequence[GoldenTurn], records: Sequence[ArmRecord]
) -> list[Question]:
    """What must be asked before ``records`` can be judged; of the baseline's a sample twice, where the answer may
    differ (``core.noise``).
    """
    places = _places(prepared, turns)
    found = [q for record in records for q in questions(_sound(record).replays, places, settings.scorers)]
    twice = sample(_baseline_asks(settings, places, records))
    return [*found, *(second(ask.question) for chosen in twice.values() for ask in chosen)]


def is_self_test(record: ArmRecord, baseline: ArmRecord) -> bool:
    """A candidate that stores K and V just as its baseline does."""
    a, b = record.arm.treatment, baseline.arm.treatment
    left, right = ((canonical_dtype(t.dtype), t.realisation, t.skip_layers) for t in (a, b))
    return left == right


def _baseline_asks(settings: Settings, places: Places, records: Iterable[ArmRecord]) -> list[tuple[Place, Ask]]:
    base = next(record for record in records if record.arm.name == "baseline")
    return list(asks(_sound(base).replays, places, settings.scorers))


def _places(prepared: Prepared, turns: Sequence[GoldenTurn]) -> Places:
    rendered = {turn.turn_id: turn for turn in prepared.turns}
    return {turn.turn_id: (turn, rendered[turn.turn_id]) for turn in turns}


def _unanswered(settings: Settings, prepared: Prepared, baseline: ArmRecord, record: ArmRecord) -> list[Key]:
    """The gating scores of planned turns that neither arm replayed: no pair of scores would show that they are
    missing.
    """
    seen = {(replay.turn_id, replay.measure) for replay in (*baseline.replays, *record.replays)}
    return [
        (turn.turn_id, name)
        for turn in prepared.turns
        for name, rule in settings.policy.scores[turn.workload].items()
        if rule.role is ScoreRole.GATE
        and not turn.skip
        and (turn.turn_id, settings.scorers[turn.workload][name].measure) not in seen
    ]


def _sound(record: ArmRecord) -> ArmRecord:
    """The record with every replay that has an impossible log probability (NaN, or over 0) turned into an infra error.

    Minus infinity is possible, and scores 0.
    """
    error = "the engine returned an impossible log probability"
    replays = tuple(
        r
        if all(p <= ROUNDING for p in r.logprobs)
        else replace(r, outcome=Outcome.INFRA_ERROR, logprobs=(), top=(), error=error)
        for r in record.replays
    )
    return replace(record, replays=replays)


def _headroom(scores: Mapping[str, Sequence[TurnScore]], baseline: str) -> dict[Key, float]:
    """The baseline's points of each (turn, scorer), averaged with ``repeat``, which runs the same treatment."""
    points: dict[Key, list[float]] = {}
    for name in (baseline, "repeat"):
        for score in scores.get(name, ()):
            if score.points is not None:
                points.setdefault((score.turn_id, score.scorer), []).append(score.points)
    return {key: sum(values) / len(values) for key, values in points.items()}


def _baseline_findings(record: ArmRecord) -> list[Finding]:
    """A baseline that is quantized, ran another dtype, did not finish, or cannot speak, is no baseline."""
    name = record.arm.name
    if record.facts is None or record.error:
        return _dead(record)
    findings = judge_arm(name, record.arm.treatment, record.facts)
    findings += [*judge_baseline(name, record.facts), *_preempted(record)]
    forced = [golden_likelihood(r.logprobs) for r in record.replays if r.measure is Measure.FORCED and r.logprobs]
    if forced and sum(forced) / len(forced) < BROKEN_POINTS:
        what = f"broken: a mean golden likelihood under {BROKEN_POINTS:g} points"
        findings.append(Finding(where=name, what=what, invalid=True))
    written = [r.outcome for r in record.replays if r.measure is Measure.GENERATED]
    broken = sum(outcome in (Outcome.EMPTY, Outcome.DEGENERATE) for outcome in written)
    if written and broken / len(written) > BROKEN_SHARE:
        what = f"broken: {broken} of {len(written)} replies are empty or loops"
        findings.append(Finding(where=name, what=what, invalid=True))
    return findings


def _arm_findings(record: ArmRecord, baseline: ArmRecord, settings: Settings) -> list[Finding]:
    name = record.arm.name
    if record.facts is None or record.error:
        return _dead(record)
    findings = judge_arm(name, record.arm.treatment, record.facts)
    if baseline.facts is not None:
        accepted = (*settings.policy.accept_differences, *record.arm.accept)
        findings += judge_pair(name, baseline.facts, record.facts, accepted)
    other = record.arm.role is Role.CANDIDATE and not is_self_test(record, baseline)
    if other and record.replays and identical(baseline.replays, record.replays):
        what = "not applied: every token and logprob equals the baseline's, bit for bit"
        findings.append(Finding(where=name, what=what, invalid=True))
    return [*findings, *_preempted(record)]


def _dead(record: ArmRecord) -> list[Finding]:
    """An engine that died. One that was not started because the gate was stopped before is only unfinished."""
    if record.unfinished and not record.error:
        return []
    return [Finding(where=record.arm.name, what=record.error or "the engine did not start", invalid=True)]


def _unfinished(record: ArmRecord) -> list[Finding]:
    if not record.unfinished:
        return []
    return [Finding(where=record.arm.name, what=record.unfinished, invalid=False, unfinished=True)]


def _preempted(record: ArmRecord) -> list[Finding]:
    preemptions = int(record.counts.get("preemptions", 0))
    if not preemptions:
        return []
    return [
        Finding(
            where=record.arm.name,
            what=f"{preemptions} preemptions, which change answers; raise engine.args.kv_cache_memory_bytes",
            invalid=True,
        )
    ]


def _held_controls(results: Mapping[str, CandidateResult]) -> list[Finding]:
    """A control that is held or invalid makes the gate invalid; one that is not settled is only named."""
    return [
        Finding(
            where=f"control {name}",
            what=f"{result.decision}: {'; '.join(result.reasons)}",
            invalid=result.decision in (Decision.HOLD, Decision.INVALID),
        )
        for name, result in results.items()
        if result.decision is not Decision.PROMOTE
    ]
