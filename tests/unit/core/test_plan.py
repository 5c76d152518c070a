"""Blocks: whole conversations, within the limit, forced before generated, the same for every arm."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from kvquant_eval.core.plan import make_blocks, reorder, request_seed
from kvquant_eval.core.records import Measure, RenderedTurn, Sampling
from tests.fakes.records import rendered_turn

GREEDY = Sampling()


def conversation(name: str, turns: int, **changes: object) -> list[RenderedTurn]:
    return [rendered_turn(f"{name}{i}", conversation_id=name, turn_index=i, **changes) for i in range(turns)]


def test_each_turn_is_forced_once_and_generated_once() -> None:
    (block,) = make_blocks(conversation("a", 2), GREEDY)
    forced, generated = block.waves
    assert [(r.turn_id, r.measure, r.forced_ids, r.max_tokens) for r in forced] == [
        ("a0", Measure.FORCED, (4, 5), 2),
        ("a1", Measure.FORCED, (4, 5), 2),
    ]
    assert [(r.turn_id, r.measure, r.forced_ids, r.max_tokens) for r in generated] == [
        ("a0", Measure.GENERATED, (), 8),
        ("a1", Measure.GENERATED, (), 8),
    ]
    assert block.requests == forced + generated


def test_sampling_goes_into_every_request_and_epochs_multiply() -> None:
    sampling = Sampling(temperature=0.7, top_p=0.9, top_k=40, epochs=3, seed=11)
    (block,) = make_blocks(conversation("a", 1), sampling)
    forced, generated = block.waves
    assert [r.epoch for r in generated] == [0, 1, 2]
    assert len(forced) == 1
    assert {(r.temperature, r.top_p, r.top_k) for r in generated} == {(0.7, 0.9, 40)}
    assert [r.seed for r in generated] == [request_seed(11, "a0", epoch) for epoch in range(3)]


def test_blocks_fill_up_and_never_split_a_conversation() -> None:
    turns = conversation("a", 3) + conversation("b", 3) + conversation("c", 3)
    blocks = make_blocks(turns, GREEDY, block_requests=12)
    assert [[r.turn_id for r in b.waves[0]] for b in blocks] == [
        ["a0", "a1", "a2", "b0", "b1", "b2"],
        ["c0", "c1", "c2"],
    ]
    assert [b.index for b in blocks] == [0, 1]


def test_a_conversation_larger_than_a_block_gets_one_of_its_own() -> None:
    blocks = make_blocks(conversation("a", 2) + conversation("b", 9) + conversation("c", 2), GREEDY, 8)
    assert [len(b.requests) for b in blocks] == [4, 18, 4]


def test_scattered_turns_of_a_conversation_come_together_in_order() -> None:
    a, b = conversation("a", 3), conversation("b", 2)
    (block,) = make_blocks([a[2], b[0], a[0], b[1], a[1]], GREEDY)
    assert [r.turn_id for r in block.waves[0]] == ["a0", "a1", "a2", "b0", "b1"]


def test_a_turn_that_does_not_fit_is_in_no_block() -> None:
    turns = [*conversation("a", 1), rendered_turn("long", skip="needs 9000 tokens")]
    assert {r.turn_id for b in make_blocks(turns, GREEDY) for r in b.requests} == {"a0"}
    assert make_blocks(turns[1:], GREEDY) == ()


def test_the_order_of_the_repeat_changes_no_block() -> None:
    blocks = make_blocks([t for name in "abcdefgh" for t in conversation(name, 1)], GREEDY, 2)
    shuffled = reorder(blocks, 1)
    assert shuffled != blocks
    assert sorted(shuffled, key=lambda block: block.index) == list(blocks)
    assert reorder(blocks, 1) == shuffled


def test_seeds_are_31_bits_and_apart() -> None:
    seeds = [request_seed(0, f"t{i}", epoch) for i in range(200) for epoch in range(3)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert request_seed(0, "t", 0) == request_seed(0, "t", 0)
    assert request_seed(0, "t", 0) != request_seed(1, "t", 0)


@given(st.lists(st.integers(1, 9), max_size=20), st.integers(2, 40), st.integers(1, 3))
def test_every_turn_runs_once_and_blocks_stay_within_the_limit(sizes: list[int], limit: int, epochs: int) -> None:
    turns = [t for c, size in enumerate(sizes) for t in conversation(f"c{c}-", size)]
    blocks = make_blocks(turns, Sampling(temperature=1.0, epochs=epochs), limit)
    counted = Counter((r.turn_id, r.measure) for b in blocks for r in b.requests)
    assert counted == {
        **{(t.turn_id, Measure.FORCED): 1 for t in turns},
        **{(t.turn_id, Measure.GENERATED): epochs for t in turns},
    }
    homes: dict[str, set[int]] = {}
    for block in blocks:
        conversations = {r.turn_id.split("-")[0] for r in block.requests}
        assert len(block.requests) <= limit or len(conversations) == 1
        for name in conversations:
            homes.setdefault(name, set()).add(block.index)
    assert all(len(found) == 1 for found in homes.values())
