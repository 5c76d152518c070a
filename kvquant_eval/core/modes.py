"""Scores of both replay modes under one policy: each task score also has one over free-running replies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kvquant_eval.core.policy import ModeRoles, Policy, ScorePolicy, ScoreRole
from kvquant_eval.core.records import GoldenTurn, Measure, RenderedTurn, Replay, ReplayMode
from kvquant_eval.core.score import Ask, Score, Scorer, who_is_asked

_ORDER = (ScoreRole.REPORT, ScoreRole.BOUND, ScoreRole.GATE)


@dataclass(frozen=True)
class OwnHistory:
    """A scorer of generated replies, over those that the model wrote behind its own earlier ones."""

    scorer: Scorer
    measure: Measure = Measure.FREE_RUNNING

    @property
    def asks(self) -> str:
        """Who is asked before the score is known (empty: nobody)."""
        return who_is_asked(self.scorer)

    def __call__(self, replay: Replay, turn: GoldenTurn, rendered: RenderedTurn) -> Score | Ask | None:
        return self.scorer(replay, turn, rendered)


def free_running(score: str) -> str:
    """The name of a score over free-running replies."""
    return f"{score}.{ReplayMode.FREE_RUNNING}"


def every_score(
    policy: Policy, scorers: Mapping[str, Mapping[str, Scorer]], mode: ReplayMode
) -> tuple[Policy, dict[str, dict[str, Scorer]]]:
    """Policy and scorers of all classes as ``mode`` has them. Raises DataError where no score of a class gates then."""
    both = {name: in_mode(policy.scores[name], scorers[name], policy.modes, mode) for name in policy.scores}
    scores = {name: rules for name, (rules, _) in both.items()}
    return replace(policy, scores=scores), {name: made for name, (_, made) in both.items()}


def in_mode(
    scores: Mapping[str, ScorePolicy], scorers: Mapping[str, Scorer], roles: ModeRoles, mode: ReplayMode
) -> tuple[dict[str, ScorePolicy], dict[str, Scorer]]:
    """A class's scores and scorers as ``mode`` has them: no score decides more than its mode's role allows.

    A free-running score takes the margin of the task score that it is made of, and its mode's role (unless the task
    score only reports).
    """
    capped = {name: replace(rule, role=_least(rule.role, roles.golden_prefix)) for name, rule in scores.items()}
    both = dict(scorers)
    if mode is ReplayMode.FREE_RUNNING:
        for name, rule in scores.items():
            if scorers[name].measure is Measure.GENERATED:
                role = ScoreRole.REPORT if rule.role is ScoreRole.REPORT else roles.free_running
                capped[free_running(name)] = replace(rule, role=role)
                both[free_running(name)] = OwnHistory(scorers[name])
    return capped, both


def _least(a: ScoreRole, b: ScoreRole) -> ScoreRole:
    return min(a, b, key=_ORDER.index)
