"""OpenAI chat requests, one a line: ``messages``, ``tools``, and what was answered.

Taken are the fine-tuning format, where the answers are assistant messages; a logged ``request`` (or batch ``body``)
with its ``response`` beside it; and ``completion``, ``choices`` or ``message`` beside ``messages``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kvquant_eval.core.conversation import Conversation, LeftOut
from kvquant_eval.core.records import Json
from kvquant_eval.io.golden.importers._files import conversations, expect, json_lines, numbered


def read(source: str) -> Iterator[Conversation | LeftOut]:
    """The conversation of every line. Raises DataError for a file that cannot be read."""
    return conversations(json_lines(Path(source)), _conversation)


def _conversation(record: Json, place: str) -> Conversation:
    record = expect(record, dict, "a request as a JSON object")
    request = next((record[key] for key in ("request", "body") if isinstance(record.get(key), dict)), record)
    messages = list(expect(request.get("messages"), list, "a request with messages"))
    reply = answer(record)
    tools = request.get("tools") or request.get("functions") or []
    given = next((str(record[key]) for key in ("conversation_id", "custom_id", "id") if record.get(key)), "")
    return Conversation(
        conversation_id=given or numbered(place),
        place=place,
        messages=[*messages, reply] if reply is not None else messages,
        tools=expect(tools, list, "tools as a list"),
        replies=None if reply is None else {len(messages): {}},
    )


def answer(record: Mapping[str, Any]) -> Json | None:
    """The message that answered the request; None where the messages have their answers in them."""
    said: Any = next((record[key] for key in ("response", "completion") if record.get(key) is not None), record)
    if isinstance(said, str):
        return {"role": "assistant", "content": said}
    if said is not record and isinstance(said, dict):
        said = said.get("body", said)
    if isinstance(said, dict) and isinstance(said.get("choices"), list):
        said = said["choices"][0] if said["choices"] else {}
    if isinstance(said, dict) and isinstance(said.get("message"), dict):
        said = said["message"]
    if said is record or not isinstance(said, dict) or not ({"content", "tool_calls"} & said.keys()):
        return None
    return {"role": "assistant", **said}
