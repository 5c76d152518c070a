"""How far who answers is from itself: a sample of the baseline's questions, asked twice (an A/A test)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from kvquant_eval.core.policy import ScorePolicy
from kvquant_eval.core.score import Answers, Ask, Question, answered

Place = tuple[str, str]
"""(class, score)"""

LEAST, SHARE = 20, 10
"""Of each score's questions one in ``SHARE`` is asked twice, at least ``LEAST`` where there are so many."""
AGAIN = "again"
"""The key that makes the second asking a question of its own. Who answers must not see it."""


@dataclass(frozen=True, kw_only=True)
class JudgeNoise:
    """Two answers to each of ``n`` questions, in points: their mean difference, and the share of questions whose
    answers differ by more than the score's ``flag_over``. ``who`` answered; of ``n`` 0 nothing is known.
    """

    who: str
    n: int
    mean_difference: float | None
    share_over: float | None


def second(question: Question) -> Question:
    """The same question, to be answered anew."""
    return replace(question, content={**question.content, AGAIN: 1})


def sample(asks: Iterable[tuple[Place, Ask]]) -> dict[Place, list[Ask]]:
    """What is asked twice, by score: the first by key, which is a hash and knows nothing of turn or arm."""
    by_place: dict[Place, dict[str, Ask]] = {}
    for place, ask in asks:
        if ask.fickle:
            by_place.setdefault(place, {})[ask.question.key] = ask
    return {
        place: [found[key] for key in sorted(found)[: max(LEAST, math.ceil(len(found) / SHARE))]]
        for place, found in by_place.items()
    }


def measure(
    asks: Iterable[tuple[Place, Ask]], answers: Answers, policy: Mapping[str, Mapping[str, ScorePolicy]]
) -> dict[Place, JudgeNoise]:
    """The noise of every score that asks who may say otherwise."""
    found = {}
    for (workload, name), chosen in sample(asks).items():
        differences = [d for ask in chosen if (d := _difference(ask, answers)) is not None]
        n, over = len(differences), policy[workload][name].flag_over
        found[workload, name] = JudgeNoise(
            who=str(chosen[0].question.content.get("model", chosen[0].question.kind)),
            n=n,
            mean_difference=math.fsum(differences) / n if n else None,
            share_over=sum(d > over for d in differences) / n if n else None,
        )
    return found


def drowns(noise: JudgeNoise | None, margin: float) -> str | None:
    """Why the noise leaves nothing that a margin (points) could settle; None: it does not, or there is none."""
    if noise is None:
        return None
    if noise.mean_difference is None:
        return f"{noise.who} answered no question twice, so its noise is not known, and the score settles nothing"
    if noise.mean_difference <= margin:
        return None
    differs = f"{noise.who} differs from itself by {noise.mean_difference:.2f} points on average"
    return f"{differs} over {noise.n} questions asked twice, beyond the margin of {margin:g}; the score settles nothing"


def _difference(ask: Ask, answers: Answers) -> float | None:
    """Points between the two answers; None where one is missing."""
    first, other = (answered(replace(ask, question=q), answers) for q in (ask.question, second(ask.question)))
    return None if isinstance(first, str) or isinstance(other, str) else abs(first.points - other.points)
