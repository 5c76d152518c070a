"""What a reader should look at although it decides nothing: one sentence each, with its numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from kvquant_eval.core.policy import Policy, ScoreRole
from kvquant_eval.core.records import Verdict
from kvquant_eval.core.results import CandidateResult, ScoreResult
from kvquant_eval.core.stats import holm
from kvquant_eval.core.strata import Axis, Stratum


class About(StrEnum):
    """``POOLED``: the direction of all conversations; ``STRATUM``: one over the margin in a class that is not;
    ``TREND``: drops that grow along an axis.
    """

    POOLED = "pooled"
    STRATUM = "stratum"
    TREND = "trend"


@dataclass(frozen=True, kw_only=True)
class Caution:
    """One sentence."""

    about: About
    sentence: str


def cautions(result: CandidateResult, policy: Policy) -> tuple[Caution, ...]:
    """All that is said of an arm. Chances count below ``hold_level``: those of trends after Holm, as one family."""
    found = (
        (About.POOLED, _pooled(result, policy)),
        (About.STRATUM, _strata(result)),
        (About.TREND, _trends(result, policy)),
    )
    return tuple(Caution(about=about, sentence=sentence) for about, said in found for sentence in said)


def _pooled(result: CandidateResult, policy: Policy) -> Iterator[str]:
    seen = result.pooled
    if seen.p >= policy.hold_level:
        return
    alone = [workload for workload, judged in result.classes.items() if judged.verdict is Verdict.FAIL]
    shown = f"{', '.join(alone)} {'show' if len(alone) > 1 else 'shows'} it alone too" if alone else ""
    counts = f"{seen.worse:,} of {seen.n_conversations:,} conversations lose and {seen.better:,} gain"
    yield f"{counts} (p = {seen.p:.2g}): {shown or 'no single class shows it'}"


def _strata(result: CandidateResult) -> Iterator[str]:
    """The worst stratum of each gating score where it is over the margin and the class is not."""
    for workload, name, score in _scores(result):
        part = score.worst_stratum
        if score.role is ScoreRole.GATE and part and part.mean_drop > score.margin >= score.mean_drop:
            over = f"is over the margin of {score.margin:g}, the class's {score.mean_drop:.2f} is not"
            yield f"{workload} {name}, {part.name}: mean drop {_points(part)} {over}"


def _trends(result: CandidateResult, policy: Policy) -> Iterator[str]:
    found = [(w, name, trend) for w, name, score in _scores(result) for trend in score.trends]
    for (workload, name, trend), p in zip(found, holm([t.p for *_, t in found]), strict=True):
        if p < policy.hold_level:
            step = "a turn" if trend.axis is Axis.TURN_INDEX else "with each doubling of the context"
            yield f"{workload} {name}: drops grow by {trend.slope:.1f} points {step} (p = {p:.2g})"


def _points(part: Stratum) -> str:
    ends = ["none" if end is None else f"{end:.2f}" for end in (part.ci_lower, part.ci_upper)]
    return f"{part.mean_drop:.2f} points [{', '.join(ends)}] in {part.n_turns:,} turns"


def _scores(result: CandidateResult) -> Iterator[tuple[str, str, ScoreResult]]:
    for workload, judged in result.classes.items():
        for name, score in judged.scores.items():
            yield workload, name, score
