"""Golden turns of class ``tool_calling``: expands the agents and conversations of ``tool_calling.yaml``.

A conversation is a list of steps, each one key: ``user``, ``calls``, ``results`` (one JSON string per call), ``answer``
or ``said``. Every ``calls`` and ``answer`` step becomes a golden turn, and history of the turns after it. ``said`` is a
reply of the agent that is history only: its wording does not follow from the conversation.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from golden.sources.common import marked, turn

WORKLOAD = "tool_calling"
MAX_TOKENS = 96


def turns() -> list[dict[str, Any]]:
    """Expand ``tool_calling.yaml`` into turn dicts, in file order."""
    source = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    numbers: Counter[str] = Counter()
    built: list[dict[str, Any]] = []
    for conversation in source["conversations"]:
        name = conversation["agent"]
        numbers[name] += 1
        slug = f"{name.replace('_', '-')}-{numbers[name]:02d}"
        built += _conversation(slug, source["agents"][name], conversation["steps"])
    return built


def _conversation(slug: str, agent: Mapping[str, Any], steps: list[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the golden turns of one conversation."""
    tools = [_tool(name, fields) for name, fields in agent["tools"].items()]
    messages: list[dict[str, Any]] = [{"role": "system", "content": agent["system"]}]
    pending: list[str] = []
    index = calls_made = 0
    for step in steps:
        if "user" in step:
            messages.append({"role": "user", "content": step["user"]})
        elif "results" in step:
            messages += _results(pending, step["results"])
        elif "said" in step:
            messages.append({"role": "assistant", "content": step["said"]})
            index += 1
        else:
            golden = _call_step(step["calls"], calls_made) if "calls" in step else _answer_step(step["answer"])
            yield turn(
                workload=WORKLOAD,
                conversation=slug,
                index=index,
                messages=messages,
                tools=tools,
                max_tokens=MAX_TOKENS,
                **golden,
            )
            pending = [call["id"] for call in golden["reference"].get("tool_calls", ())]
            calls_made += len(pending)
            messages.append(golden["reference"])
            index += 1


def _results(call_ids: list[str], contents: list[str]) -> list[dict[str, Any]]:
    """Build the tool messages that answer the calls of the step before."""
    return [
        {"role": "tool", "tool_call_id": call_id, "content": content}
        for call_id, content in zip(call_ids, contents, strict=True)
    ]


def _call_step(calls: list[Mapping[str, Any]], first_id: int) -> dict[str, Any]:
    """Build the turn fields of a step of tool calls, each written ``{name: arguments}``."""
    named = [(name, arguments) for call in calls for name, arguments in call.items()]
    tool_calls = [
        {
            "id": f"call_{first_id + offset}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)},
        }
        for offset, (name, arguments) in enumerate(named)
    ]
    return {
        "reference": {"role": "assistant", "content": "", "tool_calls": tool_calls},
        "decisive": marked("\n".join(_marked_call(name, arguments) for name, arguments in named))[1],
        "expected": {"calls": [{"name": name, "arguments": arguments} for name, arguments in named]},
        "tags": ["call", "parallel"] if len(named) > 1 else ["call"],
    }


def _answer_step(text: str) -> dict[str, Any]:
    """Build the turn fields of a final answer; its marked parts are the accepted answers."""
    plain, decisive = marked(text)
    return {
        "reference": {"role": "assistant", "content": plain},
        "decisive": decisive,
        "expected": {"calls": [], "answers": [span["text"] for span in decisive]},
        "tags": ["answer"],
    }


def _marked_call(name: str, arguments: Mapping[str, Any]) -> str:
    """Render one call as the chat template renders it, the tool name and every argument value marked as decisive."""
    values = ", ".join(f"{json.dumps(key)}: {_marked_value(value)}" for key, value in arguments.items())
    return f'<tool_call>\n{{"name": {_marked_value(name)}, "arguments": {{{values}}}}}\n</tool_call>'


def _marked_value(value: str | float) -> str:
    """Render a JSON scalar, marked; the quotes of a string stay outside the marks."""
    text = json.dumps(value, ensure_ascii=False)
    return f'"[[{text[1:-1]}]]"' if isinstance(value, str) else f"[[{text}]]"


def _tool(name: str, fields: Mapping[str, str]) -> dict[str, Any]:
    """Build an OpenAI tool schema: ``about`` is its description, the other ``fields`` its typed parameters."""
    properties = {field: {"type": kind} for field, kind in fields.items() if field != "about"}
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "description": fields["about"], "parameters": parameters}}
