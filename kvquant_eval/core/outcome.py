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
    ids = list(token_ids)
    for period in range(1, len(ids) // LOOP_REPEATS + 1):
        length = max(LOOP_TOKENS, period * LOOP_REPEATS)
        if length <= len(ids) and all(a == b for a, b in zip(ids[-length:], ids[-length + period :], strict=False)):
            return True
    return False
