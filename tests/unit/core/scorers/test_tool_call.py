"""Tool calls from raw text: no call, bad JSON, wrong tool and wrong arguments apart."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvquant_eval.core.score import Score
from kvquant_eval.core.scorers.tool_call import ToolCall, parse_calls
from tests.fakes.records import golden_turn, rendered_turn, reply

GET = {"name": "get_order", "arguments": {"order_id": "A-1042", "full": True}}
REFUND = {"name": "refund", "arguments": {"amount": 4.9}}


def call(value: Any) -> str:
    return f"<tool_call>\n{json.dumps(value)}\n</tool_call>"


def score(text: str, *expected: Any, **more: Any) -> Score:
    turn = golden_turn(expected={"calls": list(expected), **more})
    found = ToolCall()(reply(text), turn, rendered_turn())
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("text", "points", "explanation"),
    [
        (call(GET), 100, "all calls right"),
        (f"Let me look. {call(GET)} Done.", 100, "all calls right"),
        (f"<tool_call>{json.dumps(GET)}", 100, "all calls right"),  # cut off before the end tag
        (json.dumps(GET), 100, "all calls right"),  # a bare object
        (call({"name": "get_order", "arguments": {"full": True, "order_id": "A-1042"}}), 100, "all calls right"),
        (call({**GET, "arguments": json.dumps(GET["arguments"])}), 100, "all calls right"),
        (
            call({"name": "get_order", "arguments": {"order_id": "A-1043", "full": True}}),
            75,
            "get_order: wrong arguments",
        ),
        (call({"name": "get_order", "arguments": {"order_id": "A-1042"}}), 75, "get_order: wrong arguments"),
        (
            call({"name": "get_order", "arguments": {**GET["arguments"], "x": 1}}),
            50 + 50 * 2 / 3,
            "get_order: wrong arguments",
        ),  # type: ignore[dict-item]
        (call({"name": "get_order"}), 50, "get_order: wrong arguments"),
        (call({"name": "get_order", "arguments": ["A-1042"]}), 50, "get_order: wrong arguments"),
        (call({"name": "get_order", "arguments": {"order_id": "A-1042", "full": 1}}), 75, "get_order: wrong arguments"),
        (call(REFUND), 0, "get_order: missing; refund: not asked for"),
        (call(GET) + call(REFUND), 50, "refund: not asked for"),
        (call(GET) * 2, 50, "get_order: not asked for"),
        ("The order is packed.", 0, "no call"),
    ],
)
def test_one_call_expected(text: str, points: float, explanation: str) -> None:
    found = score(text, GET)
    assert (found.points, found.explanation) == (pytest.approx(points), explanation)
    assert found.parseable


def test_two_calls_in_any_order() -> None:
    assert score(call(REFUND) + call(GET), GET, REFUND).points == 100
    assert score(call(GET), GET, REFUND).points == 50
    assert score(call(GET), GET, REFUND).explanation == "refund: missing"


def test_each_call_answers_one_expectation() -> None:
    other = {"name": "get_order", "arguments": {"order_id": "B-7", "full": True}}
    assert score(call(other) + call(GET), GET, other).points == 100
    assert score(call(GET) * 2, GET, other).points == (100 + 75) / 2


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>{'name': 'get_order'}</tool_call>",
        '<tool_call>{"name": "get_ord',
        "<tool_call></tool_call>",
        '<tool_call>["get_order"]</tool_call>',
        '<tool_call>{"name": 7}</tool_call>',
        '<tool_call>{"name": "get_order", "arguments": "{"}</tool_call>',
        '{"arguments": {}}',
        "{broken",
        '<tool_call>{"name": "get_order", "arguments": {"order_id": ' + "9" * 5000 + "}}</tool_call>",
    ],
)
def test_bad_json_cannot_be_read(text: str) -> None:
    found = score(text, GET)
    assert (found.points, found.parseable) == (0.0, False)
    assert found.explanation.startswith("bad JSON in a tool call: ")


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>" + "[" * 100_000,
        '<tool_call>{"name": "get_order", "arguments": {"order_id": NaN, "full": true}}</tool_call>',
        '<tool_call>{"name": "get_order", "arguments": {"order_id": -Infinity, "full": true}}</tool_call>',
        '<tool_call>{"name": "get_order", "arguments": {"order_id": 1e999, "full": true}}</tool_call>',
        '<tool_call>{"name": "get_order", "arguments": "{\\"order_id\\": NaN}"}</tool_call>',
    ],
)
def test_hostile_json_is_wrong_and_no_crash(text: str) -> None:
    assert score(text, GET).points < 100


def test_a_turn_that_expects_an_answer() -> None:
    assert score("It is packed.", answers=["packed"]).points == 100
    assert score("It is lost.", answers=["packed"]).points == 0
    found = score(call(GET) + " packed", answers=["packed"])
    assert (found.points, found.explanation) == (0.0, "a call where an answer is due")


def test_a_turn_that_expects_no_scoring() -> None:
    assert ToolCall()(reply(call(GET)), golden_turn(), rendered_turn()) is None


def test_calls_are_read_from_the_text() -> None:
    assert parse_calls(f"a{call(GET)}b{call(REFUND)}c") == [GET, REFUND]
    assert parse_calls("nothing") == []


@given(st.text(alphabet='{}[]",:<>/\\ tool_callname0aN'))
def test_any_text_gets_0_to_100_points(text: str) -> None:
    for candidate in (text, f"<tool_call>{text}"):
        assert 0 <= score(candidate, GET).points <= 100
