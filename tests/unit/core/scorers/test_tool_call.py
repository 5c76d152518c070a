"""Tool calls from raw text: no call, bad JSON, wrong tool and wrong arguments apart."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvquant_eval.core.codec import DataError
from kvquant_eval.core.score import Score
from kvquant_eval.core.scorers.tool_call import ToolCall
from kvquant_eval.core.tool_calls import parse_calls
from tests.fakes.records import golden_turn, rendered_turn, reply

GET = {"name": "get_order", "arguments": {"order_id": "A-1042", "full": True}}
REFUND = {"name": "refund", "arguments": {"amount": 4.9}}
NONE_GIVEN = "wrong argument names: missing 'order_id', missing 'full'"


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
            "get_order: wrong values: 'order_id' 'A-1043' for 'A-1042'",
        ),
        (
            call({"name": "get_order", "arguments": {"order_id": "A-1042"}}),
            75,
            "get_order: wrong argument names: missing 'full'",
        ),
        (
            call({"name": "get_order", "arguments": {**GET["arguments"], "x": 1}}),
            50 + 50 * 2 / 3,
            "get_order: wrong argument names: unknown 'x'",
        ),  # type: ignore[dict-item]
        (call({"name": "get_order"}), 50, f"get_order: {NONE_GIVEN}"),
        (call({"name": "get_order", "arguments": ["A-1042"]}), 50, f"get_order: {NONE_GIVEN}"),
        (
            call({"name": "get_order", "arguments": {"order_id": "A-1042", "full": 1}}),
            75,
            "get_order: wrong values: 'full' '1' for 'True'",
        ),
        (call(REFUND), 0, "wrong tool: 'refund' for 'get_order'"),
        (call(GET) + call(REFUND), 50, "extra call: 'refund'"),
        (call(GET) * 2, 50, "extra call: 'get_order'"),
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
    assert score(call(GET), GET, REFUND).explanation == "no call of 'refund'"


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


WEATHER = {"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}
SHORT = '{"city": "Paris", "days": 3}'
XML = "<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>"
PLAIN = json.dumps(WEATHER)
LLAMA = f'{{"name": "get_weather", "parameters": {SHORT}}}'
ONE = {
    "hermes": call(WEATHER),
    "hermes unclosed": f"<tool_call>{PLAIN}",
    "hermes after text": f"I will look.\n{call(WEATHER)}",
    "hermes with a string": call({**WEATHER, "arguments": SHORT}),
    "hermes with a list": call([WEATHER]),
    "qwen3-coder": f"<tool_call>\n{XML}\n</tool_call>",
    "qwen3-coder unclosed": "<tool_call>\n" + XML.partition("\n</parameter>\n</function>")[0],
    "qwen3-coder without the outer tag": XML,
    "qwen3-coder without closing tags": XML.replace("\n</parameter>", "").replace("</function>", ""),
    "llama": LLAMA,
    "llama with its tag": f"<|python_tag|>{LLAMA}",
    "llama 3.2": f'{{"type": "function", "name": "get_weather", "parameters": {SHORT}}}',
    "llama, name last": f'{{"parameters": {SHORT}, "name": "get_weather"}}',
    "mistral": f"[TOOL_CALLS] [{PLAIN}]",
    "mistral after text": f"I will look.[TOOL_CALLS][{PLAIN}]",
    "mistral v11": f"[TOOL_CALLS]get_weather{SHORT}",
    "mistral v13": f"[TOOL_CALLS]get_weather[ARGS]{SHORT}",
    "mistral with an id": f"[TOOL_CALLS]get_weather[CALL_ID]VvvODy9mT[ARGS]{SHORT}",
    "mistral without its marks": f"get_weather{SHORT}",
    "openai": f'{{"type": "function", "function": {{"name": "get_weather", "arguments": {SHORT}}}}}',
    "openai with a string": json.dumps({"id": "c", "function": {"name": "get_weather", "arguments": SHORT}}),
    "list": f"[{PLAIN}]",
    "in a fence": f"Here:\n```json\n{json.dumps(WEATHER, indent=2)}\n```\nDone.",
    "list in a fence": f"```json\n[{PLAIN}]\n```",
    "fence unclosed": f"```\n{PLAIN}",
    "in a sentence": f"The call is {PLAIN}.",
}
TWO = {
    "hermes": call(WEATHER) + "\n" + call(REFUND),
    "hermes, the first unclosed": f"<tool_call>{PLAIN}\n{call(REFUND)}",
    "hermes in one block": f"<tool_call>{PLAIN}\n{json.dumps(REFUND)}</tool_call>",
    "qwen3-coder": f"<tool_call>{XML}</tool_call>\n<tool_call><function=refund><parameter=amount>4.9</parameter>",
    "qwen3-coder in one block": f"<tool_call>{XML}<function=refund><parameter=amount>4.9</function></tool_call>",
    "llama": f'{LLAMA}; {{"name": "refund", "parameters": {{"amount": 4.9}}}}',
    "llama with its tag": f'<|python_tag|>{LLAMA};{{"name": "refund", "parameters": {{"amount": 4.9}}}};',
    "mistral": f"[TOOL_CALLS] [{PLAIN}, {json.dumps(REFUND)}]",
    "mistral v11": f'[TOOL_CALLS]get_weather{SHORT}[TOOL_CALLS]refund{{"amount": 4.9}}',
    "mistral v13": f'[TOOL_CALLS]get_weather[ARGS]{SHORT}[TOOL_CALLS]refund[ARGS]{{"amount": 4.9}}',
    "mistral without its marks": f'get_weather{SHORT}refund{{"amount": 4.9}}',
    "list": json.dumps([WEATHER, REFUND]),
    "lines": f"{PLAIN}\n{json.dumps(REFUND)}",
    "two fences": f"```json\n{PLAIN}\n```\nand\n```json\n{json.dumps(REFUND)}\n```",
}


@pytest.mark.parametrize("text", ONE.values(), ids=ONE)
def test_a_call_in_every_format(text: str) -> None:
    assert (score(text, WEATHER).explanation, score(text, WEATHER).points) == ("all calls right", 100.0)
    assert score(text).explanation == "a call where an answer is due"
    assert score(text, {**WEATHER, "arguments": {"city": "Rome", "days": 3}}).points == 75


@pytest.mark.parametrize("text", TWO.values(), ids=TWO)
def test_several_calls_in_every_format(text: str) -> None:
    assert score(text, REFUND, WEATHER).points == 100
    assert score(text, WEATHER).explanation == "extra call: 'refund'"


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call> </tool_call>",
        f"<tool_call>{PLAIN} and more</tool_call>",
        f"<tool_call>{PLAIN}</tool_call><tool_call>{{</tool_call>",
        "<tool_call><function=get_weather</tool_call>",
        "[TOOL_CALLS]",
        '[TOOL_CALLS] [{"name": "get_wea',
        '[TOOL_CALLS]get_weather{"city": "Par',
        f"[TOOL_CALLS]get_weather{SHORT} and more",
        "<|python_tag|>print(1)",
        'Sure: {"name": "get_wea',
        '{"name": "f", "arguments": "{} {}"}',
        '{"name": "f", "arguments": {"a": ' + "[" * 101 + "]" * 101 + "}}",
        '{"name": "f", "arguments": {"a": ' + "[" * 100_000 + "]" * 100_000 + "}}",
    ],
)
def test_what_begins_as_a_call_must_be_one(text: str) -> None:
    found = score(text, WEATHER)
    assert (found.points, found.parseable) == (0.0, False)
    assert found.explanation.startswith("bad JSON in a tool call: ")


@pytest.mark.parametrize(
    "text",
    [
        "It is [sunny] {today}.",
        'The order is {"id": 7, "name": "drill"}.',  # a name, but nothing to call it with
        "get_weather(city='Paris')",
        'f{"a": 1} is what I would write.',
        "f{a}",
        "[]",
    ],
)
def test_other_text_is_no_call(text: str) -> None:
    assert score(text, WEATHER).explanation == "no call"


@pytest.mark.parametrize(
    ("text", "points", "explanation"),
    [
        ("It is packed.", 100, "correct silence, found 'packed'"),
        ("It is lost.", 0, "correct silence, none of ['packed']"),
        ('{"status": "packed"}', 100, "correct silence, found 'packed'"),  # JSON is an answer too
        ("{packed", 100, "correct silence, found 'packed'"),
        ("<tool_call>{packed</tool_call>", 0, "bad JSON in a tool call: Expecting property name"),
        (call(GET), 0, "a call where an answer is due"),
    ],
)
def test_silence_with_an_answer(text: str, points: float, explanation: str) -> None:
    found = score(text, answers=["packed"])
    assert found.points == points
    assert found.explanation.startswith(explanation)


def test_silence_alone() -> None:
    assert score("I cannot do that.") == Score(100.0, "correct silence")


@pytest.mark.parametrize(
    ("want", "got", "equal"),
    [
        (3, "3.0", True),
        (3.0, "3", True),
        (0.3, "0.30000000000000004", True),
        (4.9, "4.90", True),
        (4.9, "4.91", False),
        (123456789012, "123456789013", False),  # whole numbers are exact
        (10**400, "1.5", False),
        (1, "true", False),
        (True, "1", False),
        (True, "true", True),
        (False, "null", False),
        (None, "null", True),
        ("3", "3", False),
        (3, '"3"', False),
        ("a", '"A"', False),
        ({"a": [1, {"b": 2.0}]}, '{"a": [1.0, {"b": 2}]}', True),
        ({"a": [1, 2]}, '{"a": [2, 1]}', False),
        ({"a": 1}, '{"a": 1, "b": 2}', False),
        ([1], "[1, 2]", False),
        ([1], "1", False),
        ({}, "[]", False),
    ],
)
def test_when_values_are_equal(want: Any, got: str, equal: bool) -> None:
    found = score(f'{{"name": "f", "arguments": {{"a": {got}}}}}', {"name": "f", "arguments": {"a": want}})
    assert found.points == (100 if equal else 50)
    assert ("wrong values" in found.explanation) is not equal


@pytest.mark.parametrize(
    ("want", "got", "equal"),
    [
        ("3", "3", True),  # XML does not say what type a value has
        (3, "3", True),
        (3.0, " 3 ", True),
        (True, "True", True),
        (False, "false", True),
        (None, "None", True),
        ("True", "True", True),
        ([1, "a"], '[1, "a"]', True),
        ("[1]", "[1]", True),
        ("a\n b", "\na\n b\n", True),
        ("a", "b", False),
        (3, "three", False),
        (3, "3 4", False),
        (3, '"\\ud800"', False),
    ],
)
def test_when_values_out_of_xml_are_equal(want: Any, got: str, equal: bool) -> None:
    text = f"<tool_call><function=f><parameter=a>{got}</parameter></function></tool_call>"
    assert score(text, {"name": "f", "arguments": {"a": want}}).points == (100 if equal else 50)


def test_the_tolerance_can_be_set() -> None:
    turn = golden_turn(expected={"calls": [REFUND]})
    text = '{"name": "refund", "arguments": {"amount": 4.91}}'
    assert ToolCall(tolerance=0.01)(reply(text), turn, rendered_turn()) == Score(100.0, "all calls right")
    for wrong in (-1e-9, 1.0, float("nan")):
        with pytest.raises(DataError, match=r"^tolerance: at least 0 and below 1"):
            ToolCall(tolerance=wrong)


@pytest.mark.parametrize(
    ("arguments", "points"),
    [
        ({"city": "Paris"}, 100),
        ({"city": "Paris, France"}, 100),
        ({"city": "paris"}, 50),
        ({"city": "Paris", "unit": "celsius"}, 100),  # accepted, and not asked for
        ({"city": "Paris", "unit": "kelvin"}, 75),
        ({"unit": "celsius"}, 75),
    ],
)
def test_other_accepted_values(arguments: Any, points: float) -> None:
    accept = {"city": ["Paris, France"], "unit": ["celsius", "C"]}
    want = {"name": "get_weather", "arguments": {"city": "Paris"}, "accept": accept}
    assert score(call({"name": "get_weather", "arguments": arguments}), want).points == points


def test_the_best_pairing_counts_and_not_the_first() -> None:
    wide = {"name": "f", "arguments": {"a": 1, "b": 1}, "accept": {"a": [2]}}
    narrow = {"name": "f", "arguments": {"a": 1, "b": 1}}
    first, second = ({"name": "f", "arguments": {"a": a, "b": 1}} for a in (1, 2))
    assert score(call(first) + call(second), wide, narrow).points == 100
    assert score(call(second) + call(first), wide, narrow).points == 100
    assert score(call(first), wide, narrow).explanation == "no call of 'f'"


def test_everything_wrong_is_said() -> None:
    found = score(call({"name": "a", "arguments": {}}) + call({"name": "b", "arguments": {"x": 2}}), GET, {**REFUND})
    assert found.explanation == "wrong tool: 'a' for 'get_order'; wrong tool: 'b' for 'refund'"
    found = score(call({"name": "refund", "arguments": {"amount": "4.9", "now": 1}}), REFUND)
    assert found.explanation == (
        "refund: wrong argument names: unknown 'now'; refund: wrong values: 'amount' '4.9' for '4.9'"
    )


def test_what_is_said_stays_short() -> None:
    many = {f"argument-{n}" * 100: "x" * 1000 for n in range(100)}
    found = score(call({"name": "get_order", "arguments": many}) + call(REFUND) * 1000, GET)
    assert len(found.explanation) < 3000
    assert found.explanation.endswith("; and 993 more")


WORDS = (
    "<tool_call>",
    "</tool_call>",
    "<function=",
    "f>",
    "</function>",
    "<parameter=",
    "a>",
    "</parameter>",
    "{",
    "}",
)
MARKS = (
    "[TOOL_CALLS]",
    "[ARGS]",
    "<|python_tag|>",
    "f",
    '"name"',
    '"arguments"',
    ":",
    '"f"',
    "{",
    "}",
    "{}",
    ";",
    ",",
    "[",
    "]",
)


@given(st.lists(st.sampled_from((*WORDS, *MARKS, PLAIN, XML, " ", "\n", "1e999", "NaN", '"\\ud800"'))).map("".join))
def test_any_mixture_gets_0_to_100_points_and_an_explanation(text: str) -> None:
    for expected in ([], [WEATHER], [WEATHER, WEATHER, GET]):
        found = score(text, *expected)
        assert 0 <= found.points <= 100
        assert found.explanation
        found.explanation.encode()
