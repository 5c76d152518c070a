"""Tools, references, duplicates, secrets, shape: each fault where it stands, and nothing where there is none."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kvquant_eval.core.lint.duplicates import check_duplicates
from kvquant_eval.core.lint.fault import Fault, Placed, Severity
from kvquant_eval.core.lint.rendering import Inspected, InspectedTurn, check_references, check_rendering
from kvquant_eval.core.lint.secrets import check_secrets, redact
from kvquant_eval.core.lint.shape import ClassShape, check_shape, shapes
from kvquant_eval.core.lint.tools import check_tools
from kvquant_eval.core.scorers.judge import Judge
from kvquant_eval.core.scorers.text import Match
from tests.fakes.records import golden_turn, rendered_turn

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def placed(*turns: Any) -> list[Placed]:
    return [Placed(f"f:{number}", turn) for number, turn in enumerate(turns, 1)]


def lines(faults: Any) -> list[str]:
    return [f"{fault.place}: {fault.severity}: {fault.check}: {fault.text}" for fault in faults]


def asking(turn_id: str, text: str, answer: str = "fine", **changes: Any) -> Any:
    reference = {"role": "assistant", "content": answer}
    messages = ({"role": "user", "content": text},)
    return golden_turn(turn_id, conversation_id=turn_id, messages=messages, reference=reference, **changes)


def calling(arguments: Any, name: str = "weather", schema: Any = SCHEMA) -> Any:
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    tool = {"type": "function", "function": {"name": "weather", "parameters": schema}}
    return golden_turn(tools=(tool,), reference={"role": "assistant", "content": None, "tool_calls": [call]})


@pytest.mark.parametrize("arguments", [{"city": "Oslo"}, '{"city": "Oslo"}'])
def test_a_call_as_described(arguments: Any) -> None:
    assert lines(check_tools(placed(calling(arguments)))) == []


@pytest.mark.parametrize(
    ("turn", "text"),
    [
        (calling({}), ".arguments: what the schema asks for, it: required \"['city']\", got '{}'; correct the call"),
        (calling(None), ".arguments: what the schema asks for, it: required \"['city']\", got '{}'; correct the call"),
        (
            calling({"city": 3}),
            ".arguments: what the schema asks for, ['city']: type 'string', got '3'; correct the call",
        ),
        (calling({}, "whether"), ": a call of one of the tools, got 'whether'; did you mean 'weather'?"),
    ],
)
def test_calls_that_are_not_as_described(turn: Any, text: str) -> None:
    assert lines(check_tools(placed(turn))) == [f"f:1: error: tools: reference.tool_calls.0{text}"]


def test_calls_in_the_history_are_looked_at() -> None:
    turn = calling({"city": "Oslo"})
    call = {"type": "function", "function": {"name": "other", "arguments": {}}}
    said = (*turn.messages, {"role": "assistant", "content": None, "tool_calls": [call]})
    [line] = lines(check_tools(placed(golden_turn(messages=said, tools=turn.tools))))
    assert line.startswith("f:1: error: tools: messages.1.tool_calls.0: a call of one of the tools, got 'other'")


def test_schemas_that_are_none() -> None:
    [line] = lines(check_tools(placed(calling({}, schema={"type": "thing"}))))
    assert line.startswith("f:1: error: tools: tools.0.parameters: a JSON schema, got type: \"'thing' is not valid")
    assert lines(check_tools(placed(calling({}, schema={"$ref": "#/nowhere"})))) == [
        (
            "f:1: warning: tools: tools.0.parameters: a schema that calls can be checked against, got a reference to "
            "'#/nowhere'; simplify it"
        )
    ]


def test_a_tool_twice() -> None:
    turn = calling({"city": "Oslo"})
    [line] = lines(check_tools(placed(golden_turn(tools=turn.tools * 2))))
    assert line == "f:1: error: tools: tools.1: every name once, got 'weather' again; rename one"


def test_rendering() -> None:
    seen = (
        InspectedTurn(problem="one BOS token, got two; correct the chat template"),
        InspectedTurn(rendered=rendered_turn(skip="needs 9 tokens, the context is 8")),
        InspectedTurn(rendered=rendered_turn()),
    )
    found = check_rendering(placed(*[golden_turn()] * 3), Inspected(context=8, turns=seen))
    assert lines(found) == [
        "f:1: error: template: one BOS token, got two; correct the chat template",
        (
            "f:2: warning: context: a turn that fits the context, got one that needs 9 tokens, the context is 8; "
            "it is skipped in every arm"
        ),
    ]


def test_references_are_worth_full_points() -> None:
    turns = placed(*(golden_turn(expected={"answers": ["5"]}) for _ in range(3)), golden_turn(workload="other"))
    replies = [InspectedTurn(rendered=rendered_turn(), reply=text) for text in ("It is 5.", "It is 6.", "", "")]
    found = check_references(turns, Inspected(context=8, turns=tuple(replies)), {"math_chain": {"match": Match()}})
    assert lines(found) == [
        "f:2: error: reference: 100 points of match for the reference, got 0 (none of ['5']); correct one",
        "f:3: error: reference: 100 points of match for the reference, got 0 (empty reply); correct one",
    ]


def test_a_score_that_asks_somebody_is_no_fault_of_a_reference() -> None:
    turns = placed(asking("a", "2 + 3?", "5"))
    replies = (InspectedTurn(rendered=rendered_turn("a"), reply="5"),)
    assert (
        lines(check_references(turns, Inspected(context=8, turns=replies), {"math_chain": {"j": Judge(model="m")}}))
        == []
    )


def test_a_turn_that_does_not_render_is_not_scored() -> None:
    seen = Inspected(context=8, turns=(InspectedTurn(problem="no"),))
    assert list(check_references(placed(golden_turn()), seen, {"math_chain": {"match": Match()}})) == []


WORDS = [f"word{number}" for number in range(400)]


def prose(seed: int, count: int = 60) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=count))


def test_the_same_turn_twice_and_nearly() -> None:
    text = prose(0)
    turns = placed(asking("a", text), asking("b", prose(1)), asking("c", text), asking("d", f"{text} please"))
    assert lines(check_duplicates(turns)) == [
        "f:3: warning: duplicate: a turn of its own, got a again; remove one",
        "f:4: warning: near-duplicate: a turn of its own, got 95% of the words of a; reword or remove one",
    ]


def test_turns_of_one_conversation_may_resemble() -> None:
    text = prose(0)
    turns = [golden_turn(str(i), turn_index=i, messages=({"role": "user", "content": f"{text} {i}"},)) for i in (0, 1)]
    assert list(check_duplicates(placed(*turns))) == []


def test_half_of_the_words_is_no_duplicate() -> None:
    assert list(check_duplicates(placed(asking("a", prose(0)), asking("b", f"{prose(0, 30)} {prose(1, 30)}")))) == []


def test_near_duplicates_are_found_among_many() -> None:
    """Of 100 pairs that share 95% of their shingles all are found; no other pair is."""
    turns = []
    for number in range(100):
        said = prose(number, 120).split()
        turns += [asking(f"a{number}", " ".join(said)), asking(f"b{number}", " ".join([*said[:-2], "x", "y"]))]
    found = list(check_duplicates(placed(*turns)))
    assert {fault.turn_id for fault in found} == {f"b{number}" for number in range(100)}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("sk-proj-abcdefghijklmnopqrstuvwx", "an API key"),
        ("AKIAIOSFODNN7EXAMPLE", "an API key"),
        ("ghp_" + "a1" * 18, "an API key"),
        ("hf_" + "aB" * 17, "an API key"),
        ("-----BEGIN RSA PRIVATE KEY-----", "an API key"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl", "a token"),
        ("Authorization: Bearer abcdefghijklmnopqrstuvwxyz", "a token"),
        ("write to jo.doe+x@mail.acme.co.uk today", "an e-mail address"),
    ],
)
def test_secrets(text: str, what: str) -> None:
    [line] = lines(check_secrets(placed(asking("a", text))))
    assert line == f"f:1: warning: secret: texts without secrets, got {what}; replace it, or lint --redact OUT"


@pytest.mark.parametrize(
    "text",
    [
        "ask@example.com",
        "a@b.example",
        "root@localhost",
        "task-based-learning-is-a-thing",
        "a @ b.com",
        "x@y",
        "sk-short",
    ],
)
def test_no_secrets(text: str) -> None:
    assert lines(check_secrets(placed(asking("a", text)))) == []


def test_secrets_are_replaced_alike_in_every_text() -> None:
    names: dict[str, str] = {}
    first = asking("a", "I am jo@acme.com, not al@acme.com", "Hello jo@acme.com", expected={"answers": ["jo@acme.com"]})
    made, other = redact(first, names), redact(asking("b", "al@acme.com again"), names)
    assert made.messages[0]["content"] == "I am <EMAIL_1>, not <EMAIL_2>"
    assert made.reference["content"] == "Hello <EMAIL_1>"
    assert made.expected == {"answers": ["<EMAIL_1>"]}
    assert other.messages[0]["content"] == "<EMAIL_2> again"
    assert list(check_secrets(placed(made, other))) == []


def test_a_class_in_numbers() -> None:
    system = ({"role": "system", "content": "s"}, {"role": "user", "content": "u"})
    turns = placed(
        golden_turn("a", messages=system), golden_turn("b", turn_index=3), golden_turn("c", conversation_id="d")
    )
    assert shapes(turns, {"a": 100, "b": 128, "c": 129}) == {
        "math_chain": ClassShape(
            turns=3, conversations=2, multi_turn=1, with_system=1, depths={0: 2, 3: 1}, lengths={128: 2, 256: 1}
        )
    }


def shape(**changes: Any) -> ClassShape:
    fields: dict[str, Any] = {
        "turns": 40,
        "conversations": 10,
        "multi_turn": 5,
        "with_system": 5,
        "depths": {},
        "lengths": {},
    }
    return ClassShape(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"conversations": 1}, "x: at least 2 conversations, got 1; the class has no bounds: add conversations"),
        ({"multi_turn": 0}, "x: turns late in a conversation, got none; add some, damage grows with depth"),
        ({"with_system": 0}, "x: turns with a system prompt, got none; add what is served with"),
        ({"turns": 401}, "x: classes of like size, got 401 turns against 40"),
    ],
)
def test_what_a_class_lacks(changes: dict[str, Any], text: str) -> None:
    [fault] = check_shape({"x": shape(**changes), "y": shape()}, "set")
    assert fault == Fault(severity=Severity.WARNING, check="shape", place="set", text=text)


def test_a_class_that_lacks_nothing() -> None:
    assert list(check_shape({"x": shape(), "y": shape(turns=400)}, "set")) == []
