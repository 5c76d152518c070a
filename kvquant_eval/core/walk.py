"""A free-running conversation under way. Pure: an engine writes the replies.

A reply is put back into its conversation as a server would do it: think blocks are left out, tool calls are read from
the text. Calls that are those of the recording, in any order, get the recorded results; any other reply has left the
recording, and ``OnDivergence`` says what follows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvquant_eval.core.call_match import answered, arguments_of
from kvquant_eval.core.codec import DataError, quoted
from kvquant_eval.core.records import Json, Measure, OnDivergence, Outcome, Replay, ReplayRequest, Rollout, Step
from kvquant_eval.core.thinking import said
from kvquant_eval.core.tool_calls import BadCall, Written, before_calls, parse_calls

Message = Mapping[str, Json]
Prompt = Callable[[Sequence[Message], Sequence[Mapping[str, Json]]], tuple[int, ...]]
"""Messages and tools to the token ids of a prompt, as golden turns are rendered. Raises DataError where the template
refuses them.
"""
NO_RESULT = json.dumps({"error": "no such result; check the name and the arguments of the call"})
NOT_RUN = json.dumps({"error": "not run, because something is wrong with the calls of this reply"})
NO_CALL = "A tool call is due here. Call the tool."


class Walk:
    """A rollout under way: ``due`` is what the engine must answer next (None: nothing more), ``replays`` has one for
    each golden turn so far.

    Nothing is cut: where prompt and reply limit do not fit ``context`` (tokens), the conversation ends.
    """

    def __init__(self, rollout: Rollout, prompt: Prompt, context: int) -> None:
        self.rollout, self.prompt, self.context = rollout, prompt, context
        self.due: ReplayRequest | None = None
        self.replays: list[Replay] = []
        self._left = list(rollout.steps)
        self._messages: list[Message] = list(rollout.steps[0].asked)
        self._between: list[Replay] = []
        self._note = ""  # how the conversation left its recording since the golden turn before
        self._first: Replay | None = None  # a reply that was answered with an error message
        self._ask()

    def take(self, reply: Replay) -> None:
        """The engine's reply to ``due``. A second reply to one step only says whether the conversation goes on."""
        step, what_follows = self._left[0], self.rollout.on_divergence
        message, fault = read_reply(reply.text, step, self.rollout.tools)
        self._note = self._note or fault
        if reply.outcome is Outcome.INFRA_ERROR:
            self._record(reply)
            self._end(Outcome.INFRA_ERROR, f"an earlier reply is no evidence: {reply.error}")
        elif not fault:
            self._record(reply)
            self._go_on(message)
        elif what_follows is OnDivergence.GOLDEN:
            self._record(reply)
            self._go_on(step.recorded)
        elif what_follows is OnDivergence.ERROR_MESSAGE and self._first is None:
            self._first = reply
            self._messages += [message, *_complaint(message, step)]
            self._ask()
        else:
            self._record(reply)
            self._end(Outcome.DIVERGED, f"the conversation ended: {fault}")

    def _go_on(self, message: Message) -> None:
        if self._left:
            self._messages += [message, *self._left[0].asked]
            self._ask()
        else:
            self.due = None

    def _ask(self) -> None:
        step, rollout = self._left[0], self.rollout
        try:
            ids = self.prompt(self._messages, rollout.tools)
        except DataError as error:
            return self._end(Outcome.DIVERGED, f"the chat template refuses the conversation: {error}")
        if (needed := len(ids) + step.max_tokens) > self.context:
            found = f"the conversation ended: it needs {needed} tokens, the context is {self.context}"
            return self._end(Outcome.DIVERGED, found)
        self.due = ReplayRequest(
            turn_id=step.turn_id,
            measure=Measure.FREE_RUNNING,
            epoch=rollout.epoch,
            prompt_ids=ids,
            forced_ids=(),
            max_tokens=step.max_tokens,
            temperature=rollout.temperature,
            top_p=rollout.top_p,
            top_k=rollout.top_k,
            seed=step.seed,
        )
        return None

    def _record(self, reply: Replay) -> None:
        """Keep the first reply to this step as the step's, and go one step on."""
        first, step = self._first or reply, self._left.pop(0)
        self._first = None
        if step.turn_id:
            self.replays.append(replace(first, divergence=self._note, between=tuple(self._between)))
            self._note, self._between = "", []
        else:
            self._between.append(first)
        if first is not reply:
            self._between.append(reply)

    def _end(self, outcome: Outcome, why: str) -> None:
        """The golden turns that are left get no reply."""
        if self._first is not None:
            self._record(self._first)
        self._note = self._note or why
        self.due = None
        while self._left:
            nothing = Replay(
                turn_id=self._left[0].turn_id,
                measure=Measure.FREE_RUNNING,
                epoch=self.rollout.epoch,
                outcome=outcome,
                error=why if outcome is Outcome.INFRA_ERROR else "",
            )
            self._note = "" if outcome is Outcome.INFRA_ERROR else why
            self._record(nothing)


def read_reply(text: str, step: Step, tools: Sequence[Mapping[str, Json]]) -> tuple[dict[str, Json], str]:
    """A reply as a message for the history, and how it leaves the recording (empty: it does not).

    Without tools and recorded calls a reply is only text, and never leaves it.
    """
    spoken = said(text) or ""
    plain: dict[str, Json] = {"role": "assistant", "content": spoken}
    if not tools and not step.calls:
        return plain, ""
    try:
        calls = parse_calls(spoken)
    except BadCall as error:
        if step.calls or error.marked:
            return plain, f"bad JSON in a tool call: {error}"
        calls = []
    if not calls:
        return plain, f"no call of {quoted(step.calls[0]['name'])}" if step.calls else ""
    matched = answered(step.calls, calls)
    ids = [call.get("id") for call in step.recorded.get("tool_calls") or ()]
    message = {
        **plain,
        "content": before_calls(spoken),
        "tool_calls": [
            _as_call(call, ids[at] if at is not None else None, f"call_{number}")
            for number, (call, at) in enumerate(zip(calls, matched, strict=True))
        ],
    }
    return message, _fault(step, calls, matched)


def _fault(step: Step, calls: Sequence[Mapping[str, Any]], matched: Sequence[int | None]) -> str:
    strange = [call["name"] for call, at in zip(calls, matched, strict=True) if at is None]
    missed = [call["name"] for at, call in enumerate(step.calls) if at not in matched]
    if strange:
        return f"a call of {quoted(strange[0])} that was not recorded"
    return f"no call of {quoted(missed[0])}" if missed else ""


def _as_call(call: Mapping[str, Any], known: str | None, otherwise: str) -> dict[str, Json]:
    """A call in OpenAI's shape, with the id under which the recording answers it."""
    arguments = {k: v.value if isinstance(v, Written) else v for k, v in arguments_of(call).items()}
    function = {"name": call["name"], "arguments": arguments}
    return {"id": known or otherwise, "type": "function", "function": function}


def _complaint(message: Message, step: Step) -> Iterator[Message]:
    """What the model is told of a reply that left the recording: an error for every call, or that one is due."""
    calls = message.get("tool_calls") or ()
    if not calls:
        yield {"role": "user", "content": NO_CALL}
    matched = answered(step.calls, [call["function"] for call in calls])
    for call, at in zip(calls, matched, strict=True):
        yield {"role": "tool", "tool_call_id": call["id"], "content": NO_RESULT if at is None else NOT_RUN}
