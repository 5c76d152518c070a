from __future__ import annotations

import pytest

from kvquant_eval.core.lint.fault import Placed
from kvquant_eval.core.lint.prefix import Poison, describe, find_poison, first_difference, reordered, reuse
from kvquant_eval.core.records import GoldenTurn, RenderedTurn
from tests.fakes.records import golden_turn, rendered_turn

TOOL = {"type": "function", "function": {"name": "f"}}


def prompt(turn_id: str, *ids: int, **changes: object) -> RenderedTurn:
    return rendered_turn(turn_id, conversation_id=turn_id, prompt_ids=ids, **changes)


def saying(*systems: str, conversations: int = 0) -> list[Placed]:
    """A turn for each system prompt, each in a conversation of its own or in one of ``conversations``."""
    turns = [
        golden_turn(
            f"t{number}",
            conversation_id=f"c{number % conversations if conversations else number}",
            messages=({"role": "system", "content": system}, {"role": "user", "content": f"question {number}"}),
        )
        for number, system in enumerate(systems)
    ]
    return [Placed(f"f:{number}", turn) for number, turn in enumerate(turns, 1)]


def kinds(turns: list[Placed]) -> list[str]:
    return [poison.kind for poison in find_poison(turns)]


def test_whole_blocks_are_reused_and_the_last_token_is_computed() -> None:
    """Blocks of 4. Forced: nothing, then 2 blocks; generated: 2 blocks of 9 tokens and 1 of 8, as the last is due."""
    found = reuse([prompt("a", *range(9)), prompt("b", *range(8), 99)], 64, 4)
    assert found.prompt_tokens == 2 * (9 + 9)
    assert found.cached_tokens == 0 + 8 + 8 + 8
    exact = reuse([prompt("a", *range(8))], 64, 4)
    assert exact.cached_tokens == 0 + 4  # of 8 tokens the second block holds the last one


def test_a_difference_costs_all_that_follows() -> None:
    found = reuse([prompt("a", *range(16)), prompt("b", 0, 1, 2, 3, 77, *range(5, 16))], 64, 4)
    assert found.cached_tokens == 4 + 12 + 12  # forced: one block; generated: all but the last block


def test_the_cache_is_reset_between_blocks_of_the_plan() -> None:
    turns = [prompt("a", *range(9)), prompt("b", *range(9))]
    assert reuse(turns, 64, 4).cached_tokens == 24
    assert reuse(turns, 2, 4).cached_tokens == 16  # each alone: only its generated request finds something


def test_a_decoded_reply_is_there_for_the_next_wave() -> None:
    """The second turn's prompt holds the first one's reply: 4 + 4 tokens."""
    first = rendered_turn("a", prompt_ids=(1, 2, 3, 4), golden_ids=(5, 6, 7, 8))
    second = rendered_turn("b", prompt_ids=(1, 2, 3, 4, 5, 6, 7, 8, 9), turn_index=1)
    assert reuse([first, second], 64, 4).cached_tokens == 0 + 4 + 0 + 8


def test_no_turns_have_no_share() -> None:
    assert reuse([], 64, 4).share == 0.0


def test_conversations_of_like_beginning_are_put_side_by_side() -> None:
    turns = [at.turn for at in saying("one", "two", "one", "two")]
    assert [turn.turn_id for turn in reordered(turns)] == ["t0", "t2", "t1", "t3"]


def test_turns_of_a_conversation_stay_together_and_classes_too() -> None:
    turns = [at.turn for at in saying("one", "two", "one", "two", conversations=2)]
    other = golden_turn("x", workload="faq", conversation_id="x", messages=turns[0].messages)
    assert [turn.turn_id for turn in reordered([*turns[:2], other, *turns[2:]])] == ["t0", "t2", "t1", "t3", "x"]


@pytest.mark.parametrize(
    ("kind", "systems"),
    [
        ("a clock", ("It is 2026-03-01T09:15:02Z. Help.", "It is 2026-03-01T09:15:07Z. Help.")),
        ("a clock", ("It is 9:15 am. Help.", "It is 10:02 pm. Help.")),
        ("a clock", ("Today is 2026-03-01. Help.", "Today is 2026-03-02. Help.")),
        ("a clock", ("now=1767225600 Help.", "now=1767225617 Help.")),
        (
            "a UUID",
            ("Session 3f2b8c1e-1111-4222-8333-444455556666.", "Session 9a2b8c1e-1111-4222-8333-444455556666."),
        ),
        ("a random id", ("Trace req-8fa93b1c. Help.", "Trace req-0b1c77aa. Help.", "Trace req-55aa01fe. Help.")),
        ("a counter", ("Request 1. Help.", "Request 2. Help.", "Request 3. Help.")),
    ],
)
def test_what_changes_from_request_to_request(kind: str, systems: tuple[str, ...]) -> None:
    assert kinds(saying(*systems)) == [kind]


@pytest.mark.parametrize(
    "systems",
    [
        ("You help.", "You help."),
        (
            "A barrel is 53 litres, a trough 23.",
            "A barrel is 12 litres, a trough 88.",
            "A barrel is 9 litres, a trough 5.",
        ),
        ("Depot 7 is open.", "Depot 8 is open."),  # two values: what the prompts are about
        ("Returns go to RX-27-NORTH.", "Returns go to RX-28-SOUTH."),
        ("Facts of a library.", "Facts of a clinic."),
    ],
)
def test_what_the_prompts_are_about_is_no_poison(systems: tuple[str, ...]) -> None:
    assert kinds(saying(*systems)) == []


def test_a_clock_that_moves_within_a_conversation() -> None:
    assert kinds(saying("At 09:15:01.", "At 09:15:09.", conversations=1)) == ["a clock"]


def test_a_clock_in_a_tool_or_in_the_first_message() -> None:
    tools = [({**TOOL, "function": {"name": "f", "description": f"as of 2026-01-0{day}"}},) for day in (1, 2)]
    assert kinds([Placed("f", golden_turn(f"t{i}", tools=tool)) for i, tool in enumerate(tools)]) == ["a clock"]
    asked = [({"role": "user", "content": f"[09:0{i}] go"},) for i in (1, 2)]
    assert kinds([Placed("f", golden_turn(f"t{i}", messages=m)) for i, m in enumerate(asked)]) == ["a clock"]


def test_classes_are_looked_at_apart() -> None:
    a, b = saying("At 09:15:01.", "At 09:15:09.")
    assert kinds([a, Placed(b.place, golden_turn("b", workload="faq", messages=b.turn.messages))]) == []


def test_healed_turns_say_the_same_in_their_beginning_only() -> None:
    turns = saying("At 09:15:01.", "At 09:15:09.")
    turn = turns[1].turn
    said = (*turn.messages, {"role": "assistant", "content": "It was 09:15:09."}, {"role": "user", "content": "?"})
    [poison] = find_poison([turns[0], Placed("f:2", golden_turn("t1", messages=said))])
    assert poison.sample == "09:15:01"
    assert [message["content"] for message in poison.healed[1].messages] == [
        *("At 09:15:01.", "question 1", "It was 09:15:09.", "?")
    ]


def test_the_first_difference() -> None:
    assert first_difference([prompt("a", 1, 2, 3), prompt("b", 1, 2, 4), prompt("c", 1, 2)]) == 2
    assert first_difference([prompt("a", 1, 2), prompt("b", 1, 2)]) == 2


def test_the_line_has_place_and_cost() -> None:
    turns: tuple[GoldenTurn, ...] = ()
    poison = Poison(kind="a clock", sample="09:15", turns=tuple(saying("a", "b")), healed=turns)
    assert describe(poison, 40, 1234, 10_000) == (
        "a prefix that turns share, got a clock ('09:15') at token 40 of 2 turns: 1,234 cached tokens lost in a replay "
        "(12% of its prompt tokens); move it behind what is shared, or take it out"
    )
