"""Replies made to keep a scorer busy, or to leave it by another door than a score."""

from __future__ import annotations

import json

import pytest

from kvquant_eval.core.score import Ask, Scorer, score_replays
from kvquant_eval.core.scorers.code import Code
from kvquant_eval.core.scorers.json_schema import JsonSchema
from kvquant_eval.core.scorers.judge import Judge
from kvquant_eval.core.scorers.math_answer import MathAnswer
from kvquant_eval.core.scorers.math_steps import MathSteps
from kvquant_eval.core.scorers.python_signature import PythonSignature
from kvquant_eval.core.scorers.text import ContainsAll, Match, Needle, Regex, TokenF1
from kvquant_eval.core.scorers.tool_call import ToolCall
from tests.fakes.records import golden_turn, rendered_turn, reply
from tests.hostile.payloads import HOSTILE

EXPECTED = {
    "steps": [{"left": 1, "operator": "+", "operand": 1, "result": 2}],
    "final": 2,
    "calls": [{"name": "f", "arguments": {}}],
    "function": "f",
    "answers": ["never said"],
    "needle": ["never said"],
    "contains": ["never said"],
    "regex": r"(?:[a1 (\[]+)+never said$",
    "json_schema": {
        "type": ["array", "object"],
        "items": {
            "anyOf": [{"$ref": "#"}, {"$ref": "#", "uniqueItems": True}, {"type": "string", "pattern": "(?:[a1 ]+)+!$"}]
        },
        "minProperties": 1,
        "$defs": {"end": {"type": "string", "pattern": "(?:[a1 ]+)+!$"}},
        "uniqueItems": True,
        "additionalProperties": False,
    },
}
SCORERS: dict[str, Scorer] = {
    "math_steps": MathSteps(),
    "tool_call": ToolCall(),
    "python_signature": PythonSignature(),
    "match": Match(),
    "needle": Needle(),
    "token_f1": TokenF1(),
    "contains_all": ContainsAll(),
    "regex": Regex(),
    "json_schema": JsonSchema(),
    "math_answer": MathAnswer(),
    "symbolic": MathAnswer(symbolic=True),
    "judge": Judge(model="m"),
}
N = 300_000
"""Characters; a scorer whose time grows with their square would need the better part of an hour."""
BUSY = {
    "digits": "1" * N,
    "minus digits": "-1" * N,
    "digits and spaces": "1" + " " * N,
    "spaces in a call": "<tool_call>a" + " " * N + "b",
    "open calls": "<tool_call> " * (N // 12),
    "calls": '<tool_call>{"name":"g"}</tool_call>' * (N // 36),
    "open fences": "```python " * (N // 10),
    "open brackets": "[" * N,
    "open objects": '<tool_call>{"name":' + '{"a":' * N,
    "sums": "1+" * N + "1",
    "attributes": "a" + ".a" * N,
    "negations": "not " * N,
    "words": "a.b:c-" * N,
    "open functions": "<function=" * (N // 10),
    "functions": "<function=f>" * (N // 12),
    "open parameters": "<tool_call><function=g>" + "<parameter=" * (N // 11),
    "parameters": "<tool_call><function=g>" + "<parameter=a>" * (N // 13),
    "blocks in blocks": "<tool_call><function=g>" * (N // 23),
    "marks": "[TOOL_CALLS]" * (N // 12),
    "named": "a{}" * (N // 3),
    "objects with a name": '{"name":' * (N // 8),
    "objects that are no call": '{"name": 1}' * (N // 11),
    "braces": "{" * N,
    "braces and spaces": "{" + " " * N + "}",
    "lists in lists": "[" * 90 + "[]," * (N // 3) + "[]" + "]" * 90,
    "unlike items": "[" + ",".join(f'{{"a":{n}}}' for n in range(N // 10)) + "]",
    "deep lists twice": "[" * 40 + '"' + "a" * 1000 + '"' + "]" * 40,
    "boxes": "\\boxed{" * (N // 7),
    "answers": "the answer is " * (N // 14),
    "marked answers": "#### " * (N // 5),
    "fractions": "1\\frac{1" * (N // 8),
    "mixed": "1 " * (N // 2) + "1/",
    "thousands": "1" + ",000" * (N // 4),
    "equations": "the answer is " + "x=" * (N // 2),
    "texts": "\\text{" * (N // 6),
    "units": "#### 1 " + "a^2" * (N // 3),
}


@pytest.mark.parametrize("scorer", SCORERS.values(), ids=SCORERS)
@pytest.mark.parametrize("text", BUSY.values(), ids=BUSY)
def test_a_reply_takes_time_in_proportion_to_its_length(scorer: Scorer, text: str) -> None:
    found = scorer(reply(text), golden_turn(expected=EXPECTED), rendered_turn())
    assert found is not None
    assert len(found.question.key) == 64 if isinstance(found, Ask) else found.points < 50.0


@pytest.mark.parametrize("text", [*BUSY.values(), *HOSTILE])
def test_code_is_asked_about_in_proportion_to_its_length(text: str) -> None:
    """And the answer, whatever it says of the reply, is one line that can be shown."""
    found = Code()(reply(text), golden_turn(expected={"tests": [text or "pass"]}), rendered_turn())
    if isinstance(found, Ask):
        assert found.question.key
        found = found.score({"errors": [text], "stopped": ""})
    assert found is not None
    assert found.explanation.isprintable() or not found.parseable
    found.explanation.encode()


@pytest.mark.parametrize("scorer", SCORERS.values(), ids=SCORERS)
def test_every_payload_is_scored(scorer: Scorer) -> None:
    turn = golden_turn(reference={"role": "assistant", "content": "plain"}, expected=EXPECTED)
    for text in HOSTILE:
        found = scorer(reply(text), turn, rendered_turn())
        assert found is not None
        if isinstance(found, Ask):
            assert found.question.key
            continue
        assert 0.0 <= found.points <= 100.0
        found.explanation.encode()


@pytest.mark.parametrize("field", ["name", "argument", "key"])
def test_a_call_with_a_lone_surrogate_is_no_call(field: str) -> None:
    """JSON can spell what UTF-8 cannot carry; no tool would get it."""
    calls = {
        "name": {"name": "\ud800", "arguments": {}},
        "argument": {"name": "f", "arguments": {"a": "\udfff"}},
        "key": {"name": "f", "arguments": {"\ud800": 1}},
    }
    text = f"<tool_call>{json.dumps(calls[field])}</tool_call>"
    found = ToolCall()(reply(text), golden_turn(expected=EXPECTED), rendered_turn())
    assert found is not None
    assert (found.points, found.parseable) == (0.0, False)
    found.explanation.encode()


def test_steps_are_read_as_before() -> None:
    """What the pattern that never backtracks finds, on the spellings that it could get wrong."""
    for text, points in (
        ("1 + 1 = 2", 100.0),
        ("1+1=2", 100.0),
        ("01 + 1\n=\n2", 100.0),
        ("-1 + 1 = 2", 80.0),
        ("3-1 + 1 = 2", 80.0),
        ("31 + 1 = 2", 80.0),
        ("9 1 + 1 = 2", 100.0),
    ):
        found = MathSteps()(reply(text), golden_turn(expected=EXPECTED), rendered_turn())
        assert found is not None
        assert found.points == pytest.approx(points), text


@pytest.mark.parametrize("tags", ["<think>", "</think>", "<think></think>", "[THINK]", "[/THINK]", "a</think><think>"])
def test_thinking_without_end_takes_time_in_proportion_to_its_length(tags: str) -> None:
    turn = (golden_turn(expected=EXPECTED), rendered_turn())
    scores = score_replays([reply(tags * (N // len(tags)))], {"t": turn}, {"math_chain": SCORERS})
    assert {score.points for score in scores} == {0.0}
