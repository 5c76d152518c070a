"""Free-running replay: conversations cut into rollouts, in which the arm's own replies will be the history."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from kvquant_eval.core.conversation import reply_limit
from kvquant_eval.core.plan import request_seed
from kvquant_eval.core.records import Block, GoldenTurn, Json, OnDivergence, RenderedTurn, Rollout, Sampling, Step

Message = Mapping[str, Json]


def make_rollouts(
    turns: Sequence[GoldenTurn], rendered: Sequence[RenderedTurn], sampling: Sampling, on_divergence: OnDivergence
) -> tuple[Rollout, ...]:
    """The conversations of the turns that can be run, one rollout an epoch, in the order given.

    A rollout lasts as long as each turn's messages go on from the turn before: where the recording has another history
    or other tools, the next one begins. One turn alone is none: nothing can compound in it.
    """
    left_out = {turn.turn_id for turn in rendered if turn.skip}
    order: dict[str, list[GoldenTurn]] = {}
    for turn in turns:
        if turn.turn_id not in left_out:
            order.setdefault(turn.conversation_id, []).append(turn)
    return tuple(
        Rollout(
            conversation_id=name,
            epoch=epoch,
            steps=tuple(_steps(chain, sampling, epoch)),
            tools=chain[0].tools,
            on_divergence=on_divergence,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
        )
        for name, conversation in order.items()
        for chain in _chains(sorted(conversation, key=lambda turn: turn.turn_index))
        for epoch in range(sampling.epochs)
    )


def rollout_blocks(rollouts: Sequence[Rollout], most: int, first: int) -> tuple[Block, ...]:
    """Blocks of nearly equal size, of at most ``most`` rollouts that advance side by side, numbered from ``first``."""
    count = -(-len(rollouts) // most)
    edges = [len(rollouts) * n // max(1, count) for n in range(count + 1)]
    return tuple(Block(index=first + n, rollouts=tuple(rollouts[a:b])) for n, (a, b) in enumerate(pairwise(edges)))


def _chains(turns: Sequence[GoldenTurn]) -> Iterator[list[GoldenTurn]]:
    chain = list(turns[:1])
    for before, turn in pairwise(turns):
        if not _goes_on(before, turn):
            if len(chain) > 1:
                yield chain
            chain = []
        chain.append(turn)
    if len(chain) > 1:
        yield chain


def _goes_on(before: GoldenTurn, turn: GoldenTurn) -> bool:
    """Whether ``turn``'s messages are those of ``before``, a reply to them, and more."""
    n = len(before.messages)
    return (
        len(turn.messages) > n + 1
        and turn.messages[:n] == before.messages
        and turn.messages[n]["role"] == "assistant"
        and turn.tools == before.tools
    )


def _steps(chain: Sequence[GoldenTurn], sampling: Sampling, epoch: int) -> Iterator[Step]:
    asked: list[Message] = list(chain[0].messages)
    for turn, after in zip(chain, [*chain[1:], None], strict=True):
        tail = after.messages[len(turn.messages) :] if after else (turn.reference,)
        yield Step(
            turn_id=turn.turn_id,
            asked=tuple(asked),
            recorded=tail[0],
            calls=_calls(tail[0], turn.expected.get("calls")),
            max_tokens=turn.max_tokens,
            seed=request_seed(sampling.seed, turn.turn_id, epoch),
        )
        asked = []
        for index, message in enumerate(tail[1:]):
            if message["role"] != "assistant":
                asked.append(message)
                continue
            yield Step(
                turn_id="",
                asked=tuple(asked),
                recorded=message,
                calls=_calls(message, None),
                max_tokens=reply_limit(message),
                seed=request_seed(sampling.seed, f"{turn.turn_id}+{index}", epoch),
            )
            asked = []


def _calls(recorded: Message, expected: Sequence[Mapping[str, Json]] | None) -> tuple[Mapping[str, Json], ...]:
    """The calls that the recording answers; with other accepted values where the golden turn expects just them."""
    found = []
    for call in recorded.get("tool_calls") or ():
        given = call["function"].get("arguments") or {}
        found.append(
            {"name": call["function"]["name"], "arguments": json.loads(given) if isinstance(given, str) else given}
        )
    plain = [{"name": call["name"], "arguments": call["arguments"]} for call in expected or ()]
    return tuple(expected) if expected and plain == found else tuple(found)
