"""Replays to points: one scorer is a pure function of a replay and its golden turn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from kvquant_eval.core.records import GoldenTurn, Measure, Outcome, RenderedTurn, Replay, TurnScore


@dataclass(frozen=True)
class Score:
    """What a scorer says: ``points`` 0..100, why, and whether the reply could be read at all."""

    points: float
    explanation: str = ""
    parseable: bool = True


class Scorer(Protocol):
    """A measurement of one replay. ``measure`` says which of a turn's replays it reads.

    It returns None where the turn has nothing for it to score (no decisive span, no expected answer).
    """

    @property
    def measure(self) -> Measure: ...

    def __call__(self, replay: Replay, turn: GoldenTurn, rendered: RenderedTurn) -> Score | None: ...


def score_replays(
    replays: Iterable[Replay],
    turns: Mapping[str, tuple[GoldenTurn, RenderedTurn]],
    scorers: Mapping[str, Mapping[str, Scorer]],
) -> tuple[TurnScore, ...]:
    """Score every replay under each scorer of its workload class (``scorers[workload][name]``)."""
    scores = []
    for replay in replays:
        turn, rendered = turns[replay.turn_id]
        for name, scorer in scorers[turn.workload].items():
            if scorer.measure is replay.measure:
                score = _score(name, scorer, replay, turn, rendered)
                if score is not None:
                    scores.append(score)
    return tuple(scores)


def _score(name: str, scorer: Scorer, replay: Replay, turn: GoldenTurn, rendered: RenderedTurn) -> TurnScore | None:
    """Unscored outcomes keep ``points`` None; an empty reply earns 0, whatever the scorer."""
    outcome, points, explanation = replay.outcome, None, replay.error
    if outcome is Outcome.EMPTY:
        points, explanation = 0.0, "empty reply"
    elif outcome.scored:
        score = scorer(replay, turn, rendered)
        if score is None:
            return None
        points, explanation = score.points, score.explanation
        if not score.parseable:
            outcome = Outcome.UNPARSEABLE
    return TurnScore(
        turn_id=replay.turn_id, scorer=name, epoch=replay.epoch, outcome=outcome, points=points, explanation=explanation
    )
