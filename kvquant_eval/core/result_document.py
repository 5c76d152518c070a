"""What was found out of one arm, as plain data: a part of ``decision.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvquant_eval.core.cautions import cautions
from kvquant_eval.core.codec import to_data
from kvquant_eval.core.confirm import Confirmation
from kvquant_eval.core.degeneration import Degeneration
from kvquant_eval.core.judge_noise import JudgeNoise, Place
from kvquant_eval.core.policy import Policy
from kvquant_eval.core.records import ScoreDelta
from kvquant_eval.core.results import CandidateResult, ClassResult, ScoreResult
from kvquant_eval.core.strata import Stratum


def result_data(
    result: CandidateResult,
    policy: Policy,
    controls: Mapping[str, CandidateResult],
    noise: Mapping[Place, JudgeNoise],
) -> dict[str, Any]:
    """The decision over one arm, its classes and flagged turns, the controls beside every score.

    ``flagged_turns`` are in the order of the reading list. ``pooled`` and ``cautions`` decide nothing.
    """
    return {
        "decision": str(result.decision),
        "reasons": list(result.reasons),
        "findings": [to_data(finding) for finding in result.findings],
        "cautions": [to_data(caution) for caution in cautions(result, policy)],
        "pooled": to_data(result.pooled),
        "classes": {
            workload: {"tier": str(policy.tier(workload)), **_class(workload, judged, controls, noise)}
            for workload, judged in result.classes.items()
        },
        "flagged_turns": [_flag(d, result.confirmations.get((d.turn_id, d.scorer))) for d in result.flagged],
    }


def _class(
    workload: str, judged: ClassResult, controls: Mapping[str, CandidateResult], noise: Mapping[Place, JudgeNoise]
) -> dict[str, Any]:
    """``noise`` stands beside a score that asks somebody, and beside no other."""
    return {
        "verdict": str(judged.verdict),
        "reasons": list(judged.reasons),
        "n_turns": judged.n_turns,
        "n_headroom": judged.n_headroom,
        "n_missing": judged.n_missing,
        "scores": {
            name: {
                **_score(score),
                **{
                    control: _control(result.classes[workload].scores.get(name)) for control, result in controls.items()
                },
                **({"noise": to_data(noise[workload, name])} if (workload, name) in noise else {}),
            }
            for name, score in judged.scores.items()
        },
    }


def _score(score: ScoreResult) -> dict[str, Any]:
    """``worst_stratum`` is the one that is sure to lose the most (``strata.worst_of``), None for no strata."""
    worst = score.worst_stratum
    return {
        **to_data(score),
        "strata": [_stratum(part) for part in score.strata],
        "worst_stratum": _stratum(worst) if worst else None,
    }


def _stratum(part: Stratum) -> dict[str, Any]:
    return {"name": part.name, **to_data(part)}


def _control(score: ScoreResult | None) -> dict[str, Any] | None:
    if score is None:
        return None
    kept = ("candidate_mean", "mean_drop", "ci_lower", "ci_upper", "drops_over", "gains_over")
    return {key: getattr(score, key) for key in kept}


def _flag(delta: ScoreDelta, second: Confirmation | None) -> dict[str, Any]:
    """``confirmed`` is None where the flag was not put to a second test. Where it was, ``fresh_drop`` is the mean drop
    (points) over ``fresh_epochs`` alone; ``p``, ``holm`` and ``q`` as in ``confirm.Confirmation``.
    """
    found: dict[str, Any] = {
        "turn_id": delta.turn_id,
        "class": delta.workload,
        "score": delta.scorer,
        "turn_index": delta.turn_index,
        "drop": delta.drop,
        "baseline": delta.baseline,
        "candidate": delta.candidate,
        "confirmed": None,
    }
    if second:
        found |= {"confirmed": second.confirmed, "fresh_drop": second.drop, "fresh_epochs": second.epochs}
        found |= {"p": second.p, "holm": second.holm, "q": second.q, "listed": second.listed}
    return found


def degeneration_data(counted: Degeneration) -> dict[str, Any]:
    """Replies of the arm and its baseline, paired: all, those that show a sign, by sign and by class; ``rise`` is how
    many more the arm has, ``p`` one-sided.
    """
    return {
        "n": counted.n,
        "arm": counted.degenerate,
        "baseline": counted.baseline,
        "rise": counted.rise,
        "p": counted.p,
        "signs": {
            str(sign): {"arm": count, "baseline": counted.baseline_signs[sign]} for sign, count in counted.signs.items()
        },
        "classes": {w: {"n": n, "arm": arm, "baseline": base} for w, (n, arm, base) in counted.classes.items()},
    }
