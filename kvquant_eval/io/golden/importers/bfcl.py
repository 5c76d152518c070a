"""The Berkeley Function-Calling Leaderboard: a category of the installed package bfcl-eval, such as ``multiple`` or
``multi_turn_base``, or a file of its kind with ``possible_answer/`` beside it.

The golden reply is the first accepted answer. In a conversation of several turns every call of the ground truth is one
reply; what the tools answer is asked of the package's own simulations. Its other dependencies are not needed.
"""

from __future__ import annotations

import ast
import copy
import json
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kvquant_eval.core.chat import Unusable, as_call
from kvquant_eval.core.codec import DataError, nearest, quoted
from kvquant_eval.core.conversation import Conversation, LeftOut
from kvquant_eval.core.records import Json
from kvquant_eval.io.golden.importers._files import conversations, expect, json_lines

_PREFIX = "BFCL_v4_"
_SIMULATIONS = "bfcl_eval.eval_checker.multi_turn_eval.func_source_code"
_MODULES = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TwitterAPI": "posting_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "VehicleControlAPI": "vehicle_control",
}
"""The simulated tools, by the class that a question names, as file names of its documents and of its code."""
_TYPES = {"dict": "object", "float": "number", "tuple": "array"}
"""BFCL's names for types of JSON schema; ``any`` is left out, as it says nothing."""


def read(source: str) -> Iterator[Conversation | LeftOut]:
    """One conversation a question. Raises DataError where the category or the package is not there."""
    path = _file(source)
    answers = _answers(path.parent / "possible_answer" / path.name)

    def make(record: Json, place: str) -> Conversation:
        record = expect(record, dict, "a question as a JSON object")
        name = expect(record.get("id"), str, "a question with an id")
        if name not in answers:
            raise Unusable("a question without a golden reply: the right answer is no call")
        return (_several_turns if "involved_classes" in record else _one_turn)(record, answers[name], place)

    return conversations(json_lines(path), make)


def _file(source: str) -> Path:
    if Path(source).suffix in (".json", ".jsonl"):
        return Path(source)
    folder = _package() / "data"
    found = {path.stem.removeprefix(_PREFIX): path for path in folder.glob(f"{_PREFIX}*.json")}
    if source not in found:
        raise DataError(f"source: a category of BFCL, got {quoted(source)}; {nearest(source, sorted(found))}")
    return found[source]


def _package() -> Path:
    spec = find_spec("bfcl_eval")
    if spec is None or not spec.submodule_search_locations:
        raise DataError("source: the package bfcl-eval, got none; pip install --no-deps bfcl-eval, or give a file")
    return Path(spec.submodule_search_locations[0])


def _answers(path: Path) -> dict[str, list[Json]]:
    """The ground truth of each question, by its id; of none where a category has no such file."""
    if not path.exists():
        return {}
    records = [found[1] for found in json_lines(path) if not isinstance(found, LeftOut)]
    truths = {r["id"]: r.get("ground_truth") for r in records if isinstance(r, dict) and isinstance(r.get("id"), str)}
    return {name: truth for name, truth in truths.items() if isinstance(truth, list) and truth}


def _one_turn(record: Mapping[str, Any], truth: list[Json], place: str) -> Conversation:
    named = [item for call in truth for item in expect(call, dict, "a call as a JSON object").items()]
    calls = [as_call(name, _accepted(arguments), f"call_{number}") for number, (name, arguments) in enumerate(named)]
    right = [
        {"name": name, "arguments": _accepted(arguments), "accept": _others(arguments)} for name, arguments in named
    ]
    messages = expect(_turns(record)[0], list, "a question with messages")
    return Conversation(
        conversation_id=record["id"],
        place=place,
        messages=[*messages, {"role": "assistant", "content": None, "tool_calls": calls}],
        tools=[_tool(function) for function in expect(record.get("function"), list, "a question with functions")],
        replies={len(messages): {"calls": right}},
    )


def _several_turns(record: Mapping[str, Any], truth: list[Json], place: str) -> Conversation:
    """Up to the first turn whose right answer is a question of the assistant's, which the ground truth has no words
    for.
    """
    if record.get("missed_function"):
        raise Unusable("a conversation whose tools change")
    classes = expect(record["involved_classes"], list, "involved classes as a list")
    excluded = expect(record.get("excluded_function") or [], list, "excluded functions as a list")
    functions = {f["name"]: f for name in classes for f in _functions(name) if f["name"] not in excluded}
    try:
        simulations = [_simulation(name, record) for name in classes]
    except Exception as error:  # noqa: BLE001 - whatever a wrong scenario makes the simulation raise
        raise Unusable(f"a scenario that the simulation takes, got {quoted(error)}") from None
    messages: list[Json] = []
    replies: dict[int, dict[str, Json]] = {}
    for said, calls in zip(_turns(record), truth, strict=False):
        if not calls:
            break
        messages += expect(said, list, "a turn with messages")
        for text in expect(calls, list, "a turn with calls"):
            name, arguments = _parsed(text, functions)
            call = as_call(name, arguments, f"call_{len(messages)}")
            replies[len(messages)] = {}
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
            answer = _result(simulations, name, arguments)
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": answer})
    tools = [_tool(function) for function in functions.values()]
    return Conversation(conversation_id=record["id"], place=place, messages=messages, tools=tools, replies=replies)


def _turns(record: Mapping[str, Any]) -> list[Json]:
    turns: list[Json] = expect(record.get("question"), list, "a question with turns")
    if not turns:
        raise Unusable("a question with turns, got none")
    return turns


def _functions(name: Json) -> list[dict[str, Any]]:
    """What the simulated class offers, as it is documented."""
    if not isinstance(name, str) or name not in _MODULES:
        raise Unusable(f"a simulated tool, got {quoted(name)}")
    path = _package() / "data" / "multi_turn_func_doc" / f"{_MODULES[name]}.json"
    return [found[1] for found in json_lines(path) if not isinstance(found, LeftOut)]


def _simulation(name: str, record: Mapping[str, Any]) -> Any:
    simulation = getattr(import_module(f"{_SIMULATIONS}.{_MODULES[name]}"), name)()
    if hasattr(simulation, "_load_scenario"):
        config = copy.deepcopy((record.get("initial_config") or {}).get(name, {}))
        simulation._load_scenario(config, long_context="long_context" in record["id"])
    return simulation


def _parsed(text: Json, functions: Mapping[str, Mapping[str, Any]]) -> tuple[str, dict[str, Json]]:
    """``f(1, b=2)`` as a name and arguments by name. Read as a literal, never evaluated."""
    try:
        node = ast.parse(expect(text, str, "a call as text"), mode="eval").body
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            raise ValueError("no call")
        parameters = list(functions[node.func.id]["parameters"]["properties"])
        given = [(parameters[index], value) for index, value in enumerate(node.args)]
        given += [(keyword.arg or "", keyword.value) for keyword in node.keywords]
        return node.func.id, {key: ast.literal_eval(value) for key, value in given}
    except (ValueError, SyntaxError, KeyError, IndexError, TypeError, RecursionError, MemoryError):
        raise Unusable(f"a call of a documented function, got {quoted(text)}") from None


def _result(simulations: list[Any], name: str, arguments: dict[str, Json]) -> str:
    """What the simulated tool answers. ``name`` is one of the documented functions."""
    method = next((getattr(s, name) for s in simulations if hasattr(s, name)), None)
    if method is None:
        raise Unusable(f"a simulated function, got {quoted(name)}")
    try:
        answer = method(**copy.deepcopy(arguments))
        return answer if isinstance(answer, str) else json.dumps(answer, default=str)
    except Exception as error:  # noqa: BLE001 - whatever the simulation raises is what the agent is told
        return f"Error during execution: {error}"


def _tool(function: Json) -> dict[str, Json]:
    function = expect(function, dict, "a function as a JSON object")
    kept = {key: function[key] for key in ("name", "description") if key in function}
    return {"type": "function", "function": {**kept, "parameters": _schema(function.get("parameters") or {})}}


def _schema(value: Json) -> Json:
    """BFCL's parameters as JSON schema."""
    if isinstance(value, list):
        return [_schema(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    typed = {key: _schema(inner) for key, inner in value.items() if key != "type" or inner != "any"}
    if isinstance(kind := value.get("type"), str) and kind in _TYPES:
        typed["type"] = _TYPES[kind]
    return typed


def _accepted(arguments: Json) -> dict[str, Json]:
    """The first accepted value of every argument; one that may be left out is."""
    given = expect(arguments, dict, "arguments as a JSON object")
    chosen = {}
    for key, values in given.items():
        first = values[0] if isinstance(values, list) and values else ""
        if first != "" and "" not in values:
            chosen[key] = _value(first)
    return chosen


def _others(arguments: Json) -> dict[str, Json]:
    """The accepted values of every argument but the first; all of one that may be left out."""
    given = expect(arguments, dict, "arguments as a JSON object")
    others: dict[str, Json] = {}
    for key, values in given.items():
        listed = [_value(value) for value in values if value != ""] if isinstance(values, list) else []
        if rest := listed if isinstance(values, list) and "" in values else listed[1:]:
            others[key] = rest
    return others


def _value(value: Json) -> Json:
    """Objects in an answer list their accepted values as arguments do."""
    if isinstance(value, dict):
        return _accepted(value) if all(isinstance(inner, list) for inner in value.values()) else value
    return [_value(inner) for inner in value] if isinstance(value, list) else value
