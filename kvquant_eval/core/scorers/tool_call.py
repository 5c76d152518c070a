"""Tool calls, read from the raw text of the reply, never through an engine's own parser."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvquant_eval.core.codec import canonical
from kvquant_eval.core.records import GoldenTurn, Measure, RenderedTurn, Replay
from kvquant_eval.core.score import Score
from kvquant_eval.core.scorers.text import Match

_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|$)", re.DOTALL)
_NAME_SHARE = 0.5


@dataclass(frozen=True)
class ToolCall:
    """Points for the expected calls in any order: half for a call's name, half for the share of its arguments that
    are equal as canonical JSON; a call too many costs as much as one missed. A turn that expects an answer instead
    of a call is scored as ``Match``, 0 if the reply calls a tool.
    """

    measure: Measure = Measure.GENERATED

    def __call__(self, replay: Replay, turn: GoldenTurn, rendered: RenderedTurn) -> Score | None:
        expected = turn.expected.get("calls")
        if expected is None:
            return None
        try:
            calls = parse_calls(replay.text)
        except (ValueError, RecursionError) as error:
            return Score(0.0, f"bad JSON in a tool call: {error}", parseable=False)
        if not expected:
            return Score(0.0, "a call where an answer is due") if calls else Match()(replay, turn, rendered)
        if not calls:
            return Score(0.0, "no call")
        return _score(expected, calls)


def parse_calls(text: str) -> list[dict[str, Any]]:
    """The calls in ``<tool_call>`` blocks, or a reply that is one bare JSON object with a name.

    Raises ValueError for what is no strict JSON, RecursionError for what is nested too deeply.
    """
    blocks = _CALL.findall(text)
    if not blocks and text.strip().startswith("{"):
        blocks = [text]
    calls = [json.loads(block.strip()) for block in blocks]
    for call in calls:
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            raise ValueError("an object with a name is due")
        if isinstance(call.get("arguments"), str):
            call["arguments"] = json.loads(call["arguments"])
    canonical(calls).encode()  # refuses NaN, infinities and lone surrogates
    return calls


def _score(expected: Sequence[Mapping[str, Any]], calls: list[dict[str, Any]]) -> Score:
    left, total, notes = list(calls), 0.0, []
    for want in expected:
        best = max(left, key=lambda call: _similarity(want, call), default=None)
        share = _similarity(want, best) if best is not None else 0.0
        if share > 0 and best is not None:
            left.remove(best)
        total += share
        if share < 1:
            notes.append(f"{want['name']}: {'missing' if not share else 'wrong arguments'}")
    notes += [f"{call['name']}: not asked for" for call in left]
    return Score(100.0 * total / (len(expected) + len(left)), "; ".join(notes) or "all calls right")


def _similarity(want: Mapping[str, Any], call: Mapping[str, Any]) -> float:
    """0..1; 0 for another tool."""
    if want["name"] != call["name"]:
        return 0.0
    expected, got = want["arguments"], call.get("arguments")
    got = got if isinstance(got, dict) else {}
    keys = set(expected) | set(got)
    equal = sum(k in expected and k in got and canonical(expected[k]) == canonical(got[k]) for k in keys)
    return _NAME_SHARE + (1 - _NAME_SHARE) * (equal / len(keys) if keys else 1.0)
