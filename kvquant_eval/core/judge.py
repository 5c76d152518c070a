"""From stored replays to results: scores, drops, controls, decisions. A pure function, the same with or without an
engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kvquant_eval.core.arms import ArmRecord
from kvquant_eval.core.charges import Grounds
from kvquant_eval.core.compare import Key, compare
from kvquant_eval.core.compounding import Compounding, compounding
from kvquant_eval.core.confirm import confirm, to_confirm
from kvquant_eval.core.degeneration import Degeneration, contrast, judge_rise, shown
from kvquant_eval.core.gate import decide, is_disaster, worst
from kvquant_eval.core.judge_noise import JudgeNoise, Place, measure, sample, second
from kvquant_eval.core.plan import group_turns
from kvquant_eval.core.policy import Policy, ScoreRole
from kvquant_eval.core.records import (
    Decision,
    Finding,
    GoldenTurn,
    Measure,
    Outcome,
    Prepared,
    RenderedTurn,
    ReplayMode,
    Role,
    Rollout,
    ScoreDelta,
    TurnScore,
)
from kvquant_eval.core.results import CandidateResult
from kvquant_eval.core.rollout import make_rollouts
from kvquant_eval.core.score import Answers, Ask, Places, Question, asks, questions, score_replays
from kvquant_eval.core.settings import Settings
from kvquant_eval.core.soundness import arm_findings, baseline_findings, second_stage_findings, unfinished_findings
from kvquant_eval.core.strata import positions
from kvquant_eval.core.summary import has_drop

ROUNDING = 1e-3
"""Nats by which a log probability may be over 0."""


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """Everything a report needs: scores, drops and degenerate replies by arm, results of controls and candidates, and
    the decision. ``compounding[arm][class][score]`` where conversations ran with the arm's own replies as their
    history, ``noise`` (that of who was asked) by class and score.
    """

    decision: Decision
    reasons: tuple[str, ...]
    scores: Mapping[str, tuple[TurnScore, ...]]
    deltas: Mapping[str, tuple[ScoreDelta, ...]]
    results: Mapping[str, CandidateResult]
    arms: Mapping[str, ArmRecord]
    degeneration: Mapping[str, Degeneration]
    compounding: Mapping[str, Mapping[str, Mapping[str, Compounding]]] = field(default_factory=dict)
    noise: Mapping[Place, JudgeNoise] = field(default_factory=dict)


def judge(
    settings: Settings,
    prepared: Prepared,
    turns: Sequence[GoldenTurn],
    records: Sequence[ArmRecord],
    answers: Answers | None = None,
    fresh: Sequence[ArmRecord] = (),
) -> Judgement:
    """Controls first: a gate that holds one of them proves nothing, and every candidate is INVALID.

    ``answers`` are those to ``asked``, ``fresh`` the arms of the second stage, which ran ``flags`` again.
    """
    arms = {record.arm.name: _sound(record) for record in records}
    places, rollouts = _places(prepared, turns), _rollouts(settings, prepared, turns)
    scores = {name: score_replays(record.replays, places, settings.scorers, answers) for name, record in arms.items()}
    noise = measure(_baseline_asks(settings, places, records), answers or {}, settings.policy.scores)
    headroom = {name: points_before(scores, name) for name, r in arms.items() if r.arm.role is Role.BASELINE}
    skipped = Counter(turn.workload for turn in prepared.turns if turn.skip)
    where = positions(prepared.turns, first_block(settings, prepared.turns))
    shared = [f for r in arms.values() if r.arm.role is Role.BASELINE for f in baseline_findings(r)]
    shared += [f for r in arms.values() if r.arm.role is not Role.CANDIDATE for f in unfinished_findings(r)]
    shared += [Finding(where=name, what=f"left out: {why}", invalid=False) for name, why in settings.left_out.items()]
    degeneration = _degeneration(arms, places)
    controls = [degeneration[name] for name, record in arms.items() if record.arm.role is Role.CONTROL]
    second_stage = {record.arm.name: _sound(record) for record in fresh}
    again = {name: score_replays(r.replays, places, settings.scorers, answers) for name, r in second_stage.items()}
    results: dict[str, CandidateResult] = {}
    deltas: dict[str, tuple[ScoreDelta, ...]] = {}
    for role in (Role.CONTROL, Role.CANDIDATE):
        for name, record in arms.items():
            if record.arm.role is role:
                base = arms[record.arm.baseline]
                unanswered = _unanswered(settings, prepared, rollouts, base, record)
                deltas[name] = compare(prepared.turns, scores[base.arm.name], scores[name], unanswered)
                findings = [*shared, *arm_findings(record, base, settings)]
                room = headroom[base.arm.name]
                grounds = Grounds(headroom=room, skipped=skipped, judges=noise, positions=where)
                if role is Role.CANDIDATE:
                    findings += _stopped(record, deltas[name], settings.policy, grounds)
                    findings += judge_rise(degeneration[name], controls, settings.policy.hold_level)
                if settings.sampling.temperature > 0:
                    wanted = _to_confirm(settings, record, deltas[name])
                    sides = again.get(base.arm.name, ()), again.get(name, ())
                    confirmed = confirm(wanted, *sides, settings.policy.hold_level)
                    grounds = replace(grounds, confirmations=confirmed)
                    findings += second_stage_findings(
                        record, base, second_stage, settings, len(wanted) - len(confirmed)
                    )
                results[name] = decide(deltas[name], settings.policy, grounds, findings)
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
        decision=decision,
        reasons=reasons,
        scores=scores,
        deltas=deltas,
        results=results,
        arms=arms,
        compounding={name: _compounding(settings, prepared, rollouts, scores[name], arms[name]) for name in arms},
        degeneration=degeneration,
        noise=noise,
    )


def flags(
    settings: Settings,
    prepared: Prepared,
    turns: Sequence[GoldenTurn],
    records: Sequence[ArmRecord],
    answers: Answers | None = None,
) -> dict[str, tuple[Key, ...]]:
    """What the second stage must run again, by arm: drops that sampled scores show. Nothing where replies are greedy:
    they come out the same every time.
    """
    if settings.sampling.temperature == 0:
        return {}
    places = _places(prepared, turns)
    arms = {record.arm.name: _sound(record) for record in records}
    scores = {name: score_replays(r.replays, places, settings.scorers, answers) for name, r in arms.items()}
    found = {
        name: _to_confirm(settings, record, compare(prepared.turns, scores[record.arm.baseline], scores[name]))
        for name, record in arms.items()
        if record.arm.role is not Role.BASELINE
    }
    return {name: keys for name, keys in found.items() if keys}


def is_lost(
    settings: Settings, prepared: Prepared, turns: Sequence[GoldenTurn], baseline: ArmRecord, record: ArmRecord
) -> bool:
    """Whether an arm is held by what was replayed of it so far (``gate.early_stop``). Scores that ask are left out."""
    places = _places(prepared, turns)
    scores = {r.arm.name: score_replays(_sound(r).replays, places, settings.scorers) for r in (baseline, record)}
    deltas = compare(prepared.turns, scores[baseline.arm.name], scores[record.arm.name])
    grounds = Grounds(headroom=points_before(scores, baseline.arm.name))
    return bool(_lost(deltas, settings.policy, grounds))


def _lost(deltas: Iterable[ScoreDelta], policy: Policy, grounds: Grounds) -> str:
    return is_disaster(decide([d for d in deltas if has_drop(d)], policy, grounds), policy)


def _stopped(record: ArmRecord, deltas: Sequence[ScoreDelta], policy: Policy, grounds: Grounds) -> list[Finding]:
    """What is said of an arm that was not run to its end: it is held already, or there is more to do."""
    why = _lost(deltas, policy, grounds) if record.unfinished and policy.early_stop else ""
    if why:
        return [Finding(where="stopped early", what=f"{record.unfinished}: {why}", invalid=False, holds=True)]
    return unfinished_findings(record)


def _to_confirm(settings: Settings, record: ArmRecord, deltas: Sequence[ScoreDelta]) -> tuple[Key, ...]:
    noisy = {
        workload: frozenset(name for name, scorer in scorers.items() if scorer.measure is Measure.GENERATED)
        for workload, scorers in settings.scorers.items()
    }
    return () if record.unfinished or record.error else to_confirm(deltas, settings.policy, noisy)


def asked(
    settings: Settings, prepared: Prepared, turns: Sequence[GoldenTurn], records: Sequence[ArmRecord]
) -> list[Question]:
    """What must be asked before ``records`` can be judged; of the baseline's a sample twice, where the answer may
    differ (``core.judge_noise``).
    """
    twice = sample(_baseline_asks(settings, _places(prepared, turns), records))
    again = [second(ask.question) for chosen in twice.values() for ask in chosen]
    return [*asked_once(settings, prepared, turns, records), *again]


def asked_once(
    settings: Settings, prepared: Prepared, turns: Sequence[GoldenTurn], records: Sequence[ArmRecord]
) -> list[Question]:
    """What scorers ask about the replays of ``records``."""
    places = _places(prepared, turns)
    return [q for record in records for q in questions(_sound(record).replays, places, settings.scorers)]


def first_block(settings: Settings, turns: Sequence[RenderedTurn]) -> frozenset[str]:
    """The turns that every arm begins with; none where there is one block alone."""
    per_turn = 1 + settings.sampling.epochs * settings.generate
    blocks = group_turns(turns, per_turn, settings.block_requests)
    return frozenset(turn.turn_id for turn in (blocks[0] if len(blocks) > 1 else ()))


def _baseline_asks(settings: Settings, places: Places, records: Iterable[ArmRecord]) -> list[tuple[Place, Ask]]:
    base = next(record for record in records if record.arm.name == "baseline")
    return list(asks(_sound(base).replays, places, settings.scorers))


def _places(prepared: Prepared, turns: Sequence[GoldenTurn]) -> Places:
    rendered = {turn.turn_id: turn for turn in prepared.turns}
    return {turn.turn_id: (turn, rendered[turn.turn_id]) for turn in turns}


def _rollouts(settings: Settings, prepared: Prepared, turns: Sequence[GoldenTurn]) -> tuple[Rollout, ...]:
    """The free-running conversations of the plan."""
    if settings.replay.mode is not ReplayMode.FREE_RUNNING:
        return ()
    return make_rollouts(turns, prepared.turns, settings.sampling, settings.replay.on_divergence)


def _compounding(
    settings: Settings,
    prepared: Prepared,
    rollouts: Sequence[Rollout],
    scores: Sequence[TurnScore],
    record: ArmRecord,
) -> dict[str, dict[str, Compounding]]:
    workloads = {turn.turn_id: turn.workload for turn in prepared.turns}
    measured = {
        workload: [name for name, scorer in scorers.items() if scorer.measure is Measure.GENERATED]
        for workload, scorers in settings.scorers.items()
    }
    return compounding(rollouts, workloads, scores, record.replays, measured)


def _degeneration(arms: Mapping[str, ArmRecord], places: Places) -> dict[str, Degeneration]:
    """Every arm's degenerate replies against those of its baseline."""
    signs = {name: shown(record.replays, places) for name, record in arms.items()}
    return {
        name: contrast(signs[record.arm.baseline], signs[name], places)
        for name, record in arms.items()
        if record.arm.role is not Role.BASELINE
    }


def _unanswered(
    settings: Settings, prepared: Prepared, rollouts: Sequence[Rollout], baseline: ArmRecord, record: ArmRecord
) -> list[Key]:
    """The gating scores of planned turns that neither arm replayed: no pair of scores would show that they are
    missing.
    """
    free = {step.turn_id for rollout in rollouts for step in rollout.steps}
    seen = {(replay.turn_id, replay.measure) for replay in (*baseline.replays, *record.replays)}
    return [
        (turn.turn_id, name)
        for turn in prepared.turns
        for name, rule in settings.policy.scores[turn.workload].items()
        if rule.role is ScoreRole.GATE
        and not turn.skip
        and (measure := settings.scorers[turn.workload][name].measure) in _measures(turn.turn_id in free)
        and (turn.turn_id, measure) not in seen
    ]


def _measures(free: bool) -> tuple[Measure, ...]:
    return tuple(Measure) if free else (Measure.FORCED, Measure.GENERATED)


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


def points_before(scores: Mapping[str, Sequence[TurnScore]], baseline: str) -> dict[Key, float]:
    """The baseline's points of each (turn, scorer), averaged with ``repeat``, which runs the same treatment."""
    points: dict[Key, list[float]] = {}
    for name in (baseline, "repeat"):
        for score in scores.get(name, ()):
            if score.points is not None:
                points.setdefault((score.turn_id, score.scorer), []).append(score.points)
    return {key: sum(values) / len(values) for key, values in points.items()}


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
