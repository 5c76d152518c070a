"""Chains of arithmetic: partial credit for every step's operands, operator and result, and for the final answer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice

from kvquant_eval.core.records import GoldenTurn, Json, Measure, RenderedTurn, Replay
from kvquant_eval.core.score import Score

_AMOUNT = r"(?:\d{1,3}(?:,\d{3}){1,10}+(?![\d,])|\d++)(?:\.\d++)?+"
_NUMBER = rf"-?(?:[$€£]\s?+)?+{_AMOUNT}(?:/\d++(?![\d./]))?+"
"""Thousands in commas, decimals, a currency before it; ``3/4`` is one number."""
_DIVIDED = rf"-?(?:[$€£]\s?+)?+{_AMOUNT}(?:/\d++(?![\d./])(?!\s*+=))?+"
"""The same before an operator: in ``6/2 = 3`` there are two numbers."""
_UNIT = r"(?:\s?+(?:%|°[CF]?+|(?!x(?![A-Za-z]))[A-Za-z]{1,15}+(?:[²³]|\^[23])?+(?:/[A-Za-z]{1,15}+)?+))?+"
"""One word behind a number; a lone ``x`` is an operator."""
_STEP = re.compile(
    rf"(?:(?<!\d)(?<!\d[./])|(?=-))({_DIVIDED}){_UNIT}\s*+([-+*/x×÷])\s*+({_NUMBER}){_UNIT}\s*+=\s*+({_NUMBER})"
)
"""Never begun inside a number, and nothing is given back: the time is linear in whatever a reply repeats."""
_LAST = re.compile(rf"(?<!\d)(?<!\d[./]){_NUMBER}|-{_AMOUNT}")
_BOLD = re.compile(r"\*\*(-?+[$€£]?+[\d.,/]++)\*\*")
_SIGNS = {"−": "-", "·": "*", r"\times": "×", r"\cdot": "*", r"\div": "÷", "{,}": ",", r"\$": "$"}
_OPERATORS = {"x": "*", "×": "*", "÷": "/"}
_MOST_DIGITS = 100
_FIELDS = ("left", "operator", "operand", "result")


@dataclass(frozen=True)
class MathSteps:
    """Each expected step has four fields (left, operator, operand, result); the final answer is one more. Points are
    the share of fields that the reply's equations, taken in order, get right, x 100.

    Numbers are equal by value: ``1,360`` is ``1360``, ``0.5`` is ``1/2``. Units and currencies behind and before them
    are dropped.
    """

    measure: Measure = Measure.GENERATED

    def __call__(self, replay: Replay, turn: GoldenTurn, rendered: RenderedTurn) -> Score | None:
        expected = turn.expected.get("steps")
        if not expected:
            return None
        text = _plain(replay.text)
        found = [_step(match) for match in islice(_STEP.finditer(text), len(expected))]
        if not found:
            return Score(0.0, "no step to read", parseable=False)
        right, first_wrong = 0, ""
        for number, step in enumerate(expected, 1):
            got = found[number - 1] if number <= len(found) else {}
            hits = sum(got.get(name) == _wanted(step[name], name) for name in _FIELDS)
            right += hits
            if hits < len(_FIELDS) and not first_wrong:
                first_wrong = f"; step {number} first wrong"
        final = _value(_LAST.findall(text)[-1]) == _wanted(turn.expected["final"])
        total = len(_FIELDS) * len(expected) + 1
        return Score(100.0 * (right + final) / total, f"{right + final} of {total} fields right{first_wrong}")


def _plain(text: str) -> str:
    for sign, written in _SIGNS.items():
        text = text.replace(sign, written)
    return _BOLD.sub(r"\1", text)


def _step(match: re.Match[str]) -> dict[str, Fraction | str | None]:
    left, operator, operand, result = match.groups()
    return {
        "left": _value(left),
        "operator": _OPERATORS.get(operator, operator),
        "operand": _value(operand),
        "result": _value(result),
    }


def _wanted(value: Json, field: str = "") -> Fraction | str:
    return str(value) if field == "operator" else Fraction(str(value))


def _value(written: str) -> Fraction | None:
    """None for a number too long to be meant, and for one over zero."""
    if len(written) > _MOST_DIGITS:
        return None
    above, _, below = re.sub(r"[,$€£\s]", "", written).partition("/")
    return None if below and not int(below) else Fraction(above) / int(below or 1)
