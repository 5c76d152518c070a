"""Traces of an MLflow experiment, by its name or id, on the tracking server that ``MLFLOW_TRACKING_URI`` names.

Taken are calls of chat models as the autologging of OpenAI and its like writes them. A call's messages hold those of
the calls before it, so of a trace only the calls that no other one goes on with are conversations.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from kvquant_eval.core.chat import Unusable, as_message
from kvquant_eval.core.codec import DataError, quoted
from kvquant_eval.core.conversation import Conversation, LeftOut
from kvquant_eval.core.records import Json
from kvquant_eval.core.text import masked
from kvquant_eval.io.golden.importers._files import expect
from kvquant_eval.io.golden.importers.openai import answer
from kvquant_eval.io.tracking import database_file, quiet, reason

PAGE = 20
"""Traces in memory at a time."""
_CHAT = ("CHAT_MODEL", "LLM")


@dataclass(frozen=True)
class _Call:
    """A model's call that was answered; the last of ``messages`` is the reply."""

    place: str
    messages: Sequence[Json]
    tools: Sequence[Json]

    def histories(self) -> list[bytes]:
        """For every message, a hash of it and of all before it."""
        hashes = [b""]
        for message in self.messages:
            hashes.append(hashlib.sha256(hashes[-1] + _same(message)).digest())
        return hashes[1:]


def read(source: str) -> Iterator[Conversation | LeftOut]:
    """The conversations of every trace, the oldest first. Raises DataError for an experiment that cannot be read."""
    for trace in tqdm(_traces(source), unit="trace", disable=None):
        yield from _conversations(trace.info.trace_id, trace.data.spans)


def _traces(source: str) -> Iterator[Any]:
    with quiet():
        from mlflow import MlflowClient, get_tracking_uri
        from mlflow.exceptions import MlflowException

        uri = get_tracking_uri()
    where = f"source: an experiment of {masked(uri)}, got {quoted(source)}"
    remedy = "correct its name, or set MLFLOW_TRACKING_URI to its tracking server"
    file = database_file(uri)
    if file is not None and not file.is_file():
        raise DataError(f"{where} and no such file; {remedy}")
    page: Any = None
    try:
        with quiet():
            client = MlflowClient()
            experiment = client.get_experiment_by_name(source) or client.get_experiment(source)
        while page is None or page.token:
            with quiet():
                page = client.search_traces(
                    locations=[experiment.experiment_id],
                    max_results=PAGE,
                    order_by=["timestamp_ms ASC"],
                    page_token=page and page.token,
                )
            yield from page
    except MlflowException as error:
        raise DataError(f"{where} ({reason(error)}); {remedy}") from None


def _conversations(trace_id: str, spans: Iterable[Any]) -> Iterator[Conversation | LeftOut]:
    calls: list[_Call] = []
    chats = [span for span in spans if span.span_type in _CHAT]
    if not chats:
        yield LeftOut(trace_id, "a trace without a call of a chat model")
    for span in sorted(chats, key=lambda span: int(span.start_time_ns)):
        place = f"{trace_id}:{span.span_id}"
        try:
            calls.append(_call(span, place))
        except Unusable as error:
            yield LeftOut(place, str(error))
    for call, replies in _maximal(calls):
        yield Conversation(
            conversation_id=trace_id,
            place=call.place,
            messages=call.messages,
            tools=call.tools,
            replies={index: {} for index in replies},
        )


def _call(span: Any, place: str) -> _Call:
    if str(span.status.status_code.value) == "ERROR":
        raise Unusable(f"a call that ended in an error, got {quoted(span.status.description)}")
    inputs = expect(span.inputs, dict, "a call with inputs as a JSON object")
    messages = list(expect(inputs.get("messages"), list, "a call with messages"))
    if inputs.get("system"):  # Anthropic's place for it
        messages.insert(0, {"role": "system", "content": inputs["system"]})
    reply = answer({"response": span.outputs})
    if reply is None:
        raise Unusable(f"a call with a chat reply, got {quoted(span.outputs)}")
    tools = span.get_attribute("mlflow.chat.tools") or inputs.get("tools") or inputs.get("functions") or []
    return _Call(place, [*messages, reply], expect(tools, list, "tools as a list"))


def _maximal(calls: Sequence[_Call]) -> Iterator[tuple[_Call, list[int]]]:
    """The calls that no other one goes on with, in order, and which of their messages become turns: every reply once.

    A reply in a call's history is a turn here, unless it is one where it was given: in a longer call with the same
    history, or as the reply of another call that is kept (agents that shorten their history).
    """
    known: set[bytes] = set()
    kept: dict[int, list[int]] = {}
    for number in sorted(range(len(calls)), key=lambda number: -len(calls[number].messages)):
        histories = calls[number].histories()
        if histories[-1] not in known:
            kept[number] = [i for i, history in enumerate(histories) if history not in known]
            known.update(histories)
    given = Counter(_same(calls[number].messages[-1]) for number in kept)
    for number in sorted(kept):
        *history, reply = calls[number].messages
        given[_same(reply)] -= 1
        said = [i for i in kept[number] if i < len(history) and _is_reply(history[i]) and not given[_same(history[i])]]
        given[_same(reply)] += 1
        yield calls[number], [*said, len(history)]


def _is_reply(message: Json) -> bool:
    return isinstance(message, dict) and message.get("role") == "assistant"


def _same(message: Json) -> bytes:
    """What two spellings of a message have in common: one is the answer as it came, the other was sent back."""
    try:
        message = as_message(message)
        message["content"] = message["content"] or ""
    except Unusable:
        pass
    return json.dumps(message, sort_keys=True).encode()
