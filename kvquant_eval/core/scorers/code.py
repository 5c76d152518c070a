"""Code replies, executed against hidden tests: the scorer asks, a sandbox answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from kvquant_eval.core.python_code import UNPARSEABLE, code_of, parsed
from kvquant_eval.core.records import GoldenTurn, Measure, RenderedTurn, Replay
from kvquant_eval.core.score import Ask, Question, Score
from kvquant_eval.core.text import head, one_line

KIND = "python"
LONGEST_TEST, LONGEST_ERROR = 120, 200
"""Characters of an explanation."""


@dataclass(frozen=True)
class Code:
    """The share of ``expected.tests`` that pass, of 100: a reply that gets one case wrong is nearer than one that gets
    none right, and the drop of a class is a mean.

    Each test is Python, a statement or more, and passes when it raises nothing. It finds what ``expected.setup`` (what
    the context defined) and then the reply's code left behind. A program that stops before its tests are done, out of
    time or by itself, earns 0, and so does one that does not parse.
    """

    asks: ClassVar[str] = KIND
    measure: Measure = Measure.GENERATED

    def __call__(self, replay: Replay, turn: GoldenTurn, rendered: RenderedTurn) -> Score | Ask | None:
        tests = turn.expected.get("tests")
        if not tests:
            return None
        code = code_of(replay.text)
        try:
            parsed(code)
        except UNPARSEABLE as error:
            return Score(0.0, f"does not parse: {error}", parseable=False)
        content = {"setup": turn.expected.get("setup", ""), "code": code, "tests": list(tests)}
        return Ask(Question(KIND, content), partial(_score, tests))


def _score(tests: Sequence[str], answer: Mapping[str, Any]) -> Score:
    """``answer``: how each test failed (empty: it passed), and how the program stopped before (empty: it did not).
    Raises KeyError, TypeError, ValueError for another one.
    """
    if answer["stopped"]:
        return Score(0.0, f"stopped: {_short(answer['stopped'], LONGEST_ERROR)}")
    failed = [(test, error) for test, error in zip(tests, answer["errors"], strict=True) if error]
    passed = len(tests) - len(failed)
    note = f"{passed} of {len(tests)} tests pass"
    if failed:
        test, error = failed[0]
        last = test.strip().rpartition("\n")[2]
        note += f"; {_short(last, LONGEST_TEST)}: {_short(error, LONGEST_ERROR)}"
    return Score(100.0 * passed / len(tests), note)


def _short(text: str, chars: int) -> str:
    return one_line(head(text, chars))
