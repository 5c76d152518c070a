"""Outcomes of generated replies: empty, degenerate, truncated, ok."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvquant_eval.core.outcome import LOOP_REPEATS, LOOP_TOKENS, classify, loops
from kvquant_eval.core.records import Outcome

SPEECH = list(range(100))


@pytest.mark.parametrize(
    ("ids", "text", "finish", "outcome"),
    [
        ([1, 2], "hello", "stop", Outcome.OK),
        ([1, 2], "hello", "length", Outcome.TRUNCATED),
        ([], "", "stop", Outcome.EMPTY),
        ([1, 2], " \n\t ", "length", Outcome.EMPTY),
        ([7] * 24, "no no no", "length", Outcome.DEGENERATE),
        ([7] * 24, "no no no", "stop", Outcome.DEGENERATE),
        ([7] * 24, "  ", "length", Outcome.EMPTY),
    ],
)
def test_classify(ids: list[int], text: str, finish: str, outcome: Outcome) -> None:
    assert classify(ids, text, finish) is outcome


@pytest.mark.parametrize(
    ("ids", "loop"),
    [
        ([7] * 24, True),
        ([7] * 23, False),
        (SPEECH + [7] * 24, True),
        ([7] * 24 + SPEECH, False),  # only the tail counts
        ([1, 2, 3] * 8, True),
        ([1, 2, 3] * 7 + [1, 2], False),  # 23 tokens
        (SPEECH[:10] * 4, True),
        (SPEECH[:10] * 3, False),
        (SPEECH[:10] * 4 + SPEECH[:5], True),  # stopped in the middle of the phrase
        ([7] * 30 + [8], False),
        (SPEECH, False),
        ([], False),
    ],
)
def test_loops(ids: list[int], loop: bool) -> None:
    assert loops(ids) is loop


@given(st.lists(st.integers(0, 9), max_size=40), st.lists(st.integers(0, 9), min_size=1, max_size=12))
def test_any_phrase_often_enough_is_a_loop(before: list[int], phrase: list[int]) -> None:
    repeats = max(LOOP_REPEATS, -(-LOOP_TOKENS // len(phrase)))
    assert loops(before + phrase * repeats)


@given(st.integers(0, 60))
def test_tokens_that_never_return_are_no_loop(n: int) -> None:
    assert not loops(range(n))
