"""Replays to points: one scorer is a pure function of a replay, its golden turn and, where it asks, an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from kvquant_eval.core import thinking
from kvquant_eval.core.codec import digest
from kvquant_eval.core.records import GoldenTurn, Json, Measure, Outcome, RenderedTurn, Replay, TurnScore


@dataclass(frozen=True)
class Score:
    """What a scorer says: ``points`` 0..100, why, and whether the reply could be read at all."""

    points: float
    explanation: str = ""
    parseable: bool = True


@dataclass(frozen=True)
class Question:
    """What no pure function can know: ``kind`` says who is asked, ``content`` (JSON) what.

    It names no arm, so equal replies of two arms are one question and get one answer.
    """

    kind: str
    content: Mapping[str, Json]

    @property
    def key(self) -> str:
        """sha256 (hex): questions of one key have one answer."""
        return digest({"kind": self.kind, "content": dict(self.content)})


@dataclass(frozen=True)
class Ask:
    """A scorer that must ask first: ``score`` makes points of the answer (JSON).

    An answer of the shape ``{"error": line}`` is none: the replay stays unscored, as an infra error. ``fickle``: who
    answers may say otherwise when asked again, so that a sample is asked twice (``core.judge_noise``).
    """

    question: Question
    score: Callable[[Any], Score]
    fickle: bool = False


Answers = Mapping[str, Json]
"""Answers by ``Question.key``."""

SILENT = (Outcome.EMPTY, Outcome.DIVERGED)
"""There is no text to score: the model's doing, so it earns 0."""
_CUT = Score(0.0, "cut inside a think block")


class Scorer(Protocol):
    """A measurement of one replay. ``measure`` says which of a turn's replays it reads.

    It returns None where the turn has nothing for it to score (no decisive span, no expected answer), and an ``Ask``
    where something outside must be asked: code to be run, a judge. Who is asked it then names in ``asks``
    (``Question.kind``).
    """

    @property
    def measure(self) -> Measure: ...

    def __call__(self, replay: Replay, turn: GoldenTurn, rendered: RenderedTurn) -> Score | Ask | None: ...


def who_is_asked(scorer: Scorer) -> str:
    """The kind of question that a scorer asks (empty: none)."""
    return str(getattr(scorer, "asks", ""))


Places = Mapping[str, tuple[GoldenTurn, RenderedTurn]]
"""The golden turn of a turn id, and the tokens it is rendered to."""


def score_replays(
    replays: Iterable[Replay],
    turns: Places,
    scorers: Mapping[str, Mapping[str, Scorer]],
    answers: Answers | None = None,
) -> tuple[TurnScore, ...]:
    """Score every replay under each scorer of its workload class (``scorers[workload][name]``).

    Scorers of generated replies see them without their think blocks.
    """
    scores = []
    for replay, cut in map(_heard, replays):
        turn, rendered = turns[replay.turn_id]
        for name, scorer in scorers[turn.workload].items():
            if scorer.measure is replay.measure:
                score = _score(name, scorer, replay, turn, rendered, cut, answers or {})
                if score is not None:
                    scores.append(score)
    return tuple(scores)


def questions(
    replays: Iterable[Replay], turns: Places, scorers: Mapping[str, Mapping[str, Scorer]]
) -> Iterator[Question]:
    """What the scorers must ask before they can score ``replays``, in their order; several may be the same."""
    for _, ask in asks(replays, turns, scorers):
        yield ask.question


def asks(
    replays: Iterable[Replay], turns: Places, scorers: Mapping[str, Mapping[str, Scorer]]
) -> Iterator[tuple[tuple[str, str], Ask]]:
    """As ``questions``: (class, score), and what it asks."""
    for replay, cut in map(_heard, replays):
        if replay.outcome.scored and replay.outcome not in SILENT and not cut:
            turn, rendered = turns[replay.turn_id]
            for name, scorer in scorers[turn.workload].items():
                if scorer.measure is not replay.measure or not who_is_asked(scorer):
                    continue  # most scorers know by themselves: they are not run for this
                if isinstance(ask := scorer(replay, turn, rendered), Ask):
                    yield (turn.workload, name), ask


def _heard(replay: Replay) -> tuple[Replay, bool]:
    """The replay as its scorers take it, and whether it was cut inside a think block.

    What was only thought is no part of a generated reply: one that ends there has no text and is truncated, or loops.
    """
    if replay.measure is Measure.FORCED or not replay.outcome.scored or replay.outcome in SILENT:
        return replay, False
    text = thinking.said(replay.text)
    if text is None:
        outcome = Outcome.TRUNCATED if replay.outcome is Outcome.OK else replay.outcome
        return replace(replay, outcome=outcome, text=""), True
    return replace(replay, text=text, outcome=replay.outcome if text.strip() else Outcome.EMPTY), False


def _score(
    name: str, scorer: Scorer, replay: Replay, turn: GoldenTurn, rendered: RenderedTurn, cut: bool, answers: Answers
) -> TurnScore | None:
    """Unscored outcomes keep ``points`` None; no reply earns 0, whatever the scorer, and so does one that was cut
    while it thought, where the turn has something to score. A question without an answer is an infra error.
    """
    outcome, points, explanation = replay.outcome, None, replay.error
    if outcome in SILENT:
        points, explanation = 0.0, replay.divergence or "empty reply"
    elif outcome.scored:
        found = scorer(replay, turn, rendered)
        if found is None:
            return None
        score = _CUT if cut else answered(found, answers) if isinstance(found, Ask) else found
        if isinstance(score, Score):
            points, explanation = score.points, score.explanation
            outcome = outcome if score.parseable else Outcome.UNPARSEABLE
        else:
            outcome, explanation = Outcome.INFRA_ERROR, score
    return TurnScore(
        turn_id=replay.turn_id, scorer=name, epoch=replay.epoch, outcome=outcome, points=points, explanation=explanation
    )


def answered(ask: Ask, answers: Answers) -> Score | str:
    """The points for the answer, or why there is none."""
    answer = answers.get(ask.question.key)
    if answer is None:
        return f"{ask.question.kind}: not asked in this run"
    if is_error(answer):
        return f"{ask.question.kind}: {answer['error']}"
    try:
        return ask.score(answer)
    except (KeyError, TypeError, ValueError, AttributeError):
        return f"{ask.question.kind}: an answer of another shape"  # answers.jsonl is a file like any other


def is_error(answer: Json) -> bool:
    """Whether ``answer`` only says why there is none."""
    return answer is None or (isinstance(answer, dict) and "error" in answer)
