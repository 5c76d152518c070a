"""Tools that a model could not call as they are described, and calls that are not what was described."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jsonschema
from jsonschema.exceptions import SchemaError, ValidationError

from kvquant_eval.core.codec import nearest, quoted
from kvquant_eval.core.lint.fault import Fault, Placed, error
from kvquant_eval.core.strict_json import parse


def check_tools(turns: Sequence[Placed]) -> Iterator[Fault]:
    """Schemas that are no JSON schema; calls, in the history and the reference, of no tool or with other arguments."""
    for at in turns:
        schemas: dict[str, Any] = {}
        for index, tool in enumerate(at.turn.tools):
            name, schema = tool["function"]["name"], tool["function"].get("parameters") or {}
            if name in schemas:
                yield error("tools", at, f"tools.{index}: every name once, got {quoted(name)} again; rename one")
            elif (wrong := _schema_problem(schema)) is not None:
                yield error("tools", at, f"tools.{index}.parameters: a JSON schema, got {wrong}; correct it")
                schema = {}
            schemas[name] = schema
        if schemas:
            for where, call in _calls(at):
                yield from _check_call(at, where, call, schemas)


def _schema_problem(schema: Any) -> str | None:
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
    except SchemaError as found:
        place = ".".join(str(part) for part in found.absolute_path)
        return f"{place + ': ' if place else ''}{quoted(found.message)}"
    return None


def _calls(at: Placed) -> Iterator[tuple[str, Mapping[str, Any]]]:
    said = [(f"messages.{i}", message) for i, message in enumerate(at.turn.messages)]
    for where, message in (*said, ("reference", at.turn.reference)):
        for index, call in enumerate(message.get("tool_calls") or ()):
            yield f"{where}.tool_calls.{index}", call["function"]


def _check_call(at: Placed, where: str, call: Mapping[str, Any], schemas: Mapping[str, Any]) -> Iterator[Fault]:
    if call["name"] not in schemas:
        text = f"{where}: a call of one of the tools, got {quoted(call['name'])}; {nearest(call['name'], schemas)}"
        yield error("tools", at, text)
        return
    given = call.get("arguments")
    arguments = parse(given.encode()) if isinstance(given, str) else given or {}
    try:
        jsonschema.Draft202012Validator(schemas[call["name"]]).validate(arguments)
    except ValidationError as found:
        place = ".".join(("", *(str(part) for part in found.absolute_path)))
        text = f"{where}.arguments{place}: what the schema asks for, got {quoted(found.message)}; correct the call"
        yield error("tools", at, text)
    except Exception as found:  # noqa: BLE001 - a reference that leads nowhere, a pattern that does not compile
        yield error("tools", at, f"{where}: a schema that can be applied, got {quoted(found)}; correct the tool")
