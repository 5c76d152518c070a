"""Conversations cut into rollouts."""

from __future__ import annotations

from typing import Any

from kvquant_eval.core.plan import request_seed
from kvquant_eval.core.records import GoldenTurn, Measure, OnDivergence, Rollout, Sampling
from kvquant_eval.core.rollout import make_rollouts, rollout_blocks
from tests.fakes.records import golden_turn, rendered_turn

GREEDY = Sampling()
SYSTEM = {"role": "system", "content": "Help."}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def calling(name: str, arguments: Any, call_id: str = "c1") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


def tool(text: str, call_id: str = "c1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def turn(index: int, messages: list[dict[str, Any]], reference: dict[str, Any], **changes: Any) -> GoldenTurn:
    return golden_turn(
        f"t{index}", turn_index=index, messages=tuple(messages), reference=reference, **{"max_tokens": 9, **changes}
    )


def cut(*turns: GoldenTurn, sampling: Sampling = GREEDY, skip: tuple[str, ...] = ()) -> tuple[Rollout, ...]:
    rendered = [rendered_turn(t.turn_id, skip="too long" if t.turn_id in skip else "") for t in turns]
    return make_rollouts(turns, rendered, sampling, OnDivergence.STOP)


FIRST = turn(0, [SYSTEM, user("a?")], assistant("A"))
SECOND = turn(1, [SYSTEM, user("a?"), assistant("A"), user("b?")], assistant("B"))


def test_each_step_is_asked_what_is_new_since_the_reply_before() -> None:
    (rollout,) = cut(SECOND, FIRST)
    assert [(s.turn_id, s.asked, s.recorded, s.max_tokens) for s in rollout.steps] == [
        ("t0", (SYSTEM, user("a?")), assistant("A"), 9),
        ("t1", (user("b?"),), assistant("B"), 9),
    ]
    assert [s.seed for s in rollout.steps] == [request_seed(0, "t0", 0), request_seed(0, "t1", 0)]


def test_recorded_replies_that_are_no_golden_turns_are_steps_too() -> None:
    history = [*SECOND.messages, assistant("B"), user("c?"), assistant("C" * 100), user("d?")]
    (rollout,) = cut(FIRST, turn(3, history, assistant("D")))
    assert [(s.turn_id, len(s.asked), s.recorded["content"][:1], s.max_tokens) for s in rollout.steps] == [
        ("t0", 2, "A", 9),
        ("", 1, "B", 32),
        ("", 1, "C", 50),
        ("t3", 1, "D", 9),
    ]
    assert len({s.seed for s in rollout.steps}) == 4


def test_replies_before_the_first_golden_turn_stay_as_recorded() -> None:
    third = turn(2, [*SECOND.messages, assistant("B"), user("c?")], assistant("C"))
    (rollout,) = cut(SECOND, third)
    assert rollout.steps[0].asked == SECOND.messages


def test_one_turn_alone_is_no_rollout() -> None:
    assert cut(FIRST) == ()
    assert cut(FIRST, SECOND, skip=("t1",)) == ()


def test_another_history_begins_another_rollout() -> None:
    other = [SYSTEM, user("summary of a and b"), assistant("yes"), user("c?")]
    third = turn(2, other, assistant("C"))
    fourth = turn(3, [*other, assistant("C"), user("d?")], assistant("D"))
    assert [[s.turn_id for s in r.steps] for r in cut(FIRST, SECOND, third, fourth)] == [["t0", "t1"], ["t2", "t3"]]
    assert cut(FIRST, turn(1, [SYSTEM, user("x?"), assistant("A"), user("b?")], assistant("B"))) == ()


def test_other_tools_begin_another_rollout() -> None:
    tools = ({"type": "function", "function": {"name": "f"}},)
    assert cut(FIRST, turn(1, list(SECOND.messages), assistant("B"), tools=tools)) == ()


def test_a_conversation_that_nobody_asked_in_between_is_no_continuation() -> None:
    assert cut(FIRST, turn(1, [*FIRST.messages, user("still there?")], assistant("B"))) == ()


def test_every_epoch_is_a_rollout_of_its_own() -> None:
    first, second = cut(FIRST, SECOND, sampling=Sampling(temperature=0.7, epochs=2, seed=5))
    assert (first.epoch, second.epoch, first.temperature) == (0, 1, 0.7)
    assert [r.steps[0].seed for r in (first, second)] == [request_seed(5, "t0", 0), request_seed(5, "t0", 1)]


def test_the_recorded_calls_are_those_that_are_answered() -> None:
    call = calling("add", '{"a": 1}')
    first = turn(
        0, [user("1?")], call, expected={"calls": [{"name": "add", "arguments": {"a": 1}, "accept": {"b": [2]}}]}
    )
    second = turn(1, [user("1?"), call, tool("1"), user("2?"), calling("sub", {"a": 2}), tool("2")], assistant("done"))
    (rollout,) = cut(first, second)
    assert [s.calls for s in rollout.steps] == [
        ({"name": "add", "arguments": {"a": 1}, "accept": {"b": [2]}},),
        ({"name": "sub", "arguments": {"a": 2}},),
        (),
    ]
    assert rollout.steps[1].asked == (tool("1"), user("2?"))


def test_what_the_turn_expects_counts_only_where_it_is_what_was_recorded() -> None:
    first = turn(0, [user("1?")], assistant("x"), expected={"calls": [{"name": "add", "arguments": {"a": 1}}]})
    second = turn(1, [user("1?"), calling("add", {"a": 7}), tool("7")], assistant("done"))
    assert cut(first, second)[0].steps[0].calls == ({"name": "add", "arguments": {"a": 7}},)


def test_blocks_have_nearly_equal_size() -> None:
    rollouts = cut(FIRST, SECOND) * 10
    blocks = rollout_blocks(rollouts, most=4, first=7)
    assert [(b.index, len(b.rollouts)) for b in blocks] == [(7, 3), (8, 3), (9, 4)]
    assert [r for b in blocks for r in b.rollouts] == list(rollouts)
    assert rollout_blocks((), 4, 7) == ()


def test_a_block_asks_for_its_golden_turns_only() -> None:
    history = [*SECOND.messages, assistant("B"), user("c?")]
    (block,) = rollout_blocks(cut(FIRST, turn(2, history, assistant("C"))), 4, 0)
    assert block.keys == (("t0", Measure.FREE_RUNNING, 0), ("t2", Measure.FREE_RUNNING, 0))
