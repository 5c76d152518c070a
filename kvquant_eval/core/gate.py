"""The decision: drops per turn to a verdict per class to one decision per candidate. Pure, and fails closed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from kvquant_eval.core.charges import Charge, Grounds, Said, at_least, charges_against, confirmed, critical_turns
from kvquant_eval.core.compare import Key
from kvquant_eval.core.confirm import Confirmation
from kvquant_eval.core.judge_noise import drowns
from kvquant_eval.core.policy import DISASTER, Policy, Rule, ScorePolicy, ScoreRole, Tier
from kvquant_eval.core.pooled import pooled
from kvquant_eval.core.records import Decision, Finding, ScoreDelta, Verdict
from kvquant_eval.core.results import CandidateResult, ClassResult, ScoreResult
from kvquant_eval.core.stats import holm, unseen
from kvquant_eval.core.strata import Stratum
from kvquant_eval.core.summary import drop_of, has_drop, summarise


def decide(
    deltas: Sequence[ScoreDelta], policy: Policy, grounds: Grounds, findings: Sequence[Finding] = ()
) -> CandidateResult:
    """Judge one arm against its baseline. Any subset of turns can be decided. No evidence is never PROMOTE."""
    by_class: dict[str, list[ScoreDelta]] = defaultdict(list)
    for delta in deltas:
        by_class[delta.workload].append(delta)
    scores = {name: _summaries(by_class[name], rules, policy, grounds) for name, rules in policy.scores.items()}
    tested = [f for f in findings if f.holds and f.p is not None]
    charges = [
        *charges_against(scores, policy, grounds),
        *(Charge(workload="", sentence=_line(f), p=f.p or 0.0) for f in tested),
    ]
    proven: dict[str, list[str]] = defaultdict(list)
    for charge, p in zip(charges, holm([charge.p for charge in charges]), strict=True):
        if p < policy.hold_level:
            among = f" (p = {p:.2g} among {len(charges)} reasons to hold)" if len(charges) > 1 else f" (p = {p:.2g})"
            proven[charge.workload].append(charge.sentence + among)
    critical = [*critical_turns(deltas, policy, grounds)]
    classes = {
        name: _judge_class(name, by_class[name], scores[name], policy, grounds, proven[name], critical)
        for name in scores
    }
    decision, reasons = _join(classes, policy, findings, proven[""], critical)
    confirmations = grounds.confirmations or {}
    flagged = [d for d in deltas if has_drop(d) and _is_flagged(d, policy, confirmations)]
    flagged.sort(key=lambda d: (_q(d, confirmations), -drop_of(d), d.turn_id, d.scorer))
    return CandidateResult(
        decision=decision,
        reasons=reasons,
        classes=classes,
        flagged=tuple(flagged),
        findings=tuple(findings),
        confirmations=confirmations,
        pooled=pooled(d for d in deltas if _gates(d, policy) and has_drop(d) and _has_room(d, policy, grounds)),
    )


def worst(decisions: Sequence[Decision]) -> Decision:
    """The worst of several decisions: INVALID, HOLD, INCONCLUSIVE, PROMOTE; INVALID for none at all."""
    order = [Decision.INVALID, Decision.HOLD, Decision.INCONCLUSIVE, Decision.PROMOTE]
    return min(decisions, key=order.index, default=Decision.INVALID)


def is_disaster(result: CandidateResult, policy: Policy) -> str:
    """Why no more turns are needed: a gating score's lower bound lies beyond ``DISASTER`` margins (empty: they are).

    Only the turns run so far speak, so it can hold, and never promote.
    """
    for workload, judged in result.classes.items():
        for name, score in judged.scores.items():
            far = DISASTER * score.margin
            proven = score.ci_lower is not None and score.ci_lower > far and score.beyond_p < policy.hold_level
            if proven and score.role is ScoreRole.GATE and policy.tier(workload) is not Tier.ADVISORY:
                beyond = f"is beyond {far:g}, {DISASTER:g} margins"
                return f"{workload}: {name}: {at_least(score)} after {score.n_turns} turns {beyond}"
    return ""


def _join(
    classes: Mapping[str, ClassResult],
    policy: Policy,
    findings: Sequence[Finding],
    proven: Sequence[str],
    critical: Sequence[tuple[str, Verdict, str]],
) -> tuple[Decision, tuple[str, ...]]:
    """The classes' verdicts to a decision. Under ``zero_flags`` only the hardest class decides; a finding that holds
    and a turn that may never regress do so under every rule.
    """
    invalid = tuple(_line(finding) for finding in findings if finding.invalid)
    unfinished = tuple(_line(finding) for finding in findings if finding.unfinished)
    if invalid or unfinished:
        return (Decision.INVALID, invalid) if invalid else (Decision.INCONCLUSIVE, unfinished)
    held = (*(_line(finding) for finding in findings if finding.holds and finding.p is None), *proven)
    deciding = [w for w in classes if policy.tier(w) is not Tier.ADVISORY]
    must_pass = [w for w in deciding if policy.tier(w) is Tier.CRITICAL or classes[w].n_unscored]
    if policy.rule is Rule.ZERO_FLAGS:
        deciding = must_pass = [policy.hardest]

    def reasons(verdict: Verdict, among: Sequence[str]) -> tuple[str, ...]:
        found = [f"{w}: {r}" for w in among if classes[w].verdict is verdict for r in classes[w].reasons]
        always = [f"{w}: {sentence}" for w, said, sentence in critical if said is verdict]
        return tuple(dict.fromkeys([*found, *always]))

    if failed := (*reasons(Verdict.FAIL, deciding), *held):
        return Decision.HOLD, failed
    if opened := reasons(Verdict.INCONCLUSIVE, must_pass):
        return Decision.INCONCLUSIVE, opened
    total = sum(result.n_turns for result in classes.values())
    if total < policy.min_turns:
        return Decision.INCONCLUSIVE, (f"golden set: at least {policy.min_turns} turns compared, got {total}",)
    return Decision.PROMOTE, tuple(f"{w}: {r}" for w in must_pass for r in classes[w].reasons)


def _summaries(
    deltas: Sequence[ScoreDelta], rules: Mapping[str, ScorePolicy], policy: Policy, grounds: Grounds
) -> dict[str, ScoreResult]:
    found = {}
    for name, rule in rules.items():
        paired = [d for d in deltas if d.scorer == name and has_drop(d)]
        room = [d for d in paired if _has_room(d, policy, grounds)]
        counted = room if rule.role is ScoreRole.GATE else paired
        if counted:
            found[name] = summarise(paired, counted, len(room), rule, policy, grounds.positions, grounds.confirmations)
    return found


def _judge_class(
    workload: str,
    deltas: Sequence[ScoreDelta],
    scores: Mapping[str, ScoreResult],
    policy: Policy,
    grounds: Grounds,
    proven: Sequence[str],
    critical: Sequence[tuple[str, Verdict, str]],
) -> ClassResult:
    said: list[Said] = [(Verdict.FAIL, sentence) for sentence in proven]
    for name, rule in policy.scores[workload].items():
        drowned = drowns(grounds.judges.get((workload, name)), rule.margin)
        if rule.role is ScoreRole.GATE and name not in scores:
            said.append((Verdict.INCONCLUSIVE, f"{name}: no turn with headroom, {policy.min_headroom} are needed"))
        elif drowned and rule.role is not ScoreRole.REPORT:
            said.append((Verdict.INCONCLUSIVE if rule.role is ScoreRole.GATE else Verdict.PASS, f"{name}: {drowned}"))
        elif rule.role is ScoreRole.GATE:
            said += _judge_score(name, scores[name], policy)
    said += confirmed(workload, deltas, policy, grounds)
    said += [(verdict, sentence) for where, verdict, sentence in critical if where == workload]
    missing = {d.turn_id: d.missing or "a drop that is no number" for d in deltas if not has_drop(d)}
    skipped = grounds.skipped.get(workload, 0)
    if missing:
        turn_id, why = sorted(missing.items())[0]
        line = f"{len(missing)} turns without a pair of scores, such as {turn_id} ({why})"
        said.append((Verdict.INCONCLUSIVE, line))
    if skipped and workload == policy.hardest:
        said.append((Verdict.INCONCLUSIVE, f"{skipped} turns skipped in the hardest class"))
    verdicts = {verdict for verdict, _ in said}
    verdict = next(v for v in (Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.PASS) if v in verdicts or v is Verdict.PASS)
    return ClassResult(
        verdict=verdict,
        reasons=tuple(sentence for found, sentence in said if found is verdict),
        n_turns=len({d.turn_id for d in deltas if has_drop(d)}),
        n_headroom=min((r.n_headroom for r in scores.values() if r.role is ScoreRole.GATE), default=0),
        n_unscored=len(missing),
        n_missing=len(missing) + skipped,
        scores=scores,
    )


def _judge_score(name: str, score: ScoreResult, policy: Policy) -> Iterator[Said]:
    """What a gating score says of its class, beside charges that were proven."""
    if score.n_headroom < policy.min_headroom:
        few = f"{score.n_headroom} turns with headroom, at least {policy.min_headroom} are needed"
        yield Verdict.INCONCLUSIVE, f"{name}: {few}"
    if policy.rule is Rule.ZERO_FLAGS:
        verdict = Verdict.FAIL if score.flagged_raw else Verdict.PASS
        flags = f"{score.flagged_raw} turns drop over {score.flag_over:g} points"
        yield verdict, f"{name}: {flags} ({_drop(score)})"
        return
    yield _non_inferior(name, score, score.margin, policy)
    if policy.rule is Rule.STRICT:
        for part in score.strata:
            if part.ci_upper is None or part.ci_upper >= score.margin:
                yield (
                    Verdict.INCONCLUSIVE,
                    f"{name}, {part.name}: {_drop(part)} does not settle the margin of {score.margin:g}",
                )


def _non_inferior(name: str, score: ScoreResult, margin: float, policy: Policy) -> Said:
    drop, upper = _drop(score), score.ci_upper
    if upper is not None and upper < -policy.anomalous_gain:
        return Verdict.INCONCLUSIVE, f"{name}: {drop} is a gain over {policy.anomalous_gain:g}, too good to be true"
    if upper is not None and upper < margin:
        return Verdict.PASS, f"{name}: {drop} stays within the margin of {margin:g}"
    if score.ci_lower is not None and score.ci_lower > margin:
        chance = f"chance (p = {score.beyond_p:.2g}, and there are other reasons to hold)"
        doubt = chance if score.beyond_p < 1 else f"chance in {score.n_conversations} conversations"
        return Verdict.INCONCLUSIVE, f"{name}: {drop} is beyond the margin of {margin:g}, which may be {doubt}"
    if score.n_conversations == 1:
        hint = "; one conversation bounds nothing"
    elif score.further_turns is None:
        hint = "; it lies on the margin, where more turns hardly help"
    else:
        hint = f"; about {score.further_turns} more turns like these would settle it" if score.further_turns else ""
    few = f" of {score.n_conversations} conversations" if score.n_conversations > 1 and _few(score, policy) else ""
    return Verdict.INCONCLUSIVE, f"{name}: {drop}{few} does not settle the margin of {margin:g}{hint}"


def _few(score: ScoreResult, policy: Policy) -> bool:
    """Whether so few conversations could not settle the margin had nothing moved: a break in one more would be over
    it.
    """
    return policy.largest_break * unseen(score.n_conversations) > score.margin


def _is_flagged(delta: ScoreDelta, policy: Policy, confirmations: Mapping[Key, Confirmation]) -> bool:
    over = drop_of(delta) > policy.scores[delta.workload][delta.scorer].flag_over
    return over and (_gates(delta, policy) or (delta.turn_id, delta.scorer) in confirmations)


def _gates(delta: ScoreDelta, policy: Policy) -> bool:
    return policy.scores[delta.workload][delta.scorer].role is ScoreRole.GATE


def _has_room(delta: ScoreDelta, policy: Policy, grounds: Grounds) -> bool:
    return grounds.headroom.get((delta.turn_id, delta.scorer), 0.0) >= policy.headroom_points


def _q(delta: ScoreDelta, confirmations: Mapping[Key, Confirmation]) -> float:
    """Where a flag stands in the reading list: tested ones by their ``q``, behind those that need no test."""
    found = confirmations.get((delta.turn_id, delta.scorer))
    return found.q if found else 0.0


def _drop(found: ScoreResult | Stratum) -> str:
    lower = "-inf" if found.ci_lower is None else f"{found.ci_lower:.2f}"
    upper = "inf" if found.ci_upper is None else f"{found.ci_upper:.2f}"
    return f"mean drop {found.mean_drop:.2f} points [{lower}, {upper}]"


def _line(finding: Finding) -> str:
    return f"{finding.where}: {finding.what}"
