"""What became of a generated reply, judged from its tokens and text alone."""

from __future__ import annotations

from collections.abc import Sequence

from kvquant_eval.core.records import Outcome

LOOP_REPEATS = 4
LOOP_TOKENS = 24


def classify(token_ids: Sequence[int], text: str, finish_reason: str) -> Outcome:
    """EMPTY, DEGENERATE (its tail is a loop), TRUNCATED (hit the token limit) or OK, in this order."""
    if not text.strip():
        return Outcome.EMPTY
    if loops(token_ids):
        return Outcome.DEGENERATE
    return Outcome.TRUNCATED if finish_reason == "length" else Outcome.OK


def loops(token_ids: Sequence[int]) -> bool:
    """Whether the tail repeats one phrase at least ``LOOP_REPEATS`` times over at least ``LOOP_TOKENS`` tokens."""
    backwards = list(token_ids)[::-1]
    return any(
        length >= max(LOOP_TOKENS, LOOP_REPEATS * (length - border))
        for length, border in enumerate(borders(backwards), 1)
    )


def borders(ids: Sequence[int]) -> list[int]:
    """The longest border of every prefix (Knuth, Morris, Pratt 1977): its length less the border is its period."""
    borders, border = [0] * len(ids), 0
    for index in range(1, len(ids)):
        while border and ids[index] != ids[border]:
            border = borders[border - 1]
        border += ids[index] == ids[border]
        borders[index] = border
    return borders
