"""Tool calls out of the raw text of a reply, in the formats that models write.

| format | looks like |
| --- | --- |
| Hermes, Qwen | ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, several, the last one unclosed |
| Qwen3-Coder | ``<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`` |
| Llama 3 | ``{"name": ..., "parameters": {...}}``, after ``<|python_tag|>`` or not, several with ``;`` between |
| Mistral | ``[TOOL_CALLS] [{"name": ..., "arguments": {...}}]``, ``[TOOL_CALLS]name{...}``, with ``[ARGS]`` or not |
| plain JSON | an object or a list anywhere in the reply, in a fence or not |

Special tokens may be gone from the text, so Llama's and Mistral's are read without their marks too.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from kvquant_eval.core.codec import canonical
from kvquant_eval.core.records import Json
from kvquant_eval.core.strict_json import DEEPEST, depth

_BLOCK = re.compile(r"<tool_call>(.*?)(?:</tool_call>|(?=<tool_call>)|\Z)", re.DOTALL)
_FUNCTION = re.compile(r"<function=([^<>]*+)>(.*?)(?:</function>|(?=<function=)|\Z)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^<>]*+)>(.*?)(?:</parameter>|(?=<parameter=)|\Z)", re.DOTALL)
_MARK = re.compile(r"\[TOOL_CALLS\]|<\|python_tag\|>")
_NAME = re.compile(r"\s*+([\w.:-]++)\s*+(?:\[CALL_ID\]\w*+\s*+)?+(?:\[ARGS\]\s*+)?+(?=\{)")
_BETWEEN = re.compile(r"[\s;,]*+")
_CANDIDATE = re.compile(r'\{\s*+"(?:name|arguments|parameters|type|id|function)"\s*+:')
"""How an object that is a call begins; a brace of another kind is not worth a look."""

_STARTS = (re.compile(r"<tool_call>|<function=|```(?:json)?\s*+[\[{]|\[\s*+\{"), _MARK, _CANDIDATE)
"""Where the calls of a reply begin."""


class BadCall(ValueError):
    """What is wrong with a call. ``marked``: the reply said by its format that it calls a tool."""

    def __init__(self, reason: str, *, marked: bool) -> None:
        super().__init__(reason)
        self.marked = marked


@dataclass(frozen=True)
class Written:
    """An argument out of XML, which does not say what type it has: its text, and the JSON value that this may be."""

    text: str
    value: Json


def parse_calls(text: str) -> list[dict[str, Any]]:
    """The calls in a reply, each with ``name`` and, where they were given, ``arguments``: JSON, or an object of
    ``Written``. Arguments in a string are read.

    Raises BadCall for what is no JSON or no call, is nested more than ``DEEPEST`` levels deep, or has half a surrogate
    pair. The time is linear in the text: reading ends at the first thing that is no JSON.
    """
    marked = True
    try:
        if "<tool_call>" in text:
            return [call for block in _BLOCK.findall(text) for call in _block(block)]
        if _FUNCTION.search(text):
            return _functions(text)
        if _MARK.search(text):
            return [call for part in _MARK.split(text)[1:] for call in _marked(part)]
        marked = False
        return _named(text) or _plain(text)
    except ValueError as error:
        raise BadCall(str(error), marked=marked) from None


def before_calls(text: str) -> str:
    """What a reply with calls says before the first of them."""
    starts = [match.start() for pattern in _STARTS if (match := pattern.search(text))]
    return text[: min(starts)].rstrip() if starts and not _NAME.match(text) else ""


def _block(text: str) -> list[dict[str, Any]]:
    return _functions(text) if text.lstrip().startswith("<function") else list(_values(text))


def _functions(text: str) -> list[dict[str, Any]]:
    """Raises ValueError for a block without a whole opening tag."""
    found = _FUNCTION.findall(text)
    if not found:
        raise ValueError("a function with a name is due")
    return [{"name": name.strip(), "arguments": _parameters(body)} for name, body in found]


def _parameters(text: str) -> dict[str, Written]:
    return {name.strip(): _written(value) for name, value in _PARAMETER.findall(text)}


def _written(text: str) -> Written:
    """One line feed before and after the value belong to the format."""
    text = text.removeprefix("\n").removesuffix("\n")
    literal = {"true": True, "false": False, "null": None, "none": None}
    if (word := text.strip().lower()) in literal:
        return Written(text, literal[word])
    try:
        value, end = _decode(text.strip(), 0)
    except ValueError:
        return Written(text, text)
    return Written(text, value if end == len(text.strip()) else text)


def _marked(text: str) -> list[dict[str, Any]]:
    """What follows a mark: JSON, or names with JSON behind them. Raises ValueError for anything else."""
    calls = _named(text)
    return list(_values(text)) if calls is None else calls


def _named(text: str) -> list[dict[str, Any]] | None:
    """``name{...}``, several one after the other; None where the text is anything else."""
    calls, at = [], 0
    while match := _NAME.match(text, at):
        try:
            arguments, at = _decode(text, match.end())
        except ValueError:
            return None
        calls.append(_checked({"name": match[1], "arguments": arguments}))
    return calls if calls and not text[at:].strip() else None


def _plain(text: str) -> list[dict[str, Any]]:
    """Calls among other text. A reply that begins like an object must be one: no other object is due there."""
    calls: list[dict[str, Any]] = []
    at = 0
    while match := _CANDIDATE.search(text, at):
        value, at = _decode(text, match.start())
        if _is_call(value):
            calls += _calls(value)
    if not calls and text.lstrip().startswith("{"):
        list(_values(text))
    return calls


def _is_call(value: Json) -> bool:
    """Whether an object among other text is meant as a call: it has arguments too."""
    value = _inner(value)
    return isinstance(value.get("name"), str) and ("arguments" in value or "parameters" in value)


def _inner(value: dict[str, Any]) -> dict[str, Any]:
    """OpenAI's shape has name and arguments in ``function``."""
    inner = value.get("function")
    return inner if isinstance(inner, dict) else value


def _values(text: str) -> Iterator[dict[str, Any]]:
    """The calls in a text that is nothing but JSON, one value or several. Raises ValueError for anything else."""
    text, at = text.strip(), 0
    while not at or at < len(text):
        value, at = _decode(text, at)
        yield from _calls(value)
        at = _BETWEEN.match(text, at).end()  # type: ignore[union-attr]


def _calls(value: Json) -> list[dict[str, Any]]:
    """The calls in a JSON value: one, or a list. Raises ValueError for what is no call."""
    calls = []
    for given in value if isinstance(value, list) else [value]:
        call = _inner(given) if isinstance(given, dict) else {}
        if not isinstance(call.get("name"), str):
            raise ValueError("an object with a name is due")
        calls.append(_call(call))
    return calls


def _call(given: dict[str, Any]) -> dict[str, Any]:
    key = next((key for key in ("arguments", "parameters") if key in given), None)
    if key is None:
        return _checked({"name": given["name"]})
    arguments = given[key]
    if isinstance(arguments, str):
        text = arguments.strip()
        arguments, end = _decode(text, 0)
        if end < len(text):
            raise ValueError("more than JSON in the arguments")
    return _checked({"name": given["name"], "arguments": arguments})


def _checked(call: dict[str, Any]) -> dict[str, Any]:
    """Raises ValueError for half a surrogate pair, which no tool would get."""
    canonical(call).encode()
    return call


def _decode(text: str, at: int) -> tuple[Json, int]:
    """The JSON value at ``at``, and where it ends. Raises ValueError."""
    try:
        value, end = _DECODER.raw_decode(text, at)
    except RecursionError:
        raise ValueError(f"more than {DEEPEST} levels") from None
    if depth(value) > DEEPEST:
        raise ValueError(f"more than {DEEPEST} levels")
    return value, end


def _refuse(literal: str) -> NoReturn:
    raise ValueError(f"{literal[:80]} is no JSON")


def _finite(literal: str) -> float:
    value = float(literal)
    return value if math.isfinite(value) else _refuse(literal)


_DECODER = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)
