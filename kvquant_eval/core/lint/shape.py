"""What a set lacks as a whole: conversations, depth, system prompts, turns enough for a decision."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kvquant_eval.core.lint.fault import Fault, Placed, Severity

UNBALANCED = 10
"""Times as many turns as the smallest class from which a class weighs too much on what is seen."""


@dataclass(frozen=True, kw_only=True)
class ClassShape:
    """One workload class in numbers. ``depths`` counts turns by ``turn_index``, ``lengths`` by powers of two of prompt
    tokens (the key is the upper bound; turns that did not render are missing).
    """

    turns: int
    conversations: int
    multi_turn: int
    with_system: int
    depths: Mapping[int, int]
    lengths: Mapping[int, int]


def shapes(turns: Sequence[Placed], prompt_tokens: Mapping[str, int]) -> dict[str, ClassShape]:
    """By class, in the order of the set. ``prompt_tokens`` by turn id."""
    made = {}
    for workload in dict.fromkeys(at.turn.workload for at in turns):
        mine = [at.turn for at in turns if at.turn.workload == workload]
        sizes = [prompt_tokens[turn.turn_id] for turn in mine if turn.turn_id in prompt_tokens]
        made[workload] = ClassShape(
            turns=len(mine),
            conversations=len({turn.conversation_id for turn in mine}),
            multi_turn=sum(turn.turn_index > 0 for turn in mine),
            with_system=sum(turn.messages[0]["role"] in ("system", "developer") for turn in mine),
            depths=dict(sorted(Counter(turn.turn_index for turn in mine).items())),
            lengths=dict(sorted(Counter(1 << (size - 1).bit_length() for size in sizes).items())),
        )
    return made


def check_shape(classes: Mapping[str, ClassShape], place: str) -> Iterator[Fault]:
    """Damage by a KV dtype hides from single turns without a system prompt; a bound needs two conversations."""
    most = min((shape.turns for shape in classes.values()), default=0) * UNBALANCED
    for name, shape in classes.items():
        if shape.conversations < 2:
            yield _about(place, f"{name}: at least 2 conversations, got 1; the class has no bounds: add conversations")
        if not shape.multi_turn:
            yield _about(place, f"{name}: turns late in a conversation, got none; add some, damage grows with depth")
        if not shape.with_system:
            yield _about(place, f"{name}: turns with a system prompt, got none; add what is served with")
        if shape.turns > most:
            yield _about(place, f"{name}: classes of like size, got {shape.turns} turns against {most // UNBALANCED}")


def _about(place: str, text: str) -> Fault:
    return Fault(severity=Severity.WARNING, check="shape", place=place, text=text)
