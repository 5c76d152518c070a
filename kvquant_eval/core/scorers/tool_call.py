"""Tool calls, read from the raw text of the reply, never through an engine's own parser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from kvquant_eval.core import assignment
from kvquant_eval.core.call_match import accepted, arguments_of, right_arguments
from kvquant_eval.core.codec import quoted
from kvquant_eval.core.limits import check_number
from kvquant_eval.core.records import GoldenTurn, Json, Measure, RenderedTurn, Replay
from kvquant_eval.core.score import Score
from kvquant_eval.core.scorers.text import Match
from kvquant_eval.core.tool_calls import BadCall, Written, parse_calls

_NAME_SHARE = 0.5
_MOST_NOTES = 8


@dataclass(frozen=True)
class ToolCall:
    """Points for the expected calls in any order, each paired with the call of its name that fits best: half for the
    name, half for the share of its arguments that are right; a call too many costs as much as one missed, and a call
    of another tool is both.

    Numbers are equal within the relative ``tolerance`` where one of them is a float, else exactly; ``true`` is no
    number; texts are equal character by character; lists and objects are equal part by part. ``accept`` of an expected
    call lists other right values of an argument: one that stands only there may be left out. What is said about a wrong
    reply: no call, bad JSON, wrong tool, wrong argument names, wrong values, extra call.

    Where no call is expected, none is right: 100 for ``correct silence``, or what ``Match`` gives where
    ``expected.answers`` are due; 0 for a call where an answer is due.
    """

    tolerance: float = 1e-9
    measure: Measure = Measure.GENERATED

    def __post_init__(self) -> None:
        check_number("tolerance", self.tolerance, usual=1e-9, at_least=0, below=1)

    def __call__(self, replay: Replay, turn: GoldenTurn, rendered: RenderedTurn) -> Score | None:
        expected = turn.expected.get("calls")
        if expected is None:
            return None
        try:
            calls = parse_calls(replay.text)
        except BadCall as error:
            if expected or error.marked:
                return Score(0.0, f"bad JSON in a tool call: {error}", parseable=False)
            calls = []  # JSON that is no call can be an answer
        if not expected:
            return Score(0.0, "a call where an answer is due") if calls else _silence(replay, turn, rendered)
        if not calls:
            return Score(0.0, "no call")
        return _score(expected, calls, self.tolerance)


def _silence(replay: Replay, turn: GoldenTurn, rendered: RenderedTurn) -> Score:
    answer = Match()(replay, turn, rendered)
    return Score(answer.points, f"correct silence, {answer.explanation}") if answer else Score(100.0, "correct silence")


def _score(expected: Sequence[Mapping[str, Any]], calls: Sequence[Mapping[str, Any]], tolerance: float) -> Score:
    pairs = _pairs(expected, calls, tolerance)
    points = sum(_share(expected[w], calls[c], tolerance) for w, c in pairs.items())
    notes = [note for w, c in sorted(pairs.items()) for note in _notes(expected[w], calls[c], tolerance)]
    missed = [want["name"] for w, want in enumerate(expected) if w not in pairs]
    paired = set(pairs.values())
    extra = [call["name"] for c, call in enumerate(calls) if c not in paired]
    notes += [_unpaired(want, got) for want, got in zip_longest(missed, extra)]
    return Score(100.0 * points / (len(expected) + len(extra)), _listed(notes, "; ") or "all calls right")


def _pairs(
    expected: Sequence[Mapping[str, Any]], calls: Sequence[Mapping[str, Any]], tolerance: float
) -> dict[int, int]:
    """Which call answers which expected one, by index: of all pairings of calls with their names, the best."""
    pairs: dict[int, int] = {}
    for name in {want["name"] for want in expected}:
        wanted = [w for w, want in enumerate(expected) if want["name"] == name]
        given = [c for c, call in enumerate(calls) if call["name"] == name]
        shares = [[_share(expected[w], calls[c], tolerance) for c in given] for w in wanted]
        if len(wanted) <= len(given):
            pairs |= {w: given[c] for w, c in zip(wanted, assignment.best(shares), strict=True)}
        else:
            pairs |= {
                wanted[w]: c for c, w in zip(given, assignment.best(list(zip(*shares, strict=True))), strict=True)
            }
    return pairs


def _share(want: Mapping[str, Any], call: Mapping[str, Any], tolerance: float) -> float:
    """What a call of the right name is worth, 0..1."""
    right = right_arguments(want, call, tolerance)
    return _NAME_SHARE + (1 - _NAME_SHARE) * (sum(right.values()) / len(right) if right else 1.0)


def _notes(want: Mapping[str, Any], call: Mapping[str, Any], tolerance: float) -> list[str]:
    """What is wrong with a call of the right name."""
    got = arguments_of(call)
    names = [f"missing {quoted(key)}" for key in want["arguments"] if key not in got]
    names += [f"unknown {quoted(key)}" for key in got if not accepted(want, key)]
    values = [
        f"{quoted(key)} {_shown(got[key])} for {_shown(accepted(want, key)[0])}"
        for key, right in right_arguments(want, call, tolerance).items()
        if not right and key in got and accepted(want, key)
    ]
    notes = [f"{want['name']}: wrong argument names: {_listed(names)}"] if names else []
    return notes + ([f"{want['name']}: wrong values: {_listed(values)}"] if values else [])


def _shown(value: Json) -> str:
    return quoted(value.text if isinstance(value, Written) else value)


def _unpaired(want: str | None, got: str | None) -> str:
    """``want`` was expected and ``got`` was called; one of both may not be there."""
    if want is None:
        return f"extra call: {quoted(got)}"
    return f"no call of {quoted(want)}" if got is None else f"wrong tool: {quoted(got)} for {quoted(want)}"


def _listed(notes: Sequence[str], mark: str = ", ") -> str:
    more = f"{mark}and {len(notes) - _MOST_NOTES} more" if len(notes) > _MOST_NOTES else ""
    return mark.join(notes[:_MOST_NOTES]) + more
