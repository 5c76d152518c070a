"""Agent trajectories in ATIF, the Agent Trajectory Interchange Format, versions 1.0 to 1.8 (harbor's RFC 0001): one
JSON file each, or a folder of them.

A step of the agent is one reply of the assistant; its observation's results answer its tool calls.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kvquant_eval.core.chat import Unusable, as_call
from kvquant_eval.core.codec import quoted
from kvquant_eval.core.conversation import Conversation, LeftOut
from kvquant_eval.core.records import Json
from kvquant_eval.io.golden.importers._files import expect, json_files

_VERSION = re.compile(r"ATIF-v1\.[0-8]")


def read(source: str) -> Iterator[Conversation | LeftOut]:
    """Every trajectory, those of subagents too. Raises DataError for a source that cannot be read."""
    for found in json_files(Path(source)):
        if isinstance(found, LeftOut):
            yield found
        else:
            place, value = found
            yield from _trajectories(value, place, Path(place).stem)


def _trajectories(value: Json, place: str, name: str) -> Iterator[Conversation | LeftOut]:
    try:
        trajectory = expect(value, dict, "a trajectory as a JSON object")
        version = trajectory.get("schema_version")
        if not isinstance(version, str) or not _VERSION.fullmatch(version):
            raise Unusable(f"a trajectory of ATIF-v1.0 to v1.8, got {quoted(version)}")
        given = trajectory.get("trajectory_id") or trajectory.get("session_id")
        name = given if isinstance(given, str) and given else name
        yield _conversation(trajectory, place, name)
    except Unusable as error:
        yield LeftOut(place, str(error))
        return
    subagents = trajectory.get("subagent_trajectories") or []
    for number, inner in enumerate(subagents if isinstance(subagents, list) else [subagents], 1):
        yield from _trajectories(inner, f"{place}:subagent {number}", f"{name}-{number}")


def _conversation(trajectory: Mapping[str, Any], place: str, name: str) -> Conversation:
    agent = trajectory.get("agent")
    tools = agent.get("tool_definitions") if isinstance(agent, dict) else None
    messages: list[dict[str, Json]] = []
    replies: dict[int, dict[str, Json]] = {}
    for step in expect(trajectory.get("steps"), list, "a trajectory with steps"):
        step = expect(step, dict, "a step as a JSON object")
        if step.get("source") == "agent" and not step.get("is_copied_context") and step.get("llm_call_count") != 0:
            replies[len(messages)] = {}
        messages += _step(step)
    return Conversation(
        conversation_id=name,
        place=place,
        messages=messages,
        tools=expect(tools or [], list, "tool definitions as a list"),
        replies=replies,
    )


def _step(step: Mapping[str, Any]) -> Iterator[dict[str, Json]]:
    """A step as messages. What was observed without a call of a tool is said by the user, as agents are told of it."""
    role = {"agent": "assistant", "user": "user", "system": "system"}.get(str(step.get("source")))
    if role is None:
        raise Unusable(f"a step of the system, the user or the agent, got {quoted(step.get('source'))}")
    calls = [_call(call) for call in expect(step.get("tool_calls") or [], list, "tool calls as a list")]
    message: dict[str, Json] = {"role": role, "content": step.get("message")}
    if role != "system" or step.get("message"):
        yield {**message, "tool_calls": calls} if calls else message
    observation = expect(step.get("observation") or {}, dict, "an observation as a JSON object")
    for result in expect(observation.get("results") or [], list, "results as a list"):
        result = expect(result, dict, "a result as a JSON object")
        source = result.get("source_call_id")
        told = {"role": "tool", "tool_call_id": source} if isinstance(source, str) and source else {"role": "user"}
        yield {**told, "content": result.get("content") or ""}


def _call(call: Json) -> dict[str, Json]:
    call = expect(call, dict, "a tool call as a JSON object")
    name = expect(call.get("function_name"), str, "a tool call with a function_name")
    return as_call(name, call.get("arguments"), expect(call.get("tool_call_id"), str, "a tool call with an id"))
