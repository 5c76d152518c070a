"""Recorded conversations, and the golden turns that they are cut into. Pure: the importers read, this decides."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvquant_eval.core.chat import Unusable, as_message, as_tool
from kvquant_eval.core.records import GoldenTurn, Json, Span
from kvquant_eval.core.turns import LONGEST_NAME

SHORTEST_LIMIT, LONGEST_LIMIT = 32, 4096
"""Bounds of the reply limit (tokens) of an imported turn."""
LONGEST_ID = LONGEST_NAME - len("/t99999")
"""Characters of a conversation id from which turn ids are made."""
MOST_SPANS = 16
_FINAL = re.compile(r"####\s*(\S+)|\\boxed\{([^{}\s]+)\}")
"""The final answer of a worked solution."""
_RESULT = re.compile(r"=\s*[$€£]?(-?\d[\d,]*(?:\.\d+)?)")
"""What a step of one comes to."""


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """What was said once, as a source has it: messages and tools in OpenAI's chat shape, old spellings included.

    ``place`` is where it stands (``file:line``). ``replies`` says which of ``messages`` become golden turns: by index,
    with what the turn's scorers need (``GoldenTurn.expected``); None: every assistant message.
    """

    conversation_id: str
    place: str
    messages: Sequence[Json]
    tools: Sequence[Json] = ()
    replies: Mapping[int, Mapping[str, Json]] | None = None
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class LeftOut:
    """Something of the source that becomes no golden turn: where it stands, and why."""

    place: str
    reason: str


def cut(conversation: Conversation, workload: str) -> Iterator[GoldenTurn | LeftOut]:
    """The turns of a conversation, each with the history before it, in order. ``core.turns.problem`` is still to be
    asked of each.
    """
    if conversation.replies is None:
        said = [message.get("role") if isinstance(message, dict) else None for message in conversation.messages]
        replies: Mapping[int, Mapping[str, Json]] = {i: {} for i, role in enumerate(said) if role == "assistant"}
    else:
        replies = conversation.replies
    if not replies:
        yield LeftOut(conversation.place, "a conversation without a reply of the assistant")
        return
    messages: list[dict[str, Json]] = []
    number = 0
    try:
        tools = tuple(as_tool(tool) for tool in conversation.tools)
        for index, given in enumerate(conversation.messages):
            message = as_message(given)
            if index in replies:
                yield _turn(conversation, workload, number, messages, message, tools, replies[index])
                number += 1
            messages.append(message)
    except Unusable as error:
        for _ in range(len(replies) - number):
            yield LeftOut(conversation.place, str(error))


def _turn(
    source: Conversation,
    workload: str,
    number: int,
    messages: Sequence[dict[str, Json]],
    reference: dict[str, Json],
    tools: tuple[dict[str, Json], ...],
    expected: Mapping[str, Json],
) -> GoldenTurn | LeftOut:
    if not messages:
        return LeftOut(source.place, "a reply with nothing before it")
    calls = [
        {"name": call["function"]["name"], "arguments": call["function"]["arguments"]}
        for call in reference.get("tool_calls", ())
        if isinstance(call["function"]["arguments"], dict)
    ]
    return GoldenTurn(
        turn_id=f"{source.conversation_id}/t{number:02d}",
        workload=workload,
        conversation_id=source.conversation_id,
        turn_index=number,
        messages=tuple(messages),
        reference=reference,
        decisive=decisive_spans(reference, expected.get("answers", ())),
        tools=tools,
        expected={**({"calls": calls} if calls else {}), **expected},
        max_tokens=reply_limit(reference),
        tags=source.tags,
    )


def conversation_name(text: str) -> str:
    """``text`` as a conversation id, from which turn ids can be made: what does not print is left out, and the end."""
    printable = "".join(char for char in text if char.isprintable())
    return printable[:LONGEST_ID].strip() or "conversation"


def reply_limit(reference: Mapping[str, Json]) -> int:
    """Tokens for the generated reply: about twice what the golden one has, at four characters a token."""
    characters = len(reference.get("content") or "") + len(json.dumps(reference.get("tool_calls", "")))
    return min(max(math.ceil(characters / 2), SHORTEST_LIMIT), LONGEST_LIMIT)


def decisive_spans(reference: Mapping[str, Json], answers: Sequence[str] = ()) -> tuple[Span, ...]:
    """What decides a reply, where it can be told: the results and the final answer of a worked solution, the last place
    where an accepted answer stands, names and argument values of tool calls.

    Of calls only what occurs once and what every template shows alike: a span must be found in the rendered reply.
    """
    content = (reference.get("content") or "").strip()
    final = [match.span(match.lastindex or 0) for match in _FINAL.finditer(content)]
    places = [match.span(1) for match in _RESULT.finditer(content)] if final else []
    places += final
    places += [(at, at + len(answer)) for answer in answers if answer and (at := content.rfind(answer)) >= 0]
    spans = [span for start, end in sorted(places) if (span := _span(content, start, end))]
    calls = [call["function"] for call in reference.get("tool_calls", ())]
    whole = content + "".join(json.dumps([call["name"], call["arguments"]], ensure_ascii=False) for call in calls)
    texts = [text for call in calls for text in (call["name"], *_leaves(call["arguments"]))]
    spans += [Span(text=text) for text in texts if text and whole.count(text) == 1]
    return tuple(dict.fromkeys(spans))[-MOST_SPANS:]


def _span(content: str, start: int, end: int) -> Span | None:
    """The text from ``start`` to ``end``, counted as a template's reader counts: occurrences that do not overlap."""
    text, nth, at = content[start:end], 0, content.find(content[start:end])
    while at < start:
        nth, at = nth + 1, content.find(text, at + len(text))
    return Span(text=text, nth=nth) if at == start else None


def _leaves(value: Any) -> Iterator[str]:
    """Texts and whole numbers in JSON that look the same in every notation."""
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _leaves(inner)
    elif isinstance(value, str) and json.dumps(value) == f'"{value}"':
        yield value
    elif isinstance(value, int) and not isinstance(value, bool):
        yield str(value)
