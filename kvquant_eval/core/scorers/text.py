"""Scorers of plain answers: does the reply hold what was asked for?"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kvquant_eval.core import pattern
from kvquant_eval.core.codec import quoted
from kvquant_eval.core.records import GoldenTurn, Measure, RenderedTurn, Replay
from kvquant_eval.core.score import Score

_WORD = re.compile(r"[^\W_]+(?:[.,:/-][^\W_]+)*")


def words(text: str) -> list[str]:
    """Lower-case words; numbers, codes and times such as ``4.90``, ``QX-4471`` and ``14:30`` stay whole."""
    return _WORD.findall(text.casefold())


def holds(text: str, answer: str) -> bool:
    """Whether the words of ``answer`` stand in ``text`` one after the other."""
    return f" {' '.join(words(answer))} " in f" {' '.join(words(text))} "


@dataclass(frozen=True)
class Match:
    """100 when the reply holds one of ``expected.answers``, else 0."""

    measure: Measure = Measure.GENERATED

    def __call__(self, replay: Replay, turn: GoldenTurn, rendered: RenderedTurn) -> Score | None:
        answers = turn.expected.get("answers")
        if not answers:
            return None
        found = next((answer for answer in answers if holds(replay.text, answer)), None)
        return Score(100.0, f"found {found!r}") if found else Score(0.0, f"none of {answers!r}")


@dataclass(frozen=True)
class Needle:
    """The share of ``expected.needle`` that the reply holds, x 100."""

    measure: Measure = Measure.GENERATED

    def __call__(self, replay: Replay, turn: GoldenTurn, rendered: RenderedTurn) -> Score | None:
        return _share(replay.text, turn.expected.get("needle"))


@dataclass(frozen=True)
class ContainsAll:
    """The share of the texts ``expected.contains`` that the reply holds, x 100."""

    measure: Measure = Measure.GENERATED

    def __call__(self, replay: Replay, turn: GoldenTurn, rendered: RenderedTurn) -> Score | None:
        return _share(replay.text, turn.expected.get("contains"))


@dataclass(frozen=True)
class Regex:
    """100 when ``expected.regex`` matches somewhere in the reply, else 0; ``core.pattern`` says what it may hold."""

    measure: Measure = Measure.GENERATED

    def __call__(self, replay: Replay, turn: GoldenTurn, rendered: RenderedTurn) -> Score | None:
        wanted = turn.expected.get("regex")
        if not wanted:
            return None
        if pattern.found(wanted, replay.text):
            return Score(100.0, f"matches {quoted(wanted)}")
        return Score(0.0, f"no match of {quoted(wanted)}")


@dataclass(frozen=True)
class TokenF1:
    """Word-level F1 between the reply and the golden reply, x 100 (SQuAD's measure, without dropping articles)."""

    measure: Measure = Measure.GENERATED

    def __call__(self, replay: Replay, turn: GoldenTurn, rendered: RenderedTurn) -> Score | None:
        golden, reply = words(turn.reference.get("content") or ""), words(replay.text)
        if not golden:
            return None
        common = sum((Counter(golden) & Counter(reply)).values())
        return Score(200.0 * common / (len(golden) + len(reply)), f"{common} common of {len(golden)} and {len(reply)}")


def _share(text: str, wanted: Sequence[str] | None) -> Score | None:
    if not wanted:
        return None
    missing = [one for one in wanted if not holds(text, one)]
    return Score(100.0 * (1 - len(missing) / len(wanted)), f"missing {missing!r}" if missing else "all found")
