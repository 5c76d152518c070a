"""Tools that a model could not call as they are described, and calls that are not what was described."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jsonschema
from jsonschema.exceptions import SchemaError

from kvquant_eval.core import schema
from kvquant_eval.core.codec import nearest, quoted
from kvquant_eval.core.lint.fault import Fault, Placed, error, warning
from kvquant_eval.core.records import Json
from kvquant_eval.core.strict_json import parse


def check_tools(turns: Sequence[Placed]) -> Iterator[Fault]:
    """Schemas that are no JSON schema; calls, in the history and the reference, of no tool or with other arguments."""
    for at in turns:
        schemas: dict[str, Mapping[str, Json] | None] = {}
        for index, tool in enumerate(at.turn.tools):
            name, given = tool["function"]["name"], tool["function"].get("parameters") or {}
            where = f"tools.{index}"
            if name in schemas:
                yield error("tools", at, f"{where}: every name once, got {quoted(name)} again; rename one")
            schemas[name] = None
            if (wrong := _no_schema(given)) is not None:
                yield error("tools", at, f"{where}.parameters: a JSON schema, got {wrong}; correct it")
            elif (why := schema.problem(given)) is not None:
                text = f"{where}.parameters: a schema that calls can be checked against, got {why}; simplify it"
                yield warning("tools", at, text)
            else:
                schemas[name] = given
        if schemas:
            for where, call in _calls(at):
                yield from _check_call(at, where, call, schemas)


def _no_schema(given: Json) -> str | None:
    try:
        jsonschema.Draft202012Validator.check_schema(given)
    except SchemaError as found:
        place = ".".join(str(part) for part in found.absolute_path)
        return f"{place + ': ' if place else ''}{quoted(found.message)}"
    return None


def _calls(at: Placed) -> Iterator[tuple[str, Mapping[str, Any]]]:
    said = [(f"messages.{i}", message) for i, message in enumerate(at.turn.messages)]
    for where, message in (*said, ("reference", at.turn.reference)):
        for index, call in enumerate(message.get("tool_calls") or ()):
            yield f"{where}.tool_calls.{index}", call["function"]


def _check_call(
    at: Placed, where: str, call: Mapping[str, Any], schemas: Mapping[str, Mapping[str, Json] | None]
) -> Iterator[Fault]:
    """``schemas`` has None for a tool whose calls cannot be checked."""
    name, given = call["name"], call.get("arguments")
    wanted = schemas.get(name)
    if name not in schemas:
        text = f"{where}: a call of one of the tools, got {quoted(name)}; {nearest(name, schemas)}"
        yield error("tools", at, text)
    elif wanted is not None:
        arguments = parse(given.encode()) if isinstance(given, str) else given or {}
        try:
            wrong = schema.mismatch(wanted, arguments)
        except schema.Unbounded as found:
            wrong = str(found)
        if wrong is not None:
            yield error("tools", at, f"{where}.arguments: what the schema asks for, {wrong}; correct the call")
