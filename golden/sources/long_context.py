"""Golden turns of the class ``long_context``: questions about facts hidden in a long working document.

The document is generated from the phrases of ``document_phrases`` and stands in the first user message; the later
questions of a conversation follow the earlier answered ones.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from golden.sources.common import Message, marked, turn
from golden.sources.document_phrases import FIRMS, GOODS, KINDS, PARTS, PEOPLE, PLACES, SURNAMES, Kind, Needle

WORKLOAD = "long_context"
SEED = 2909
MAX_TOKENS = 40
SYSTEM = (
    "You answer questions about the document of the user. Answer in one short sentence, in the words of the document, "
    "and copy codes, amounts and names exactly."
)
BUCKETS = ("1k", "2k", "4k", "1k", "2k", "6k", "1k", "1k", "1k", "1k", "1k")
"""The length bucket of each document."""
LINES = {"1k": 32, "2k": 64, "4k": 130, "6k": 203}
"""Lines of a document of each bucket; a line has about 31 tokens."""
QUESTIONS = 4
"""Questions on each document; the later ones see the answers before them."""
CODE_LETTERS = "BCDFGHJKLMNPQRSTVWXZ"


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A needle filled in: the line that states it, the question, the marked answer, and where it stands in percent."""

    line: str
    question: str
    answer: str
    value: str
    depth: int


def turns() -> list[dict[str, Any]]:
    """All golden turns, in file order."""
    built: list[dict[str, Any]] = []
    for number, bucket in enumerate(BUCKETS, start=1):
        rng = random.Random(SEED + number)
        kind = KINDS[number % len(KINDS)]
        facts = _facts(rng, kind)
        document = _document(rng, kind, facts, LINES[bucket])
        built += _conversation(f"{kind.slug}-{number:02d}", document, rng.sample(facts, QUESTIONS), bucket)
    return built


def _conversation(name: str, document: str, facts: Sequence[Fact], bucket: str) -> list[dict[str, Any]]:
    """The turns of one document; each sees the golden answers before it."""
    history: list[Message] = [{"role": "system", "content": SYSTEM}]
    built: list[dict[str, Any]] = []
    for index, fact in enumerate(facts):
        question = fact.question if index else f"{document}\n\nQuestion: {fact.question}"
        history.append({"role": "user", "content": question})
        content, decisive = marked(fact.answer)
        reference = {"role": "assistant", "content": content}
        built.append(
            turn(
                workload=WORKLOAD,
                conversation=name,
                index=index,
                messages=history,
                reference=reference,
                decisive=decisive,
                expected={"needle": [fact.value]},
                max_tokens=MAX_TOKENS,
                tags=[f"len-{bucket}", f"depth-{fact.depth:02d}"],
            )
        )
        history.append(reference)
    return built


def _facts(rng: random.Random, kind: Kind) -> list[Fact]:
    """All facts of a document, spread over its depth with some jitter; those not asked for are there to be confused."""
    sources = [(needle, subject) for needle in kind.needles for subject in needle.subjects]
    facts: list[Fact] = []
    for place, (needle, subject) in enumerate(rng.sample(sources, len(sources))):
        depth = 5 + round(90 * (place + rng.random()) / len(sources))
        facts.append(_fact(needle, subject, _value(rng, needle, facts), depth))
    return facts


def _fact(needle: Needle, subject: str, value: str, depth: int) -> Fact:
    return Fact(
        line=needle.line.format(subject=subject, value=value),
        question=needle.question.format(subject=subject),
        answer=needle.answer.format(subject=subject, value=value),
        value=value,
        depth=depth,
    )


def _value(rng: random.Random, needle: Needle, taken: Sequence[Fact]) -> str:
    """A value for ``needle`` that no earlier fact of the document has."""
    while True:
        value = needle.value.format(
            letters="".join(rng.sample(CODE_LETTERS, 2)),
            four=rng.randrange(1000, 9999),
            firm=rng.choice(FIRMS),
            surname=rng.choice(SURNAMES),
        )
        if all(value != fact.value for fact in taken):
            return value


def _document(rng: random.Random, kind: Kind, facts: Sequence[Fact], length: int) -> str:
    """The document: its title and ``length`` stamped lines, with each fact on the line at its depth."""
    at_line = {min(length - 1, length * fact.depth // 100): fact.line for fact in facts}
    phrases: list[str] = []
    lines = [kind.title]
    for index in range(length):
        if not phrases:
            phrases = rng.sample(kind.lines, len(kind.lines))
        text = at_line.get(index) or _filled(rng, phrases.pop())
        lines.append(f"{_stamp(kind, index, length)} {text}")
    return "\n".join(lines)


def _filled(rng: random.Random, phrase: str) -> str:
    return phrase.format(
        person=rng.choice(PEOPLE),
        place=rng.choice(PLACES),
        part=rng.choice(PARTS),
        goods=rng.choice(GOODS),
        small=rng.randrange(3, 49),
        number=rng.randrange(51, 980),
    )


def _stamp(kind: Kind, index: int, length: int) -> str:
    """The stamp of a line; the clock runs from six in the morning to ten in the evening over the document."""
    minute = 6 * 60 + index * 16 * 60 // length
    return kind.stamp.format(day=1 + index // 6, clock=f"{minute // 60:02d}:{minute % 60:02d}", item=index + 1)
