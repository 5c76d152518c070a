"""What every golden source shares: inline marks of decisive spans, and the turn as a dict in file order.

A writer marks decisive parts of a reply as ``[[...]]``; ``marked`` strips the marks and says where each part occurs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]
"""One message in OpenAI chat shape."""

_MARK = re.compile(r"\[\[(.+?)\]\]", re.DOTALL)


def marked(text: str) -> tuple[str, list[dict[str, Any]]]:
    """Split ``text`` into plain text and the decisive spans ``{"text", "nth"}`` that its ``[[...]]`` marks name."""
    plain = _MARK.sub(r"\1", text)
    spans: list[dict[str, Any]] = []
    removed = 0
    for match in _MARK.finditer(text):
        start = match.start() - removed
        spans.append({"text": match[1], "nth": plain.count(match[1], 0, start)})
        removed += len("[[]]")
    return plain, spans


def turn(
    *,
    workload: str,
    conversation: str,
    index: int,
    messages: Sequence[Message],
    reference: Message,
    decisive: Sequence[Mapping[str, Any]],
    expected: Mapping[str, Any],
    max_tokens: int,
    tags: Sequence[str] = (),
    tools: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Build one golden turn in the key order of the JSONL file.

    ``conversation`` is the id without the class, as ``<slug>-<NN>``; ``tools`` is left out of the turn when empty.
    """
    conversation_id = f"{workload}-{conversation}"
    built: dict[str, Any] = {
        "turn_id": f"{conversation_id}/t{index:02d}",
        "workload": workload,
        "conversation_id": conversation_id,
        "turn_index": index,
        "messages": [dict(message) for message in messages],
    }
    if tools:
        built["tools"] = [dict(tool) for tool in tools]
    return built | {
        "reference": dict(reference),
        "decisive": [dict(span) for span in decisive],
        "expected": dict(expected),
        "max_tokens": max_tokens,
        "tags": list(tags),
    }
