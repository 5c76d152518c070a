"""The rules of a golden turn, each broken by one change to a good turn."""

from __future__ import annotations

from typing import Any

import pytest

from kvquant_eval.core.records import Span
from kvquant_eval.core.schema import DRAFT
from kvquant_eval.core.turns import is_name, is_workload, problem
from tests.fakes.records import golden_turn

USER = {"role": "user", "content": "hello"}
STEP = {"left": 1, "operator": "+", "operand": 2, "result": 3}
DONE = {"role": "assistant", "content": "done"}
PATTERN = "expected.regex: a pattern that compiles, of at most 1000 characters, without look-around or references, got "
SCHEMA = "expected.json_schema: a plain schema of draft 2020-12, got "


def call(name: Any = "price", arguments: Any = '{"item": 3}', **more: Any) -> dict[str, Any]:
    return {"function": {"name": name, "arguments": arguments}, **more}


def calling(*calls: Any, content: Any = None) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def result(call_id: str | None = None) -> dict[str, Any]:
    return {"role": "tool", "content": "3.10"} | ({} if call_id is None else {"tool_call_id": call_id})


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"turn_id": "../../x", "conversation_id": "a b é", "turn_index": 0, "max_tokens": 1},
        {"messages": ({"role": "system", "content": ""}, {"role": "developer", "content": "d"}, USER, DONE, USER)},
        {"reference": calling(call())},
        {"reference": calling(call(), content="")},
        {"reference": calling(call(arguments={"item": 3}), call(arguments=None))},
        {"reference": {"role": "assistant", "content": "x", "tool_calls": None}},
        {"messages": (USER, calling(call(id="a"), call(id="b")), result("b"), result("a"), DONE, USER)},
        {"messages": (USER, calling(call(), call(id="b")), result("b"), result(), USER)},
        {"messages": (USER, calling(call(id="a"), call(id="b")), result(), result(), USER)},
        {"messages": (calling(call(id="a")), result("a"), calling(call(id="a")), result("a"))},
        {"tools": ({"type": "function", "function": {"name": "price"}}, {"function": {"name": "f", "x": 1}})},
        {"decisive": (Span(text="5"), Span(text=" ", nth=3))},
        {"expected": {"answers": [], "steps": [], "calls": [], "mine": {"any": [1, None]}}},
        {"expected": {"steps": [STEP], "final": 3}},
        {"expected": {"steps": [{**STEP, "left": 0.5, "operand": "-3/4"}], "final": "7/2"}},
        {"expected": {"rubric": "the price must be right"}},
        {"expected": {"calls": [{"name": "f", "arguments": {}}], "answers": ["a"], "needle": ["b"]}},
        {"expected": {"function": "f", "parameters": ["a"], "uses": ["X"]}},
        {"expected": {"setup": "X = 1", "tests": ["assert f(X) == 1", "y = f(2)\nassert y == 2"]}},
        {"expected": {"setup": "", "tests": []}},
        {"expected": {"calls": [{"name": "f", "arguments": {"a": 1}, "accept": {"a": [2, "2", None], "b": []}}]}},
        {"expected": {"contains": ["a"], "regex": r"(?i)^\d{4}\b", "json_schema": {"type": "object"}}},
        {"expected": {"regex": "x" * 1000, "json_schema": {}}},
        {"expected": {"json_schema": {"$schema": DRAFT, "$ref": "#/$defs/a", "$defs": {"a": {"pattern": "^a"}}}}},
    ],
)
def test_a_good_turn_has_no_problem(changes: dict[str, Any]) -> None:
    assert problem(golden_turn(**changes)) is None


@pytest.mark.parametrize("field", ["turn_id", "conversation_id"])
@pytest.mark.parametrize("name", ["", "x" * 201, "a\nb", "\x1b[2J", "a\u202eb", "\x00", "\u2028"])
def test_ids_print(field: str, name: str) -> None:
    said = problem(golden_turn(**{field: name}))
    assert said is not None
    assert said.startswith(f"{field}: 1 to 200 printable characters, got '")
    assert said.isprintable()
    assert len(said) < 200


@pytest.mark.parametrize("name", ["faq", "math_chain", "v1.2", "a-b", "_", "0"])
def test_a_class_name_can_be_a_key_and_a_metric(name: str) -> None:
    assert is_workload(name)


@pytest.mark.parametrize("name", ["", ".hidden", "../../x", "a/b", "a b", "é", "a\n", "x" * 201, "a=b"])
def test_another_class_name_cannot(name: str) -> None:
    assert not is_workload(name)
    assert problem(golden_turn(workload=name)) is not None


def test_a_name_has_at_most_200_characters() -> None:
    assert is_name("x" * 200)
    assert not is_name("x" * 201)


def numbered(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": text, **more}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"turn_index": -1}, "turn_index: a number from 0 to 1000000000, got '-1'; correct it"),
        ({"turn_index": 10**9 + 1}, "turn_index: a number from 0 to 1000000000, got '1000000001'; correct it"),
        ({"max_tokens": 0}, "max_tokens: a number from 1 to 1000000000, got '0'; correct it"),
        ({"decisive": (Span(text="a"), Span(text=""))}, "decisive.1.text: a part of the reply, got ''; "),
        ({"decisive": (Span(text="a", nth=-1),)}, "decisive.0.nth: a number from 0 to 1000000000, got '-1'; "),
        ({"tools": ({"name": "price"},)}, "tools.0: an object with function.name, got \"{'name': 'price'}\"; "),
        ({"tools": ({"function": {"name": ""}},)}, "tools.0: an object with function.name, got "),
        ({"tools": ({"type": "custom", "function": {"name": "f"}},)}, "tools.0.type: 'function', got 'custom'; "),
        ({"messages": ()}, "messages: at least one message, got none; "),
        ({"messages": (USER, {"content": "x"})}, "messages.1.role: one of system, developer, user, assistant, tool, "),
        ({"messages": ({"role": ["user"], "content": "x"},)}, "messages.0.role: one of "),
        ({"messages": ({"role": "user"},)}, "messages.0.content: a string, got 'None'; add the text"),
        ({"messages": (numbered("x", content=3),)}, "messages.0.content: a string, got '3'; add the text"),
        (
            {"messages": (numbered("x", content=[{"type": "text", "text": "x"}]),)},
            "messages.0.content: a string, got a list of parts; join its text, a picture cannot be replayed",
        ),
        ({"messages": ({"role": "assistant", "content": None},)}, "messages.0.content: a string, got 'None'; "),
        ({"messages": (numbered("x", tool_calls=[call()]),)}, "messages.0.tool_calls: calls by the assistant only, "),
        ({"messages": (result(),)}, "messages.0: a tool result of a call before it, got one without; add the call"),
        ({"messages": ({**result(), "tool_call_id": 3},)}, "messages.0.tool_call_id: a string, got '3'; correct it"),
        ({"reference": {"role": "user", "content": "x"}}, "reference.role: 'assistant', got 'user'; correct it"),
        ({"reference": {"content": "x"}}, "reference.role: 'assistant', got 'None'; correct it"),
        ({"reference": {"role": "assistant", "content": ""}}, "reference: content or tool_calls, got neither; "),
        ({"reference": {"role": "assistant", "tool_calls": []}}, "reference.content: a string, got 'None'; "),
        ({"reference": {"role": "assistant", "tool_calls": "f()"}}, "reference.tool_calls: a list, got 'f()'; "),
        ({"reference": calling("f()")}, "reference.tool_calls.0: an object with function.name, got 'f()'; "),
        ({"reference": calling(call(), call(name=None))}, "reference.tool_calls.1: an object with function.name, got "),
        ({"reference": calling(call(id=3))}, "reference.tool_calls.0.id: a string, got '3'; correct it"),
        ({"reference": calling(call(type="custom"))}, "reference.tool_calls.0.type: 'function', got 'custom'; "),
    ],
)
def test_what_is_wrong_is_named_with_turn_and_field(changes: dict[str, Any], said: str) -> None:
    found = problem(golden_turn("t7", **changes))
    assert found is not None
    assert found.startswith(f"t7: {said}")


@pytest.mark.parametrize(
    ("arguments", "got"),
    [
        ("", "Expecting value at line 1, column 1"),
        ("item=3", "Expecting value at line 1, column 1"),
        ('{"item": NaN}', "NaN at line 1, column 10"),
        ('{"a": 1, "a": 2}', "the key 'a' twice in one object"),
        ("[3]", "'[3]'"),
        ("null", "'null'"),
        (3, "'3'"),
        ([], "'[]'"),
    ],
)
def test_tool_arguments_are_an_object_or_its_json(arguments: Any, got: str) -> None:
    found = problem(golden_turn(reference=calling(call(arguments=arguments))))
    assert found == f"t: reference.tool_calls.0.function.arguments: a JSON object, got {got}; correct it"


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        (
            (USER, calling(call(id="a")), USER),
            "messages.1.tool_calls: a tool result for every call, got none for 'a'; ",
        ),
        ((USER, calling(call(id="a")), DONE, USER), "messages.1.tool_calls: a tool result for every call, got none "),
        (
            (USER, calling(call())),
            "messages.1.tool_calls: a tool result for every call, got none; add the tool message",
        ),
        (
            (USER, calling(call(id="a"), call(id="b")), result("a"), USER),
            "messages.1.tool_calls: a tool result for every call, got none for 'b'; add the tool message",
        ),
        ((USER, calling(call(id="a")), result("b")), "messages.2: a tool result of a call before it, got 'b'; "),
        ((USER, calling(call(id="a")), result("a"), result("a")), "messages.3: a tool result of a call before it, "),
        ((USER, calling(call(id="a")), result("a"), DONE, result("a")), "messages.4: a tool result of a call before "),
    ],
)
def test_every_call_has_its_result_and_every_result_its_call(messages: Any, said: str) -> None:
    assert (problem(golden_turn(messages=messages)) or "").startswith(f"t: {said}")


@pytest.mark.parametrize(
    ("expected", "said"),
    [
        ({"answers": "5"}, "expected: answers: "),
        ({"answers": [5]}, "expected: answers.0: "),
        ({"needle": [None]}, "expected: needle.0: "),
        ({"function": 3}, "expected: function: "),
        ({"parameters": "a"}, "expected: parameters: "),
        ({"tests": "assert f()"}, "expected: tests: "),
        ({"tests": [3]}, "expected: tests.0: "),
        ({"tests": ["f()", "f(:"]}, "expected.tests.1: statements of Python, got "),
        ({"tests": ["# f()"]}, "expected.tests.0: statements of Python, got 'nothing that does anything'; "),
        ({"tests": ["-" * 10**5 + "1"]}, "expected.tests.0: statements of Python, got "),
        ({"setup": ["x = 1"]}, "expected: setup: "),
        ({"setup": "def f("}, "expected.setup: statements of Python, got "),
        ({"calls": [{"name": "f"}]}, "expected: calls.0.arguments: "),
        ({"calls": [{"name": "f", "arguments": {}, "accept": ["a"]}]}, "expected: calls.0.accept: "),
        ({"calls": [{"name": "f", "arguments": {}, "accept": {"a": "b"}}]}, "expected: calls.0.accept.a: "),
        ({"contains": "a"}, "expected: contains: "),
        ({"regex": ["a"]}, "expected: regex: "),
        ({"regex": "x" * 1001}, f"{PATTERN}one of 1001; simplify it"),
        ({"regex": "("}, f"{PATTERN}unclosed group; simplify it"),
        ({"regex": "a(?=b)"}, f"{PATTERN}look-around, including look-ahead and look-behind, is not supported; "),
        ({"regex": r"(a)\1"}, f"{PATTERN}backreferences are not supported; simplify it"),
        ({"regex": r"(a{1000}){1000}"}, f"{PATTERN}Compiled regex exceeds size limit of 10485760 bytes; simplify it"),
        ({"json_schema": []}, "expected: json_schema: "),
        (
            {"json_schema": {"type": "text"}},
            f"{SCHEMA}\"'text' is not valid under any of the given schemas\"; simplify it",
        ),
        ({"json_schema": {"$schema": "http://x"}}, f"{SCHEMA}the draft 'http://x'; simplify it"),
        ({"json_schema": {"items": {"$schema": DRAFT}}}, f"{SCHEMA}the keyword $schema; simplify it"),
        ({"json_schema": {"not": {"patternProperties": {}}}}, f"{SCHEMA}the keyword patternProperties; simplify it"),
        ({"json_schema": {"items": {"pattern": "(?=a)"}}}, f"{SCHEMA}the pattern '(?=a)' (look-around, "),
        ({"json_schema": {"$ref": "https://example.org/a"}}, f"{SCHEMA}a reference to 'https://example.org/a'; "),
        ({"json_schema": {"allOf": [{"$ref": "#/$defs/a"}]}}, f"{SCHEMA}a reference to '#/$defs/a'; simplify it"),
        ({"json_schema": {"$ref": "#"}}, f"{SCHEMA}one that refers to itself without end; simplify it"),
        ({"steps": [{"left": 1}], "final": 1}, "expected: steps.0.operator: "),
        ({"steps": [STEP], "final": True}, "expected: final: "),
        ({"steps": [STEP], "final": "3/0"}, "expected: final: "),
        ({"steps": [STEP], "final": float("inf")}, "expected: final: "),
        ({"rubric": 3}, "expected: rubric: "),
        (
            {"steps": [{"left": "1", "operator": "+", "operand": 2, "result": 3}], "final": 3},
            "expected: steps.0.left: ",
        ),
        (
            {"steps": [{"left": 1, "operator": "+", "operand": 2, "result": 3}]},
            "expected.final: the last step's result",
        ),
    ],
)
def test_what_scorers_read_has_the_shape_they_read(expected: dict[str, Any], said: str) -> None:
    assert (problem(golden_turn(expected=expected)) or "").startswith(f"t: {said}")


def test_a_huge_value_is_cut_and_an_escape_is_shown() -> None:
    found = problem(golden_turn(messages=({"role": "\x1b" + "x" * 10_000, "content": ""},))) or ""
    assert len(found) < 250
    assert r"got '\x1bxxx" in found
