"""Replays to points: one scorer is a pure function of a replay and its golden turn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from kvquant_eval.core.records import GoldenTurn, Measure, Outcome, RenderedTurn, Replay, TurnScore
from kvquant_eval.core.thinking import said


@dataclass(frozen=True)
class Score:
    """What a scorer says: ``points`` 0..100, why, and whether the reply could be read at all."""

    points: float
    explanation: str = ""
    parseable: bool = True


_CUT = Score(0.0, "cut inside a think block")


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
    """Score every replay under each scorer of its workload class (``scorers[workload][name]``).

    Scorers of generated replies see them without their think blocks.
    """
    scores = []
    for replay, cut in map(_heard, replays):
        turn, rendered = turns[replay.turn_id]
        for name, scorer in scorers[turn.workload].items():
            if scorer.measure is replay.measure:
                score = _score(name, scorer, replay, turn, rendered, cut)
                if score is not None:
                    scores.append(score)
    return tuple(scores)


def _heard(replay: Replay) -> tuple[Replay, bool]:
    """The replay as its scorers take it, and whether it was cut inside a think block.

    What was only thought is no part of a generated reply: one that ends there has no text and is truncated, or loops.
    """
    if replay.measure is not Measure.GENERATED or not replay.outcome.scored or replay.outcome is Outcome.EMPTY:
        return replay, False
    text = said(replay.text)
    if text is None:
        outcome = Outcome.TRUNCATED if replay.outcome is Outcome.OK else replay.outcome
        return replace(replay, outcome=outcome, text=""), True
    return replace(replay, text=text, outcome=replay.outcome if text.strip() else Outcome.EMPTY), False


def _score(
    name: str, scorer: Scorer, replay: Replay, turn: GoldenTurn, rendered: RenderedTurn, cut: bool
) -> TurnScore | None:
    """Unscored outcomes keep ``points`` None; an empty reply earns 0, whatever the scorer, and so does one that was cut
    while it thought, where the turn has something to score.
    """
    outcome, points, explanation = replay.outcome, None, replay.error
    if outcome is Outcome.EMPTY:
        points, explanation = 0.0, "empty reply"
    elif outcome.scored:
        score = scorer(replay, turn, rendered)
        if score is None:
            return None
        score = _CUT if cut else score
        points, explanation = score.points, score.explanation
        if not score.parseable:
            outcome = Outcome.UNPARSEABLE
    return TurnScore(
        turn_id=replay.turn_id, scorer=name, epoch=replay.epoch, outcome=outcome, points=points, explanation=explanation
    )
