"""What a model's template and tokenizer make of the turns, and whether a reference is worth full points."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kvquant_eval.core.lint.fault import Fault, Placed, error, warning
from kvquant_eval.core.records import Measure, Outcome, RenderedTurn, Replay
from kvquant_eval.core.score import Scorer, score_replays

FULL = 100.0 - 1e-9


@dataclass(frozen=True, kw_only=True)
class InspectedTurn:
    """A rendered turn and its golden reply as the tokenizer says it back, or what is wrong (``<rule>, got ...``)."""

    rendered: RenderedTurn | None = None
    reply: str = ""
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Inspected:
    """All turns, in their order, against a context of so many tokens."""

    context: int
    turns: tuple[InspectedTurn, ...]


def check_rendering(turns: Sequence[Placed], inspected: Inspected) -> Iterator[Fault]:
    """Turns that the template cannot render, that it renders with two BOS tokens, or that do not fit the context."""
    for at, seen in zip(turns, inspected.turns, strict=True):
        if seen.problem:
            yield error("template", at, seen.problem)
        elif seen.rendered is not None and seen.rendered.skip:
            text = f"a turn that fits the context, got one that {seen.rendered.skip}; it is skipped in every arm"
            yield warning("context", at, text)


def check_references(
    turns: Sequence[Placed], inspected: Inspected, scorers: Mapping[str, Mapping[str, Scorer]]
) -> Iterator[Fault]:
    """References that do not get full points from their own task scorers."""
    for at, seen in zip(turns, inspected.turns, strict=True):
        if seen.rendered is None or at.turn.workload not in scorers:
            continue
        replay = Replay(
            turn_id=at.turn.turn_id, measure=Measure.GENERATED, epoch=0, outcome=Outcome.OK, text=seen.reply
        )
        for score in score_replays([replay], {at.turn.turn_id: (at.turn, seen.rendered)}, scorers):
            if score.outcome is Outcome.INFRA_ERROR:
                continue  # it asks somebody, and nobody is asked here
            if score.points is None or score.points < FULL:
                got = f"{score.points or 0:g} ({score.explanation})"
                yield error("reference", at, f"100 points of {score.scorer} for the reference, got {got}; correct one")
