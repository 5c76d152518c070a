"""What a golden turn must be beyond its types, so that every chat template and scorer can take it as it was meant."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BeforeValidator

from kvquant_eval.core import pattern, python_code, schema
from kvquant_eval.core.codec import DataError, from_data, quoted
from kvquant_eval.core.records import GoldenTurn, Json
from kvquant_eval.core.strict_json import BadJson, parse

ROLES = ("system", "developer", "user", "assistant", "tool")
LONGEST_NAME = 200
LARGEST_NUMBER = 1_000_000_000
"""Of a turn's numbers; tables keep 64 bits."""

_FRACTION = re.compile(r"-?[0-9]{1,50}/0*[1-9][0-9]{0,49}")
_WORKLOAD = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")


def is_name(text: str) -> bool:
    """1 to ``LONGEST_NAME`` characters, all of which print."""
    return 0 < len(text) <= LONGEST_NAME and text.isprintable()


WORKLOAD_RULE = "letters, digits, _ . and -, no dot first"


def is_workload(text: str) -> bool:
    """A name that can be a key of the configuration and part of a metric's name."""
    return is_name(text) and _WORKLOAD.fullmatch(text) is not None


def problem(turn: GoldenTurn) -> str | None:
    """The first thing wrong with the turn, as ``<turn id>: <field>: <rule>, got <value>; <remedy>``; None: nothing."""
    for name in ("turn_id", "conversation_id"):
        if not is_name(getattr(turn, name)):
            return f"{name}: 1 to {LONGEST_NAME} printable characters, got {quoted(getattr(turn, name))}; rename it"
    first = next(_problems(turn), None)
    return first and f"{turn.turn_id}: {first}"


def _problems(turn: GoldenTurn) -> Iterator[str]:
    """Lazily, in an order in which each rule may rely on those before it."""
    if not is_workload(turn.workload):
        yield f"workload: {WORKLOAD_RULE}, got {quoted(turn.workload)}; rename the class"
    yield from _range("turn_index", turn.turn_index, 0)
    yield from _range("max_tokens", turn.max_tokens, 1)
    for index, span in enumerate(turn.decisive):
        if not span.text:
            yield f"decisive.{index}.text: a part of the reply, got ''; write what decides, or remove the span"
        yield from _range(f"decisive.{index}.nth", span.nth, 0)
    for index, tool in enumerate(turn.tools):
        yield from _function(f"tools.{index}", tool)
    if not turn.messages:
        yield "messages: at least one message, got none; add what comes before the reply"
    for index, message in enumerate(turn.messages):
        yield from _message(f"messages.{index}", message)
    yield from _exchange(turn.messages)
    yield from _reference(turn.reference)
    yield from _expected(turn.expected)


def _range(field: str, number: int, least: int) -> Iterator[str]:
    if not least <= number <= LARGEST_NUMBER:
        yield f"{field}: a number from {least} to {LARGEST_NUMBER}, got {quoted(number)}; correct it"


def _reference(message: Mapping[str, Json]) -> Iterator[str]:
    if message.get("role") != "assistant":
        yield f"reference.role: 'assistant', got {quoted(message.get('role'))}; correct it"
    yield from _message("reference", message)
    if not message.get("content") and not message.get("tool_calls"):
        yield "reference: content or tool_calls, got neither; add the golden reply"


def _message(where: str, message: Mapping[str, Json]) -> Iterator[str]:
    """Content is a string, as most templates take nothing else: of a list they fail, or render its Python text."""
    role, content, calls = message.get("role"), message.get("content"), message.get("tool_calls")
    if role not in ROLES:
        yield f"{where}.role: one of {', '.join(ROLES)}, got {quoted(role)}; correct it"
    if isinstance(content, list):
        yield f"{where}.content: a string, got a list of parts; join its text, a picture cannot be replayed"
    elif not isinstance(content, str) and not (content is None and calls):
        yield f"{where}.content: a string, got {quoted(content)}; add the text"
    if calls and role != "assistant":
        yield f"{where}.tool_calls: calls by the assistant only, got some by {role}; correct the role"
    if calls and not isinstance(calls, list):
        yield f"{where}.tool_calls: a list, got {quoted(calls)}; correct it"
    for index, call in enumerate(calls or ()):
        yield from _call(f"{where}.tool_calls.{index}", call)
    if not isinstance(message.get("tool_call_id"), str | None):
        yield f"{where}.tool_call_id: a string, got {quoted(message['tool_call_id'])}; correct it"


def _function(where: str, tool: Json) -> Iterator[str]:
    """``tool`` is a tool's definition or a call of it."""
    function = tool.get("function") if isinstance(tool, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or not name:
        yield f"{where}: an object with function.name, got {quoted(tool)}; write it in OpenAI's shape"
    elif tool.get("type", "function") != "function":
        yield f"{where}.type: 'function', got {quoted(tool['type'])}; no other kind can be replayed"


def _call(where: str, call: Json) -> Iterator[str]:
    yield from _function(where, call)
    if not isinstance(call.get("id"), str | None):
        yield f"{where}.id: a string, got {quoted(call['id'])}; correct it"
    place, given = f"{where}.function.arguments", call["function"].get("arguments")
    if given is None:
        return
    try:
        arguments = parse(given.encode()) if isinstance(given, str) else given
    except BadJson as error:
        yield f"{place}: a JSON object, got {error}; correct it"
        return
    if not isinstance(arguments, dict):
        yield f"{place}: a JSON object, got {quoted(given)}; correct it"


def _exchange(messages: Sequence[Mapping[str, Json]]) -> Iterator[str]:
    """Every tool call has its result before the next message of the user or the assistant; the reference is one."""
    waiting: list[Any] = []
    last = 0
    for index, message in enumerate(messages):
        if message["role"] in ("user", "assistant"):
            yield from _unanswered(last, waiting)
            waiting, last = [call.get("id") for call in message.get("tool_calls") or ()], index
        elif message["role"] == "tool":
            answered = _answered(message.get("tool_call_id"), waiting)
            if answered is None:
                said = quoted(message["tool_call_id"]) if message.get("tool_call_id") else "one without"
                yield f"messages.{index}: a tool result of a call before it, got {said}; add the call"
            else:
                del waiting[answered]
    yield from _unanswered(last, waiting)


def _unanswered(index: int, waiting: Sequence[str | None]) -> Iterator[str]:
    if waiting:
        said = "none" if waiting[0] is None else f"none for {quoted(waiting[0])}"
        yield f"messages.{index}.tool_calls: a tool result for every call, got {said}; add the tool message"


def _answered(result: str | None, waiting: Sequence[str | None]) -> int | None:
    """Which of the waiting calls a result answers: the one of its id, else the first where one of both has no id."""
    if result is not None and result in waiting:
        return waiting.index(result)
    return next((index for index, call in enumerate(waiting) if call is None or result is None), None)


def _amount(value: Json) -> Json:
    if type(value) is int or (type(value) is float and math.isfinite(value)):
        return value
    if isinstance(value, str) and _FRACTION.fullmatch(value):
        return value
    raise ValueError("a number, or a fraction such as '3/4'")


Amount = Annotated[Json, BeforeValidator(_amount)]


@dataclass(frozen=True, kw_only=True)
class _Step:
    left: Amount
    operator: str
    operand: Amount
    result: Amount


@dataclass(frozen=True, kw_only=True)
class _Call:
    """``accept``: other right values of an argument; one that stands only there may be left out."""

    name: str
    arguments: Mapping[str, Json]
    accept: Mapping[str, tuple[Json, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Expected:
    """What the project's scorers read; a scorer of the user's own may read more."""

    answers: tuple[str, ...] = ()
    function: str = ""
    parameters: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    setup: str = ""
    tests: tuple[str, ...] = ()
    calls: tuple[_Call, ...] = ()
    needle: tuple[str, ...] = ()
    steps: tuple[_Step, ...] = ()
    final: Amount = 0
    contains: tuple[str, ...] = ()
    regex: str = ""
    json_schema: Mapping[str, Json] = field(default_factory=dict)
    rubric: str = ""


def _expected(expected: Mapping[str, Json]) -> Iterator[str]:
    """A scorer meets it only after hours of replay."""
    try:
        from_data(_Expected, expected, "expected")
    except DataError as error:
        yield f"{error}; correct it"
    if expected.get("steps") and "final" not in expected:
        yield "expected.final: the last step's result, got none; add it"
    if why := pattern.problem(expected.get("regex", "")):
        rule = f"a pattern that compiles, of at most {pattern.LONGEST} characters, without look-around or references"
        yield f"expected.regex: {rule}, got {why}; simplify it"
    if (wanted := expected.get("json_schema")) and (why := schema.problem(wanted)):
        yield f"expected.json_schema: a plain schema of draft 2020-12, got {why}; simplify it"
    parts = [(f"tests.{n}", test) for n, test in enumerate(expected.get("tests", ()))]
    parts += [("setup", expected["setup"])] if expected.get("setup") else []
    for place, code in parts:
        if why := python_code.problem(code):
            yield f"expected.{place}: statements of Python, got {quoted(why)}; correct them"
