"""Recorded conversations, and the golden turns that they are cut into. Pure: the importers read, this decides."""

from __future__ import annotations

import json
import math
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
    """Tokens for the generated reply: about twice what the golden one has, at four bytes of UTF-8 a token."""
    calls = reference.get("tool_calls")
    text = (reference.get("content") or "") + (json.dumps(calls, ensure_ascii=False) if calls else "")
    return min(max(math.ceil(len(text.encode("utf-8", "surrogatepass")) / 2), SHORTEST_LIMIT), LONGEST_LIMIT)


def decisive_spans(reference: Mapping[str, Json], answers: Sequence[str] = ()) -> tuple[Span, ...]:
    """What decides a reply, where it can be told: names and argument values of its tool calls; without calls the
    accepted ``answers`` that stand in it as they are, and the final answer of a worked solution.

    Only texts that occur once, and that every template shows alike: a span must be found in the rendered reply, and
    nowhere before it. Beside calls many templates show no content.
    """
    content, calls = reference.get("content") or "", reference.get("tool_calls")
    if calls:
        said = [call["function"] for call in calls]
        texts = list(_leaves([[function["name"], function["arguments"]] for function in said]))
        content += _AROUND + json.dumps(calls, ensure_ascii=False)
    else:
        texts = [*(answer.strip() for answer in answers), *_finals(content)]
    return tuple(Span(text=text) for text in dict.fromkeys(texts) if text and content.count(text) == 1)[:MOST_SPANS]


def _leaves(value: Any) -> Iterator[str]:
    """Texts and whole numbers in JSON that look the same in every notation."""
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _leaves(inner)
    elif isinstance(value, str) and json.dumps(value) == f'"{value}"':
        yield value
    elif isinstance(value, int) and not isinstance(value, bool):
        yield str(value)


def _finals(content: str) -> Iterator[str]:
    """The word behind ``####`` at the end (elsewhere it is a heading), and the first one in the last box of LaTeX."""
    _, marked, end = content.rpartition("####")
    _, boxed, rest = content.rpartition("\\boxed{")
    inside = rest.partition("}")[0].split()
    if marked and len(end.split()) == 1:
        yield end.strip().rstrip(".")
    if boxed and inside:
        yield inside[0].rstrip(".")
