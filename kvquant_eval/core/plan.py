"""From rendered turns to blocks of requests: the same plan for every arm."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby

from kvquant_eval.core.codec import to_json
from kvquant_eval.core.records import Block, Measure, RenderedTurn, ReplayRequest, Sampling

BLOCK_REQUESTS = 64


def make_blocks(
    turns: Sequence[RenderedTurn], sampling: Sampling, block_requests: int = BLOCK_REQUESTS, generate: bool = True
) -> tuple[Block, ...]:
    """Cut the runnable turns into blocks of at most ``block_requests`` requests, whole conversations each.

    Turns come in the order given, conversations kept together; a conversation larger than a block gets one of its own.
    Each block has two waves: forced first, when every arm schedules the same tokens at the same steps, then generated,
    which finds the prompts in the prefix cache and whose lengths differ between arms without touching the forced
    scores. ``generate``: with the second.
    """
    groups = group_turns(turns, 1 + sampling.epochs * generate, block_requests)
    return tuple(_block(index, group, sampling, generate) for index, group in enumerate(groups))


def make_fresh_blocks(
    turns: Sequence[RenderedTurn], sampling: Sampling, epochs: int, block_requests: int = BLOCK_REQUESTS
) -> tuple[Block, ...]:
    """Blocks of generated replies alone: ``epochs`` more of each turn, with seeds that ``make_blocks`` never uses."""
    fresh = range(sampling.epochs, sampling.epochs + epochs)
    return tuple(
        Block(index=index, waves=(tuple(_request(turn, sampling, epoch) for turn in group for epoch in fresh),))
        for index, group in enumerate(group_turns(turns, epochs, block_requests))
    )


def group_turns(turns: Sequence[RenderedTurn], per_turn: int, block_requests: int) -> list[list[RenderedTurn]]:
    """The turns of each block, as ``make_blocks`` cuts them, where each takes ``per_turn`` requests."""
    runnable = [turn for turn in turns if not turn.skip]
    order = {turn.conversation_id: i for i, turn in reversed(list(enumerate(runnable)))}
    runnable.sort(key=lambda turn: (order[turn.conversation_id], turn.turn_index))
    groups: list[list[RenderedTurn]] = []
    for _, turns_of in groupby(runnable, key=lambda turn: turn.conversation_id):
        conversation = list(turns_of)
        if groups and (len(groups[-1]) + len(conversation)) * per_turn <= block_requests:
            groups[-1].extend(conversation)
        else:
            groups.append(conversation)
    return groups


def reorder(blocks: Sequence[Block], seed: int) -> tuple[Block, ...]:
    """The same blocks in another order, for the ``repeat`` control. Each keeps its index and content."""
    shuffled = list(blocks)
    random.Random(seed).shuffle(shuffled)
    return tuple(shuffled)


def plan_sha256(blocks: Iterable[Block]) -> str:
    """sha256 (hex) over every request of every block: what all arms replay."""
    total = hashlib.sha256()
    for block in blocks:
        total.update(to_json(block).encode() + b"\n")
    return total.hexdigest()


def request_seed(seed: int, turn_id: str, epoch: int) -> int:
    """31 bits from (base seed, turn, epoch): equal across arms, unrelated across turns."""
    raw = hashlib.sha256(f"{seed}/{turn_id}/{epoch}".encode()).digest()
    return int.from_bytes(raw[:4], "big") >> 1


def _block(index: int, turns: Sequence[RenderedTurn], sampling: Sampling, generate: bool) -> Block:
    forced = [_request(turn, sampling, 0) for turn in turns]
    forced = [
        replace(request, measure=Measure.FORCED, forced_ids=turn.golden_ids, max_tokens=len(turn.golden_ids))
        for request, turn in zip(forced, turns, strict=True)
    ]
    generated = [_request(turn, sampling, epoch) for turn in turns for epoch in range(sampling.epochs)]
    return Block(index=index, waves=(tuple(forced), tuple(generated)) if generate else (tuple(forced),))


def _request(turn: RenderedTurn, sampling: Sampling, epoch: int) -> ReplayRequest:
    return ReplayRequest(
        turn_id=turn.turn_id,
        measure=Measure.GENERATED,
        epoch=epoch,
        prompt_ids=turn.prompt_ids,
        forced_ids=(),
        max_tokens=turn.max_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        seed=request_seed(sampling.seed, turn.turn_id, epoch),
    )
