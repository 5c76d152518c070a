"""What is wrong with an arm, before any score is looked at: engines that died, ran another dtype, or cannot speak."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kvquant_eval.core.arms import ArmRecord
from kvquant_eval.core.attest import judge_arm, judge_baseline, judge_pair
from kvquant_eval.core.compare import identical
from kvquant_eval.core.records import Finding, Measure, Outcome, Role
from kvquant_eval.core.scorers.likelihood import golden_likelihood
from kvquant_eval.core.settings import Settings

BROKEN_POINTS = 5.0
"""A baseline whose mean golden likelihood is lower speaks nonsense (a perplexity of 20)."""
BROKEN_SHARE = 0.5
"""Share of empty or looping replies beyond which a baseline is broken."""


def is_self_test(record: ArmRecord, baseline: ArmRecord) -> bool:
    """A candidate that stores K and V just as its baseline does."""
    a, b = record.arm.treatment, baseline.arm.treatment
    left, right = ((t.formats, t.realisation, t.skip_layers) for t in (a, b))
    return left == right


def baseline_findings(record: ArmRecord) -> list[Finding]:
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


def arm_findings(record: ArmRecord, baseline: ArmRecord, settings: Settings) -> list[Finding]:
    """What speaks against comparing an arm with its baseline: the dtype that ran, other settings, equal replies."""
    name = record.arm.name
    if record.facts is None or record.error:
        return _dead(record)
    findings = judge_arm(name, record.arm.treatment, record.facts)
    findings += _compared(record, baseline, settings)
    other = record.arm.role is Role.CANDIDATE and not is_self_test(record, baseline)
    if other and record.replays and identical(baseline.replays, record.replays):
        what = "not applied: every token and logprob equals the baseline's, bit for bit"
        findings.append(Finding(where=name, what=what, invalid=True))
    return [*findings, *_preempted(record)]


def second_stage_findings(
    record: ArmRecord, baseline: ArmRecord, fresh: Mapping[str, ArmRecord], settings: Settings, waiting: int
) -> list[Finding]:
    """What speaks against the second tests of an arm's flags, of which ``waiting`` have none yet."""
    findings = []
    sides = [fresh[name] for name in (baseline.arm.name, record.arm.name) if name in fresh]
    if len(sides) == 2:
        findings += [finding for side in sides for finding in _ran(side)]
        findings += _compared(sides[1], sides[0], settings)
    if waiting:
        what = f"{waiting} flags have no second test yet"
        findings.append(Finding(where=record.arm.name, what=what, invalid=False, unfinished=True))
    return [replace(finding, where=f"second stage, {finding.where}") for finding in findings]


def _compared(record: ArmRecord, baseline: ArmRecord, settings: Settings) -> list[Finding]:
    """Settings of the engine that differ between the arms, where both attested theirs."""
    if record.facts is None or baseline.facts is None:
        return []
    accepted = (*settings.policy.accept_differences, *record.arm.accept)
    return judge_pair(record.arm.name, baseline.facts, record.facts, accepted)


def _ran(record: ArmRecord) -> list[Finding]:
    if record.facts is None or record.error:
        return _dead(record)
    return [*judge_arm(record.arm.name, record.arm.treatment, record.facts), *_preempted(record)]


def _dead(record: ArmRecord) -> list[Finding]:
    """An engine that died. One that was not started because the gate was stopped before is only unfinished."""
    if record.unfinished and not record.error:
        return []
    return [Finding(where=record.arm.name, what=record.error or "the engine did not start", invalid=True)]


def unfinished_findings(record: ArmRecord) -> list[Finding]:
    """What is still to be replayed of an arm."""
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
