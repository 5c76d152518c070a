"""Messages and tools in the spellings of OpenAI's chat interfaces, old and new, brought into one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from kvquant_eval.core.codec import quoted
from kvquant_eval.core.records import Json
from kvquant_eval.core.strict_json import BadJson, parse
from kvquant_eval.core.turns import ROLES

_ROLES = {"function": "tool", **{role: role for role in ROLES}}
_TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""Kinds of content parts that are text, and the key that it stands under."""
_MEDIA = {
    "image_url": "an image",
    "input_image": "an image",
    "image": "an image",
    "input_audio": "audio",
    "audio": "audio",
    "video_url": "a video",
    "file": "a file",
    "input_file": "a file",
}


class Unusable(Exception):
    """Why a message cannot be part of a golden turn, in a few words: ``<rule>, got <value>``, or what it is."""


def as_message(given: Json) -> dict[str, Json]:
    """The message with role, content (a string, None beside tool calls), and what belongs to tool calls; nothing else.

    Texts of several parts are joined by line feeds, arguments are objects where they can be read. Raises Unusable for
    pictures, sound and what is no message.
    """
    if not isinstance(given, dict):
        raise Unusable(f"a message as an object, got {quoted(given)}")
    role = _ROLES.get(str(given.get("role")))
    if role is None:
        raise Unusable(f"a role that is known, got {quoted(given.get('role'))}")
    calls = _calls(given) if role == "assistant" else []
    content, refusal = given.get("content"), given.get("refusal")
    said = as_text(refusal if content is None else content, empty=None if calls else "")
    message: dict[str, Json] = {"role": role, "content": said}
    if calls:
        message["tool_calls"] = calls
    if role == "tool":
        message.update({key: given[key] for key in ("tool_call_id", "name") if isinstance(given.get(key), str)})
    return message


def as_text(content: Json, empty: str | None = "") -> str | None:
    """Content as one string; ``empty`` where there is none. Raises Unusable for what is no text."""
    if content is None:
        return empty
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise Unusable(f"content as text, got {quoted(content)}")
    return "\n".join(_part(part) for part in content) if content else empty


def as_tool(given: Json) -> dict[str, Json]:
    """A tool's definition in OpenAI's shape; a bare function is wrapped. Raises Unusable for anything else."""
    known = isinstance(given, dict) and given.get("type") in (None, "function")
    function = (given.get("function") or given) if known else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise Unusable(f"a tool as a function, got {quoted(given)}")
    return {"type": "function", "function": {key: value for key, value in function.items() if key != "type"}}


def as_call(name: str, arguments: Json, call_id: str | None = None) -> dict[str, Json]:
    """A tool call in OpenAI's shape. Arguments in a string are read where they are JSON, and left as they are else."""
    if isinstance(arguments, str):
        with suppress(BadJson):
            arguments = parse(arguments.encode("utf-8", "surrogatepass")) if arguments.strip() else {}
    function = {"name": name, "arguments": {} if arguments is None else arguments}
    return {**({"id": call_id} if call_id else {}), "type": "function", "function": function}


def _part(part: Any) -> str:
    if isinstance(part, str):
        return part
    kind = str(part.get("type")) if isinstance(part, dict) else ""
    if kind in _MEDIA:
        raise Unusable(_MEDIA[kind])
    text = part.get(_TEXTS[kind]) if kind in _TEXTS else None
    if not isinstance(text, str):
        raise Unusable(f"content of parts that are text, got the type {quoted(kind)}")
    return text


def _calls(message: Mapping[str, Any]) -> list[dict[str, Json]]:
    """The calls of an assistant's message, of the time before ``tool_calls`` too."""
    given: Any = message.get("tool_calls") or []
    if message.get("function_call") and not given:
        given = [{"function": message["function_call"]}]
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise Unusable(f"tool calls as a list, got {quoted(given)}")
    return [_call(call) for call in given]


def _call(call: Any) -> dict[str, Json]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise Unusable(f"a tool call with a function, got {quoted(call)}")
    call_id = call.get("id")
    return as_call(function["name"], function.get("arguments"), call_id if isinstance(call_id, str) else None)
