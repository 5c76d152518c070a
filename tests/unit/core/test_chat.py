"""Every spelling of OpenAI's chat interfaces comes out as one, and what is no text is named."""

from __future__ import annotations

from typing import Any

import pytest

from kvquant_eval.core.chat import Unusable, as_call, as_message, as_text, as_tool

DEEP = "[" * 101 + "]" * 101


def call(name: Any = "price", arguments: Any = '{"item": 3}', **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}


def refused(given: Any) -> str:
    with pytest.raises(Unusable) as caught:
        as_message(given)
    return str(caught.value)


@pytest.mark.parametrize(
    ("given", "role"),
    [
        ("system", "system"),
        ("developer", "developer"),
        ("user", "user"),
        ("assistant", "assistant"),
        ("tool", "tool"),
        ("function", "tool"),
    ],
)
def test_roles(given: str, role: str) -> None:
    assert as_message({"role": given, "content": "x"}) == {"role": role, "content": "x"}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", ""),
        (" a\nb ", " a\nb "),
        (None, ""),
        ([], ""),
        ([{"type": "text", "text": "a"}], "a"),
        ([{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}, "c"], "a\nb\nc"),
        ([{"type": "output_text", "text": "a", "annotations": []}], "a"),
        ([{"type": "refusal", "refusal": "no"}], "no"),
    ],
)
@pytest.mark.parametrize("role", ["user", "assistant", "tool"])
def test_content_becomes_one_string(role: str, content: Any, text: str) -> None:
    assert as_message({"role": role, "content": content}) == {"role": role, "content": text}


def test_content_that_is_missing_is_empty() -> None:
    assert as_message({"role": "user"}) == {"role": "user", "content": ""}
    assert as_text(None, empty=None) is None
    assert as_text([], empty=None) is None


def test_a_refusal_is_what_was_said() -> None:
    said = {"role": "assistant", "content": None, "refusal": "I cannot."}
    assert as_message(said) == {"role": "assistant", "content": "I cannot."}
    assert as_message({**said, "content": "Yes."}) == {"role": "assistant", "content": "Yes."}


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("image_url", "an image"),
        ("input_image", "an image"),
        ("image", "an image"),
        ("input_audio", "audio"),
        ("audio", "audio"),
        ("video_url", "a video"),
        ("file", "a file"),
        ("input_file", "a file"),
    ],
)
def test_what_is_not_text_is_named(kind: str, named: str) -> None:
    part = {"type": kind, kind: {"url": "https://x/y.png"}, "text": "not this"}
    assert refused({"role": "user", "content": [{"type": "text", "text": "look"}, part]}) == named


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (None, "a message as an object, got 'None'"),
        ("hello", "a message as an object, got 'hello'"),
        ([], "a message as an object, got '[]'"),
        ({"content": "x"}, "a role that is known, got 'None'"),
        ({"role": "critic", "content": "x"}, "a role that is known, got 'critic'"),
        ({"role": ["user"], "content": "x"}, "a role that is known, got \"['user']\""),
        ({"role": "\x1b[2J", "content": "x"}, "a role that is known, got '\\x1b[2J'"),
        ({"role": "user", "content": 3}, "content as text, got '3'"),
        ({"role": "user", "content": {"text": "x"}}, "content as text, got \"{'text': 'x'}\""),
        ({"role": "user", "content": [3]}, "content of parts that are text, got the type ''"),
        ({"role": "user", "content": [{"text": "x"}]}, "content of parts that are text, got the type 'None'"),
        ({"role": "user", "content": [{"type": "odd"}]}, "content of parts that are text, got the type 'odd'"),
        ({"role": "user", "content": [{"type": "text"}]}, "content of parts that are text, got the type 'text'"),
        (
            {"role": "user", "content": [{"type": "text", "text": 3}]},
            "content of parts that are text, got the type 'text'",
        ),
        ({"role": "assistant", "tool_calls": "f()"}, "tool calls as a list, got 'f()'"),
        ({"role": "assistant", "tool_calls": 3}, "tool calls as a list, got '3'"),
        ({"role": "assistant", "tool_calls": {"a": 1}}, "tool calls as a list, got \"{'a': 1}\""),
        ({"role": "assistant", "tool_calls": ["f"]}, "a tool call with a function, got 'f'"),
        ({"role": "assistant", "tool_calls": [{"name": "f"}]}, "a tool call with a function, got \"{'name': 'f'}\""),
        ({"role": "assistant", "function_call": "f"}, "a tool call with a function, got \"{'function': 'f'}\""),
    ],
)
def test_what_is_no_message(given: Any, line: str) -> None:
    assert refused(given) == line


@pytest.mark.parametrize("name", [None, 3, ["f"]])
def test_a_call_has_a_name(name: Any) -> None:
    assert refused({"role": "assistant", "tool_calls": [call(name)]}).startswith("a tool call with a function, got ")


def test_a_huge_value_is_cut() -> None:
    assert len(refused({"role": "x" * 10_000})) < 150


@pytest.mark.parametrize(
    ("arguments", "read"),
    [
        ('{"item": 3}', {"item": 3}),
        ({"item": 3}, {"item": 3}),
        ("", {}),
        (" \n", {}),
        (None, {}),
        ("null", {}),
        ("{}", {}),
        ("[3]", [3]),
        (3, 3),
        ("item=3", "item=3"),
        ('{"item": NaN}', '{"item": NaN}'),
        ('{"a": 1, "a": 2}', '{"a": 1, "a": 2}'),
        (DEEP, DEEP),
        ('{"a": "\ud800"}', '{"a": "\ud800"}'),
    ],
)
def test_arguments_are_read_where_they_are_json(arguments: Any, read: Any) -> None:
    assert as_call("price", arguments) == {"type": "function", "function": {"name": "price", "arguments": read}}


def test_a_call_without_arguments_has_none() -> None:
    said = as_message({"role": "assistant", "tool_calls": [{"function": {"name": "now"}}]})
    assert said["tool_calls"] == [{"type": "function", "function": {"name": "now", "arguments": {}}}]


def test_calls_keep_their_ids_and_nothing_else() -> None:
    said = as_message(
        {
            "role": "assistant",
            "content": None,
            "audio": None,
            "tool_calls": [call(id="call_1", index=0), call("now", "", id=7)],
        }
    )
    assert said == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "price", "arguments": {"item": 3}}},
            {"type": "function", "function": {"name": "now", "arguments": {}}},
        ],
    }


def test_text_beside_calls_is_kept() -> None:
    said = as_message({"role": "assistant", "content": "Let me look.", "tool_calls": [call()]})
    assert said["content"] == "Let me look."


@pytest.mark.parametrize("none", [None, [], {}, ""])
def test_no_calls_are_no_calls(none: Any) -> None:
    assert as_message({"role": "assistant", "content": None, "tool_calls": none, "function_call": none}) == {
        "role": "assistant",
        "content": "",
    }


def test_the_old_function_call_is_a_tool_call() -> None:
    function = {"name": "price", "arguments": '{"item": 3}'}
    said = as_message({"role": "assistant", "content": None, "function_call": function})
    assert said["tool_calls"] == [{"type": "function", "function": {"name": "price", "arguments": {"item": 3}}}]
    both = as_message({"role": "assistant", "function_call": function, "tool_calls": [call("now", "{}")]})
    assert [one["function"]["name"] for one in both["tool_calls"]] == ["now"]


def test_calls_of_others_are_no_calls() -> None:
    assert as_message({"role": "user", "content": "x", "tool_calls": [call()]}) == {"role": "user", "content": "x"}


def test_a_result_keeps_whose_it_is() -> None:
    given = {"role": "tool", "content": "3.10", "tool_call_id": "call_1", "name": "price", "more": 1}
    assert as_message(given) == {"role": "tool", "content": "3.10", "tool_call_id": "call_1", "name": "price"}
    assert as_message({"role": "function", "name": "price", "content": "3.10", "tool_call_id": 7}) == {
        "role": "tool",
        "content": "3.10",
        "name": "price",
    }
    assert "name" not in as_message({"role": "user", "content": "x", "name": "Ann"})


FUNCTION = {"name": "price", "description": "of an item", "parameters": {"type": "object", "properties": {}}}


@pytest.mark.parametrize(
    "given",
    [
        FUNCTION,
        {"type": "function", **FUNCTION},
        {"type": "function", "function": FUNCTION},
        {"function": FUNCTION},
        {"type": None, "function": FUNCTION},
        {"function": None, **FUNCTION},
    ],
)
def test_tools_bare_and_wrapped(given: dict[str, Any]) -> None:
    made = as_tool(given)
    assert made["type"] == "function"
    assert {key: value for key, value in made["function"].items() if value is not None} == FUNCTION


@pytest.mark.parametrize(
    "given",
    [
        None,
        "price",
        [FUNCTION],
        {},
        {"name": 3},
        {"function": "price"},
        {"function": {"description": "x"}},
        {"type": "web_search"},
        {"type": "custom", "name": "shell"},
        {"type": "custom", "custom": {"name": "shell"}},
    ],
)
def test_what_is_no_tool(given: Any) -> None:
    with pytest.raises(Unusable, match=r"^a tool as a function, got "):
        as_tool(given)
