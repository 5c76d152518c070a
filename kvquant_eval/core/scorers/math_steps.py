"""Chains of arithmetic: partial credit for every step's operands, operator and result, and for the final answer."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvquant_eval.core.records import GoldenTurn, Measure, RenderedTurn, Replay
from kvquant_eval.core.score import Score

_STEP = re.compile(r"(?:(?<!\d)|(?=-))(-?\d++)\s*+([-+*/x×÷])\s*+(-?\d++)\s*+=\s*+(-?\d+)")
"""Never begun inside a number, and nothing is given back: the time is linear in whatever a reply repeats."""
_NUMBER = re.compile(r"-?\d+")
_OPERATORS = {"x": "*", "×": "*", "÷": "/"}
_MOST_DIGITS = 100
_FIELDS = ("left", "operator", "operand", "result")


@dataclass(frozen=True)
class MathSteps:
    """Each expected step has four fields (left, operator, operand, result); the final answer is one more. Points are
    the share of fields that the reply's equations, taken in order, get right, x 100.
    """

    measure: Measure = Measure.GENERATED

    def __call__(self, replay: Replay, turn: GoldenTurn, rendered: RenderedTurn) -> Score | None:
        expected = turn.expected.get("steps")
        if not expected:
            return None
        found = [_step(match) for match in _STEP.finditer(replay.text)]
        if not found:
            return Score(0.0, "no step to read", parseable=False)
        right, first_wrong = 0, ""
        for number, step in enumerate(expected, 1):
            got = found[number - 1] if number <= len(found) else {}
            hits = sum(got.get(name) == step[name] for name in _FIELDS)
            right += hits
            if hits < len(_FIELDS) and not first_wrong:
                first_wrong = f"; step {number} first wrong"
        final = _integer(_NUMBER.findall(replay.text)[-1]) == turn.expected["final"]
        total = len(_FIELDS) * len(expected) + 1
        return Score(100.0 * (right + final) / total, f"{right + final} of {total} fields right{first_wrong}")


def _step(match: re.Match[str]) -> dict[str, int | str | None]:
    left, operator, operand, result = match.groups()
    return {
        "left": _integer(left),
        "operator": _OPERATORS.get(operator, operator),
        "operand": _integer(operand),
        "result": _integer(result),
    }


def _integer(digits: str) -> int | None:
    """None for a number too long to be meant (``int`` refuses more than 4,300 digits)."""
    return int(digits) if len(digits) <= _MOST_DIGITS else None
