"""A conversation is cut into its turns: the history before each, what decides it, and how long a reply may be."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvquant_eval.core.conversation import (
    LONGEST_ID,
    LONGEST_LIMIT,
    MOST_SPANS,
    SHORTEST_LIMIT,
    Conversation,
    LeftOut,
    conversation_name,
    cut,
    decisive_spans,
    reply_limit,
)
from kvquant_eval.core.records import GoldenTurn
from kvquant_eval.core.turns import LONGEST_NAME, problem

SYSTEM = {"role": "system", "content": "Be brief."}
ASK = {"role": "user", "content": "How much is item 3?"}
CALLS = {"role": "assistant", "content": None, "function_call": {"name": "price", "arguments": '{"item": 3}'}}
RESULT = {"role": "function", "name": "price", "content": "3.10"}
SAYS = {"role": "assistant", "content": "It is 3.10."}
THANKS = {"role": "user", "content": [{"type": "text", "text": "Thanks."}]}
WELCOME = {"role": "assistant", "content": "You are welcome."}
IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x/y.png"}}]}

WHOLE = (SYSTEM, ASK, CALLS, RESULT, SAYS, THANKS, WELCOME)
CALL = {"type": "function", "function": {"name": "price", "arguments": {"item": 3}}}
PLAIN = (
    SYSTEM,
    ASK,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "3.10", "name": "price"},
    SAYS,
    {"role": "user", "content": "Thanks."},
    WELCOME,
)


def conversation(*messages: Any, **more: Any) -> Conversation:
    return Conversation(conversation_id="c", place="f:7", messages=messages, **more)


def turns(source: Conversation) -> list[GoldenTurn]:
    made = list(cut(source, "faq"))
    assert all(isinstance(turn, GoldenTurn) for turn in made), made
    return [turn for turn in made if isinstance(turn, GoldenTurn)]


def calling(*calls: tuple[str, Any], content: str | None = None) -> dict[str, Any]:
    made = [{"type": "function", "function": {"name": name, "arguments": given}} for name, given in calls]
    return {"role": "assistant", "content": content, "tool_calls": made}


def texts(reference: dict[str, Any], *answers: str) -> list[str]:
    return [span.text for span in decisive_spans(reference, answers)]


def said(content: str, *answers: str) -> list[str]:
    return texts({"role": "assistant", "content": content}, *answers)


def test_every_reply_becomes_a_turn_with_the_history_before_it() -> None:
    made = turns(conversation(*WHOLE, tools=[{"name": "price"}], tags=("mine",)))
    assert [turn.messages for turn in made] == [PLAIN[:2], PLAIN[:4], PLAIN[:6]]
    assert [turn.reference for turn in made] == [PLAIN[2], PLAIN[4], PLAIN[6]]
    assert [turn.turn_id for turn in made] == ["c/t00", "c/t01", "c/t02"]
    assert [turn.turn_index for turn in made] == [0, 1, 2]
    assert {turn.conversation_id for turn in made} == {"c"}
    assert {turn.workload for turn in made} == {"faq"}
    assert {turn.tags for turn in made} == {("mine",)}
    assert [turn.tools for turn in made] == [({"type": "function", "function": {"name": "price"}},)] * 3
    assert [turn.expected for turn in made] == [{"calls": [{"name": "price", "arguments": {"item": 3}}]}, {}, {}]
    assert [problem(turn) for turn in made] == [None] * 3


def test_the_replies_that_are_given_become_turns() -> None:
    made = turns(conversation(*WHOLE, replies={6: {"answers": ["welcome"], "needle": ["x"]}}))
    assert [turn.turn_index for turn in made] == [2]  # two replies stand in its history
    assert made[0].messages == PLAIN[:6]
    assert made[0].expected == {"answers": ["welcome"], "needle": ["x"]}
    assert [span.text for span in made[0].decisive] == ["welcome"]


def test_what_the_source_expects_goes_before_what_was_called() -> None:
    other = [{"name": "price", "arguments": {"item": 4}}]
    [turn] = turns(conversation(ASK, CALLS, replies={1: {"calls": other}}))
    assert turn.expected == {"calls": other}


@pytest.mark.parametrize("arguments", ["item=3", "[3]"])
def test_calls_that_cannot_be_read_are_not_expected(arguments: str) -> None:
    odd = {**CALLS, "function_call": {"name": "price", "arguments": arguments}}
    [turn] = turns(conversation(ASK, odd))
    assert turn.expected == {}
    assert "function.arguments: a JSON object, got " in (problem(turn) or "")


@pytest.mark.parametrize("replies", [None, {}])
@pytest.mark.parametrize("messages", [(), (ASK,), (SYSTEM, ASK, RESULT), ("hello",)])
def test_a_conversation_without_a_reply(messages: tuple[Any, ...], replies: Any) -> None:
    left = LeftOut("f:7", "a conversation without a reply of the assistant")
    assert list(cut(conversation(*messages, replies=replies), "faq")) == [left]


def test_a_reply_with_nothing_before_it_is_left_out_and_keeps_its_number() -> None:
    first, second = cut(conversation(WELCOME, ASK, SAYS), "faq")
    assert first == LeftOut("f:7", "a reply with nothing before it")
    assert isinstance(second, GoldenTurn)
    assert (second.turn_id, second.turn_index, second.messages) == ("c/t01", 1, (WELCOME, ASK))


def test_an_image_leaves_out_the_later_replies_only() -> None:
    made = list(cut(conversation(ASK, SAYS, IMAGE, SAYS, ASK, WELCOME), "faq"))
    assert made[0] == turns(conversation(ASK, SAYS))[0]
    assert made[1:] == [LeftOut("f:7", "an image")] * 2


def test_an_image_behind_the_last_reply_leaves_out_nothing() -> None:
    assert list(cut(conversation(ASK, SAYS, IMAGE), "faq")) == turns(conversation(ASK, SAYS))


def test_a_reply_that_is_no_message_is_left_out() -> None:
    odd = {"role": "assistant", "tool_calls": "f()"}
    assert (
        list(cut(conversation(ASK, odd, ASK, SAYS), "faq")) == [LeftOut("f:7", "tool calls as a list, got 'f()'")] * 2
    )


def test_tools_that_are_none_leave_out_every_reply() -> None:
    source = conversation(*WHOLE, tools=[{"name": "price"}, {"type": "web_search"}])
    left = LeftOut("f:7", "a tool as a function, got \"{'type': 'web_search'}\"")
    assert list(cut(source, "faq")) == [left] * 3


def test_a_turn_is_there_before_the_next_is_made() -> None:
    """A conversation's turns repeat its history: together they can be larger than memory."""
    made = cut(conversation(*[ASK, SAYS] * 5000), "faq")
    assert [len(turn.messages) for turn, _ in zip(made, range(3), strict=False) if isinstance(turn, GoldenTurn)] == [
        1,
        3,
        5,
    ]


@pytest.mark.parametrize(
    ("reference", "tokens"),
    [
        ({"content": ""}, SHORTEST_LIMIT),
        ({"content": None}, SHORTEST_LIMIT),
        ({"content": "x" * 64}, 32),
        ({"content": "x" * 65}, 33),
        ({"content": "x" * 1000}, 500),
        ({"content": "é" * 1000}, 1000),
        ({"content": "価" * 1000}, 1500),
        ({"content": "x" * 8192}, LONGEST_LIMIT),
        ({"content": "x" * 100_000}, LONGEST_LIMIT),
        ({"content": "\ud800" * 1000}, 1500),
        ({"content": None, "tool_calls": [{"a": "x" * 89}]}, 50),
        ({"content": "x" * 98, "tool_calls": [{"a": "価" * 97}]}, 200),
        ({"content": "x" * 100, "tool_calls": []}, 50),
    ],
)
def test_a_reply_may_have_twice_the_tokens_of_the_golden_one(reference: dict[str, Any], tokens: int) -> None:
    assert reply_limit(reference) == tokens


def test_names_and_arguments_decide_a_call() -> None:
    reference = calling(
        ("find_order", {"number": 4711, "deep": {"list": ["Lisbon", True, None, 2.5]}}), ("weather", {"city": "Porto"})
    )
    assert texts(reference) == ["find_order", "4711", "Lisbon", "weather", "Porto"]


@pytest.mark.parametrize(
    "value",
    [
        "München",
        'say "hi"',
        "a\\b",
        "a\nb",
        "\x1b[2J",
        "",
        True,
        None,
        1.5,
        "price_of",
        "item",
        "m",
        "function",
        "parameters",
        "tool_call",
        "arguments",
        "type",
    ],
)
def test_values_that_may_be_shown_otherwise_or_elsewhere_decide_nothing(value: Any) -> None:
    assert "Lisbon" in texts(calling(("price_of", {"item": value, "city": "Lisbon"})))
    assert str(value) not in texts(calling(("weather", {"price_of": "x", "item": value})))


@pytest.mark.parametrize("name", ["preço", 'f"', "name", "f"])
def test_so_it_is_with_names(name: str) -> None:
    assert texts(calling((name, {"city": "Lisbon"}))) == ["Lisbon"]


def test_values_given_twice_decide_nothing() -> None:
    assert texts(calling(("route", {"from": "Lisbon", "to": "Lisbon"}))) == ["route"]
    assert texts(calling(("route", {"from": "Lisbon"}), ("route", {"to": "Porto"}))) == ["Lisbon", "Porto"]
    assert texts(calling(("route", {"to": "York", "via": "New York"}))) == ["route", "New York"]
    assert texts(calling(("route", {"to": "Lisbon"}), content="To Lisbon.")) == ["route"]


def test_a_number_in_a_calls_id_is_found_there_first() -> None:
    reference = calling(("route", {"stop": 17}))
    assert texts(reference) == ["route", "17"]
    reference["tool_calls"][0]["id"] = "call_17"
    assert texts(reference) == ["route"]


def test_content_beside_calls_decides_nothing() -> None:
    assert texts(calling(("route", {}), content="So it is\n#### 42"), "So") == ["route"]


def test_there_are_at_most_so_many_spans() -> None:
    values = [f"value-{number}-" for number in range(MOST_SPANS + 5)]
    assert texts(calling(("route", {"all": values}))) == ["route", *values[: MOST_SPANS - 1]]


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("3 + 4 = seven\n#### 7", ["7"]),
        ("#### 1,234.\n", ["1,234"]),
        ("#### 5 #### 7", ["7"]),
        ("3 + 4 = 7\n#### 7", ["7", "7"]),
        ("####", []),
        ("#### .", []),
        ("#### Summary\nAll is well.", []),
        ("So \\boxed{42}.", ["42"]),
        ("\\boxed{1} or rather \\boxed{ -2 }", ["-2"]),
        ("\\boxed{\\frac{1}{2}}", []),
        ("\\boxed{}", []),
        ("\\boxed{y", []),
        ("\\boxed{9} #### 8", ["9", "8"]),
        ("7", []),
        ("", []),
    ],
)
def test_the_final_answer_decides(content: str, found: list[str]) -> None:
    assert said(content) == found


@pytest.mark.parametrize(
    ("content", "answers", "found"),
    [
        ("It is in Lisbon.", ["Lisbon"], ["Lisbon"]),
        ("It is in Lisbon.", ["Lisbon", "Porto", "Lisbon"], ["Lisbon"]),
        ("It is in Lisbon ", ["Lisbon "], ["Lisbon"]),
        ("Lisbon, I say Lisbon.", ["Lisbon"], ["Lisbon"]),
        ("It is in Lisbon.", ["lisbon", "", " "], []),
        ("München", ["München"], ["München"]),
        ("#### 7", ["7"], ["7"]),
    ],
)
def test_accepted_answers_that_stand_in_the_reply_decide(content: str, answers: list[str], found: list[str]) -> None:
    assert said(content, *answers) == found


@pytest.mark.parametrize(
    ("content", "answers", "spans"),
    [
        ("Lisbon, I say Lisbon.", ["Lisbon"], [("Lisbon", 1)]),
        ("16 - 4 = 12\n12 * 2 = $24\n#### 24", [], [("12", 0), ("24", 0), ("24", 1)]),
        ("1111 = 11\n#### 11", [], [("11", 2), ("11", 3)]),
        ("1 + 110 = 111\n#### 111", [], [("111", 0), ("111", 1)]),
        ("x = 3", [], []),
    ],
)
def test_a_place_is_named_by_its_occurrence(content: str, answers: list[str], spans: list[tuple[str, int]]) -> None:
    found = decisive_spans({"role": "assistant", "content": content}, answers)
    assert [(span.text, span.nth) for span in found] == spans


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("run-7", "run-7"),
        ("../../etc/passwd", "../../etc/passwd"),
        (" a b é ", "a b é"),
        ("a\nb\t\x1b[2J\x00\u202ec", "ab[2Jc"),
        ("a\ud800b", "ab"),
        ("", "conversation"),
        ("\n \u2028", "conversation"),
        ("x" * 300, "x" * LONGEST_ID),
        ("x" * (LONGEST_ID - 1) + " y", "x" * (LONGEST_ID - 1)),
    ],
)
def test_a_name_prints_and_leaves_room_for_the_turns(text: str, name: str) -> None:
    assert conversation_name(text) == name
    assert len(f"{name}/t99999") <= LONGEST_NAME


def test_a_deep_argument_is_no_hindrance() -> None:
    deep = "[" * 90 + '"Lisbon"' + "]" * 90
    odd = {"role": "assistant", "function_call": {"name": "route", "arguments": json.dumps({"to": json.loads(deep)})}}
    [turn] = turns(conversation(ASK, odd))
    assert [span.text for span in turn.decisive] == ["route", "Lisbon"]
