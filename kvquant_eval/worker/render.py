"""Golden turns to token ids: rendered once, with the model's own tokenizer and chat template, for every arm."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvquant_eval.core.codec import DataError
from kvquant_eval.core.records import GoldenTurn, RenderedTurn, Span
from kvquant_eval.worker.errors import clause
from kvquant_eval.worker.limits import bounded

LONGEST = 64_000_000
"""Characters of a rendered turn, many times what the longest contexts hold."""


def render(tokenizer: Any, template: str, turn: GoldenTurn, max_tokens: int) -> RenderedTurn:
    """Token ids of the turn's prompt and golden reply, and the token ranges of its decisive spans.

    A turn that does not fit ``max_tokens`` (prompt plus the longer of golden reply and reply limit) is marked to be
    skipped, never cut. Raises DataError when the template fails, changes the history when the reply is added, doubles
    the BOS token, or does not show a decisive span.
    """
    prompt, reply = _texts(tokenizer, template, turn)
    ids = _encode(tokenizer, prompt, turn.turn_id)
    encoded = tokenizer(reply, add_special_tokens=False, return_offsets_mapping=True)
    stop = next((i for i, token in enumerate(encoded.input_ids) if token == tokenizer.eos_token_id), None)
    golden_ids, offsets = encoded.input_ids[:stop], encoded.offset_mapping[:stop]
    if not golden_ids:
        raise DataError(f"{turn.turn_id}: a golden reply of at least one token, got none; give the reference a content")
    rendered = RenderedTurn(
        turn_id=turn.turn_id,
        workload=turn.workload,
        conversation_id=turn.conversation_id,
        turn_index=turn.turn_index,
        prompt_ids=tuple(ids),
        golden_ids=tuple(golden_ids),
        spans=tuple(_span(turn.turn_id, reply, offsets, span) for span in turn.decisive),
        max_tokens=turn.max_tokens,
    )
    needed = needed_tokens(rendered)
    return (
        rendered
        if needed <= max_tokens
        else replace(rendered, skip=f"needs {needed} tokens, the context is {max_tokens}")
    )


def prompt_ids(
    tokenizer: Any,
    template: str,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    where: str,
) -> list[int]:
    """Token ids of the prompt that asks for a reply to ``messages``, as ``render`` makes it. Raises DataError when the
    template fails or doubles the BOS token.
    """
    return _encode(tokenizer, _apply(tokenizer, template, messages, tools, where, reply_due=True), where)


def _encode(tokenizer: Any, prompt: str, where: str) -> list[int]:
    ids: list[int] = tokenizer(prompt, add_special_tokens=False).input_ids
    bos = tokenizer.bos_token_id
    if bos is not None and ids[:2] == [bos, bos]:
        raise DataError(f"{where}: one BOS token, got two; correct the chat template")
    return ids


def needed_tokens(turn: RenderedTurn) -> int:
    """The context that a turn takes: prompt plus the longer of golden reply and reply limit."""
    return len(turn.prompt_ids) + max(len(turn.golden_ids), turn.max_tokens)


def normalise(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as chat templates want it: content a string, tool-call ``arguments`` an object, not a JSON string."""
    plain: dict[str, Any] = {**message, "content": message.get("content") or ""}
    if calls := message.get("tool_calls"):
        plain["tool_calls"] = [{**call, "function": _function(call["function"])} for call in calls]
    return plain


def _function(function: Mapping[str, Any]) -> dict[str, Any]:
    arguments = function.get("arguments") or {}
    return {**function, "arguments": json.loads(arguments) if isinstance(arguments, str) else arguments}


def _texts(tokenizer: Any, template: str, turn: GoldenTurn) -> tuple[str, str]:
    """The prompt's text, and what the golden reply adds to it."""
    spoken = [*turn.messages, turn.reference]
    prompt = _apply(tokenizer, template, turn.messages, turn.tools, turn.turn_id, reply_due=True)
    whole = _apply(tokenizer, template, spoken, turn.tools, turn.turn_id, reply_due=False)
    if not whole.startswith(prompt):
        raise DataError(f"{turn.turn_id}: the chat template must extend the prompt by the reply, got another history")
    return prompt, whole[len(prompt) :]


def _apply(
    tokenizer: Any,
    template: str,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    where: str,
    *,
    reply_due: bool,
) -> str:
    """What the template makes of the messages."""
    options: dict[str, Any] = {"chat_template": template, "tools": list(tools) or None, "tokenize": False}
    try:
        plain = [normalise(message) for message in messages]
        with bounded():
            text: str = tokenizer.apply_chat_template(plain, add_generation_prompt=reply_due, **options)
    except Exception as error:  # Jinja and tokenizer errors of any kind: the template is the user's
        raise DataError(f"{where}: the chat template must render, got {clause(error)}; correct the template") from error
    if len(text) > LONGEST:
        raise DataError(f"{where}: at most {LONGEST:,} characters, got {len(text):,}; correct the template")
    return text


def _span(turn_id: str, reply: str, offsets: Sequence[tuple[int, int]], span: Span) -> tuple[int, int]:
    """The half-open token range that covers the span's characters."""
    start = -1
    for _ in range(span.nth + 1):
        start = reply.find(span.text, start + len(span.text) if start >= 0 else 0)
        if start < 0:
            raise DataError(
                f"{turn_id}: decisive span {span.text!r} (nth={span.nth}) must stand in the reply, got {reply!r:.200}"
            )
    end = start + len(span.text)
    tokens = [i for i, (a, b) in enumerate(offsets) if a < end and b > start]
    if not tokens:
        raise DataError(f"{turn_id}: decisive span {span.text!r} must cover a token of the reply; correct the span")
    return tokens[0], tokens[-1] + 1
