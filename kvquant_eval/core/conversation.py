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
_FINAL = re.compile(r"####\s*([^\s.]\S*?)\.?\s*\Z")
_BOX = re.compile(r"\\boxed\{\s*([^{}\s]+?)\.?\s*\}")
"""The final answer of a worked solution: a word behind ``####`` at its end (elsewhere it is a heading), or the last box
of LaTeX.
"""
_RESULT = re.compile(r"=\s*[$€£]?(-?\d[\d,]*(?:\.\d+)?)")
"""What a step of one comes to."""
_AROUND = "tool_calls parameters"
"""What templates write around a call beside the keys of OpenAI's shape."""


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
    """The turns of a conversation, each with the history before it, in order; ``turn_index`` counts the assistant's
    replies in it. ``core.turns.problem`` is still to be asked of each.
    """
    if conversation.replies is None:
        roles = [message.get("role") if isinstance(message, dict) else None for message in conversation.messages]
        replies: Mapping[int, Mapping[str, Json]] = {i: {} for i, role in enumerate(roles) if role == "assistant"}
    else:
        replies = conversation.replies
    if not replies:
        yield LeftOut(conversation.place, "a conversation without a reply of the assistant")
        return
    messages: list[dict[str, Json]] = []
    left = len(replies)
    said = 0
    try:
        tools = tuple(as_tool(tool) for tool in conversation.tools)
        for index, given in enumerate(conversation.messages):
            message = as_message(given)
            if index in replies:
                yield _turn(conversation, workload, said, messages, message, tools, replies[index])
                left -= 1
            said += message["role"] == "assistant"
            messages.append(message)
    except Unusable as error:
        for _ in range(left):
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
    """Tokens for the generated reply: about twice what the golden one has, at four bytes of UTF-8 a token."""
    calls = reference.get("tool_calls")
    text = (reference.get("content") or "") + (json.dumps(calls, ensure_ascii=False) if calls else "")
    return min(max(math.ceil(len(text.encode("utf-8", "surrogatepass")) / 2), SHORTEST_LIMIT), LONGEST_LIMIT)


def decisive_spans(reference: Mapping[str, Json], answers: Sequence[str] = ()) -> tuple[Span, ...]:
    """What decides a reply, where it can be told: names and argument values of its tool calls; without calls the
    results and the final answer of a worked solution, and the last place where an accepted answer stands.

    A span must be found in the rendered reply. Beside calls many templates show no content, and of calls only what
    occurs once looks the same in all.
    """
    calls = reference.get("tool_calls")
    if not calls:
        return _content_spans((reference.get("content") or "").strip(), answers)
    said = [call["function"] for call in calls]
    shown = (reference.get("content") or "") + _AROUND + json.dumps(calls, ensure_ascii=False)
    texts = _leaves([[function["name"], function["arguments"]] for function in said])
    return tuple(Span(text=text) for text in dict.fromkeys(texts) if text and shown.count(text) == 1)[:MOST_SPANS]


def _content_spans(content: str, answers: Sequence[str]) -> tuple[Span, ...]:
    """The last ones, where there are too many."""
    final = [match.span(1) for match in (*_FINAL.finditer(content), *list(_BOX.finditer(content))[-1:])]
    places = [match.span(1) for match in _RESULT.finditer(content)] if final else []
    stripped = [answer.strip() for answer in answers]
    places += [(at, at + len(text)) for text in stripped if text and (at := content.rfind(text)) >= 0]
    spans = [span for start, end in sorted({*places, *final}) if (span := _span(content, start, end))]
    return tuple(spans)[-MOST_SPANS:]


def _span(content: str, start: int, end: int) -> Span | None:
    """The text from ``start`` to ``end``, by its occurrence; None where those that do not overlap pass it by."""
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
