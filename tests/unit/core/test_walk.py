"""Free-running conversations: own replies as history, answers from the recording, and what follows a divergence."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from kvquant_eval.core.codec import DataError
from kvquant_eval.core.records import GoldenTurn, Measure, OnDivergence, Outcome, Replay, Rollout, Sampling
from kvquant_eval.core.rollout import make_rollouts
from kvquant_eval.core.walk import NO_CALL, NO_RESULT, NOT_RUN, Walk, read_reply
from tests.fakes.records import reply
from tests.unit.core.test_rollout import FIRST, SECOND, assistant, calling, tool, turn, user

TOOLS = ({"type": "function", "function": {"name": "get", "parameters": {}}},)
STOP, GOLDEN, ERROR = OnDivergence.STOP, OnDivergence.GOLDEN, OnDivergence.ERROR_MESSAGE


def ids(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
    return tuple(json.dumps([*messages, *tools]).encode())


def seen(walk: Walk) -> list[Any]:
    """The messages behind the prompt that is due, without the tools."""
    assert walk.due is not None
    return [message for message in json.loads(bytes(walk.due.prompt_ids)) if "role" in message]


def rollout(*turns: GoldenTurn, on_divergence: OnDivergence = STOP) -> Rollout:
    (made,) = make_rollouts(turns, (), Sampling(), on_divergence)
    return made


def say(walk: Walk, text: str, **changes: Any) -> None:
    assert walk.due is not None
    walk.take(reply(text, turn_id=walk.due.turn_id, measure=walk.due.measure, **changes))


def hermes(*calls: tuple[str, Any]) -> str:
    return "\n".join(
        f"<tool_call>\n{json.dumps({'name': name, 'arguments': given})}\n</tool_call>" for name, given in calls
    )


def agent(on_divergence: OnDivergence) -> Rollout:
    """A call, its result, an answer; then two parallel calls, and an answer."""
    one = calling("get", {"key": "a"}, "c1")
    two = {**calling("get", {"key": "b"}, "c2"), "content": ""}
    two["tool_calls"] = [*two["tool_calls"], *calling("get", '{"key": "c"}', "c3")["tool_calls"]]
    t0 = [user("a?")]
    t1 = [*t0, one, tool("1")]
    t2 = [*t1, assistant("It is 1."), user("b and c?")]
    t3 = [*t2, two, tool("2", "c2"), tool("3", "c3")]
    return rollout(
        turn(0, t0, one, tools=TOOLS),
        turn(1, t1, assistant("It is 1."), tools=TOOLS),
        turn(2, t2, two, tools=TOOLS),
        turn(3, t3, assistant("They are 2 and 3."), tools=TOOLS),
        on_divergence=on_divergence,
    )


def walk_golden(walk: Walk) -> None:
    for text in (
        hermes(("get", {"key": "a"})),
        "It is 1.",
        hermes(("get", {"key": "b"}), ("get", {"key": "c"})),
        "They are 2 and 3.",
    ):
        say(walk, text)


def outcomes(walk: Walk) -> list[tuple[str, Outcome, str]]:
    return [(r.turn_id, r.outcome, r.divergence) for r in walk.replays]


def between(replay: Replay) -> list[str]:
    return [reply.text for reply in replay.between]


def test_the_history_is_what_the_arm_said() -> None:
    walk = Walk(rollout(FIRST, SECOND), ids, 10_000)
    say(walk, "my own A")
    assert seen(walk) == [*FIRST.messages, assistant("my own A"), user("b?")]
    say(walk, "my own B")
    assert walk.due is None
    assert [(r.turn_id, r.measure, r.text, r.divergence) for r in walk.replays] == [
        ("t0", Measure.FREE_RUNNING, "my own A", ""),
        ("t1", Measure.FREE_RUNNING, "my own B", ""),
    ]


def test_thoughts_are_no_history() -> None:
    walk = Walk(rollout(FIRST, SECOND), ids, 10_000)
    say(walk, "<think>hm</think>A")
    assert seen(walk)[2] == assistant("A")
    other = Walk(rollout(FIRST, SECOND), ids, 10_000)
    say(other, "<think>never done")
    assert seen(other)[2] == assistant("")


def test_replies_that_answer_no_golden_turn_are_kept_beside_the_next_one() -> None:
    third = turn(2, [*SECOND.messages, assistant("B"), user("c?")], assistant("C"))
    walk = Walk(rollout(FIRST, third), ids, 10_000)
    for text in ("x", "y", "z"):
        say(walk, text)
    assert [(r.turn_id, r.text, between(r)) for r in walk.replays] == [("t0", "x", []), ("t2", "z", ["y"])]


@pytest.mark.parametrize("mode", list(OnDivergence))
def test_recorded_calls_get_the_recorded_results(mode: OnDivergence) -> None:
    walk = Walk(agent(mode), ids, 100_000)
    say(walk, hermes(("get", {"key": "a"})))
    assert seen(walk) == [user("a?"), calling("get", {"key": "a"}, "c1"), tool("1")]
    walk = Walk(agent(mode), ids, 100_000)
    walk_golden(walk)
    assert [divergence for _, _, divergence in outcomes(walk)] == [""] * 4
    assert walk.due is None


def test_parallel_calls_are_unordered_and_keep_their_ids() -> None:
    walk = Walk(agent(STOP), ids, 100_000)
    say(walk, hermes(("get", {"key": "a"})))
    say(walk, "It is 1.")
    say(walk, hermes(("get", {"key": "c"}), ("get", {"key": "b"})))
    assert [call["id"] for call in seen(walk)[-3]["tool_calls"]] == ["c3", "c2"]
    assert seen(walk)[-2:] == [tool("2", "c2"), tool("3", "c3")]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("I do not know.", "no call of 'get'"),
        (hermes(("get", {"key": "z"})), "a call of 'get' that was not recorded"),
        (hermes(("put", {"key": "a"})), "a call of 'put' that was not recorded"),
        (hermes(("get", {"key": "a"}), ("get", {"key": "a"})), "a call of 'get' that was not recorded"),
        ('<tool_call>{"name": "get", "arguments"</tool_call>', "bad JSON in a tool call: "),
    ],
)
def test_stop_ends_the_conversation_at_the_first_other_call(text: str, fault: str) -> None:
    walk = Walk(agent(STOP), ids, 100_000)
    say(walk, text)
    assert walk.due is None
    (at, *rest) = outcomes(walk)
    assert (at[0], at[1]) == ("t0", Outcome.OK)
    assert at[2].startswith(fault)
    assert [(t, o, d) for t, o, d in rest] == [
        (t, Outcome.DIVERGED, f"the conversation ended: {at[2]}") for t in ("t1", "t2", "t3")
    ]


def test_one_of_two_parallel_calls_is_not_enough() -> None:
    walk = Walk(agent(STOP), ids, 100_000)
    say(walk, hermes(("get", {"key": "a"})))
    say(walk, "It is 1.")
    say(walk, hermes(("get", {"key": "b"})))
    assert [d for _, _, d in outcomes(walk)][2:] == ["no call of 'get'", "the conversation ended: no call of 'get'"]


def test_a_call_where_the_recording_has_an_answer_leaves_it() -> None:
    walk = Walk(agent(STOP), ids, 100_000)
    say(walk, hermes(("get", {"key": "a"})))
    say(walk, hermes(("get", {"key": "b"})))
    assert walk.due is None
    assert outcomes(walk)[1] == ("t1", Outcome.OK, "a call of 'get' that was not recorded")


def test_golden_goes_on_with_the_recorded_reply() -> None:
    walk = Walk(agent(GOLDEN), ids, 100_000)
    say(walk, "I do not know.")
    assert seen(walk) == [user("a?"), calling("get", {"key": "a"}, "c1"), tool("1")]
    say(walk, "It is 1, I say.")
    assert seen(walk)[-2] == assistant("It is 1, I say.")
    say(walk, "no idea")
    say(walk, "They are 2 and 3.")
    assert outcomes(walk) == [
        ("t0", Outcome.OK, "no call of 'get'"),
        ("t1", Outcome.OK, ""),
        ("t2", Outcome.OK, "no call of 'get'"),
        ("t3", Outcome.OK, ""),
    ]


def test_error_message_asks_once_more_and_keeps_the_first_reply() -> None:
    walk = Walk(agent(ERROR), ids, 100_000)
    say(walk, hermes(("get", {"key": "z"})))
    assert seen(walk) == [user("a?"), calling("get", {"key": "z"}, "call_0"), tool(NO_RESULT, "call_0")]
    say(walk, hermes(("get", {"key": "a"})))
    assert seen(walk)[-2:] == [calling("get", {"key": "a"}, "c1"), tool("1")]
    say(walk, "It is 1.")
    assert [(r.turn_id, r.text, r.divergence, between(r)) for r in walk.replays] == [
        ("t0", hermes(("get", {"key": "z"})), "a call of 'get' that was not recorded", []),
        ("t1", "It is 1.", "", [hermes(("get", {"key": "a"}))]),
    ]


def test_error_message_names_what_was_not_run_and_what_is_due() -> None:
    walk = Walk(agent(ERROR), ids, 100_000)
    say(walk, hermes(("get", {"key": "a"}), ("get", {"key": "z"})))
    assert [m["content"] for m in seen(walk)[-2:]] == [NOT_RUN, NO_RESULT]
    silent = Walk(agent(ERROR), ids, 100_000)
    say(silent, "Well.")
    assert seen(silent)[1:] == [assistant("Well."), user(NO_CALL)]


def test_error_message_ends_after_the_second_other_reply() -> None:
    walk = Walk(agent(ERROR), ids, 100_000)
    say(walk, "Well.")
    say(walk, hermes(("get", {"key": "z"})))
    assert walk.due is None
    assert [(o, d) for _, o, d in outcomes(walk)][:2] == [
        (Outcome.OK, "no call of 'get'"),
        (Outcome.DIVERGED, "the conversation ended: a call of 'get' that was not recorded"),
    ]
    assert len(walk.replays) == 4


def test_a_step_between_that_diverges_is_named_at_the_next_golden_turn() -> None:
    one = calling("get", {"key": "a"})
    t1 = [user("a?"), assistant("which?"), user("a!"), one, tool("1")]
    made = rollout(
        turn(0, [user("a?")], assistant("which?"), tools=TOOLS),
        turn(2, t1, assistant("1"), tools=TOOLS),
        on_divergence=GOLDEN,
    )
    walk = Walk(made, ids, 10_000)
    for text in ("which?", "no", "1"):
        say(walk, text)
    assert [(r.turn_id, r.divergence, between(r)) for r in walk.replays] == [
        ("t0", "", []),
        ("t2", "no call of 'get'", ["no"]),
    ]
    stopped = Walk(replace(made, on_divergence=STOP), ids, 10_000)
    say(stopped, "which?")
    say(stopped, "no")
    assert outcomes(stopped)[1] == ("t2", Outcome.DIVERGED, "the conversation ended: no call of 'get'")


def test_without_tools_no_reply_leaves_the_recording() -> None:
    walk = Walk(rollout(FIRST, SECOND), ids, 10_000)
    text = hermes(("get", {"key": "a"}))
    say(walk, text)
    assert seen(walk)[2] == assistant(text)


def test_what_does_not_fit_ends_the_conversation_in_this_arm() -> None:
    first = Walk(rollout(FIRST, SECOND), ids, 10_000)
    assert first.due is not None
    room = len(first.due.prompt_ids) + 9
    walk = Walk(rollout(FIRST, SECOND), ids, room)
    say(walk, "x")
    (_, ended) = walk.replays
    assert (ended.outcome, ended.text) == (Outcome.DIVERGED, "")
    assert ended.divergence.startswith("the conversation ended: it needs ")
    assert ended.divergence.endswith(f"tokens, the context is {room}")
    assert [r.outcome for r in Walk(rollout(FIRST, SECOND), ids, room - 1).replays] == [Outcome.DIVERGED] * 2


def test_a_second_chance_that_does_not_fit_keeps_the_first_reply() -> None:
    made = agent(ERROR)
    due = Walk(made, ids, 100_000).due
    assert due is not None
    walk = Walk(made, ids, len(due.prompt_ids) + 9)
    say(walk, "Well.")
    assert [(r.turn_id, r.outcome, r.text) for r in walk.replays][:2] == [
        ("t0", Outcome.OK, "Well."),
        ("t1", Outcome.DIVERGED, ""),
    ]
    assert walk.replays[0].divergence == "no call of 'get'"


def test_a_template_that_refuses_the_history_ends_the_conversation() -> None:
    def strict(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        if messages[-2]["content"] == "odd":
            raise DataError("conversation: the chat template must render, got an error; correct the template")
        return ids(messages, tools)

    walk = Walk(rollout(FIRST, SECOND), strict, 10_000)
    say(walk, "odd")
    assert walk.replays[1].divergence.startswith("the chat template refuses the conversation: ")


def test_a_reply_that_is_no_evidence_takes_the_rest_with_it() -> None:
    walk = Walk(rollout(FIRST, SECOND), ids, 10_000)
    say(walk, "", outcome=Outcome.INFRA_ERROR, error="the engine took 3 of 9 prompt tokens")
    assert walk.due is None
    assert [(r.outcome, r.error, r.divergence) for r in walk.replays] == [
        (Outcome.INFRA_ERROR, "the engine took 3 of 9 prompt tokens", ""),
        (Outcome.INFRA_ERROR, "an earlier reply is no evidence: the engine took 3 of 9 prompt tokens", ""),
    ]


def test_every_golden_turn_gets_just_one_replay_whatever_is_said() -> None:
    texts = [
        "",
        "I do not know.",
        hermes(("get", {"key": "a"})),
        "<think>",
        '<tool_call>{"a"',
        "[TOOL_CALLS]x{}",
        "{" * 99,
    ]
    for mode in OnDivergence:
        for start in range(len(texts)):
            walk, n = Walk(agent(mode), ids, 100_000), start
            while walk.due:
                say(walk, texts[n % len(texts)])
                n += 1
            assert [r.turn_id for r in walk.replays] == ["t0", "t1", "t2", "t3"]


@pytest.mark.parametrize(
    ("text", "content", "arguments"),
    [
        ('Let me see.\n<tool_call>{"name": "get", "arguments": {"key": "a"}}</tool_call>', "Let me see.", {"key": "a"}),
        ("<tool_call>\n<function=get>\n<parameter=key>\na\n</parameter>\n</function>\n</tool_call>", "", {"key": "a"}),
        ('[TOOL_CALLS]get{"key": "a"}', "", {"key": "a"}),
        ('{"name": "get", "parameters": {"key": "a"}}', "", {"key": "a"}),
        ('Sure:\n```json\n{"name": "get", "arguments": {"key": "a"}}\n```', "Sure:", {"key": "a"}),
    ],
)
def test_calls_of_every_format_become_the_same_message(text: str, content: str, arguments: Any) -> None:
    step = agent(STOP).steps[0]
    message, fault = read_reply(text, step, TOOLS)
    assert fault == ""
    assert message["content"] == content
    assert message["tool_calls"] == calling("get", arguments, "c1")["tool_calls"]


def test_a_replay_of_an_engine_is_kept_as_it_is() -> None:
    walk = Walk(rollout(FIRST, SECOND), ids, 10_000)
    given: dict[str, Any] = {"token_ids": (1, 2), "prompt_tokens": 7, "cached_tokens": 3, "finish_reason": "length"}
    say(walk, "A", outcome=Outcome.TRUNCATED, **given)
    assert walk.replays == [
        Replay(turn_id="t0", measure=Measure.FREE_RUNNING, epoch=0, outcome=Outcome.TRUNCATED, text="A", **given)
    ]
