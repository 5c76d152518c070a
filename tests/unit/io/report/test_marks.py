"""What is marked in two replies, where they part, and what is kept of long ones."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvquant_eval.io.report.marks import AROUND_CHARS, MOST_WORDS, Pieces, differing, excerpt, parting


def marked(pieces: Pieces) -> list[str]:
    return [text for text, differs in pieces if differs]


@pytest.mark.parametrize(
    ("left", "right", "lacking", "added"),
    [
        ("3 + 2 = 5", "3 + 2 = 6", ["5"], ["6"]),
        ("the cat sat", "the big cat sat", [], ["big"]),
        ("one two three", "one three", ["two"], []),
        ("same words", "same words", [], []),
        ("", "all new", [], ["all new"]),
        ("a  b", "a b", ["a"], ["a"]),
    ],
)
def test_words_that_the_other_lacks_are_marked(left: str, right: str, lacking: list[str], added: list[str]) -> None:
    one, other = differing(left, right)
    assert (marked(one), marked(other)) == (lacking, added)


@given(st.text(alphabet="ab \n.", max_size=80), st.text(alphabet="ab \n.", max_size=80))
def test_pieces_are_the_texts_and_what_is_not_marked_is_common(left: str, right: str) -> None:
    one, other = differing(left, right)
    assert "".join(text for text, _ in one) == left
    assert "".join(text for text, _ in other) == right
    plain = ["".join("".join(text.split()) for text, differs in side if not differs) for side in (one, other)]
    assert plain[0] == plain[1]


def test_behind_the_limit_the_rest_is_marked_whole() -> None:
    left = "x " + "a b " * MOST_WORDS + "tail"
    right = "y " + "a b " * MOST_WORDS + "end"
    one, _ = differing(left, right)
    assert marked(one)[-1].endswith("a b tail")
    assert len(marked(one)[-1].split()) == 2 * MOST_WORDS + 2 - MOST_WORDS
    assert sum(len(text.split()) for text, differs in one if not differs) == MOST_WORDS - 1


def test_no_text_makes_comparing_quadratic() -> None:
    """Of 200,000 words only ``MOST_WORDS`` are compared, so this ends."""
    draw = random.Random(0).choices
    left, right = (" ".join(draw("ab", k=200_000)) for _ in range(2))
    one, other = differing(left, right)
    assert len(one) + len(other) < 4 * MOST_WORDS


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ("same", "same", None),
        ("Step 9: 20", "Step 9: 268", ("Step 9: ", "20", "268")),
        ("yes", "yes, but", ("", "yes", "yes, but")),
        ("yes.", "yes. But", ("yes.", "", " But")),
        ("", "x", ("", "", "x")),
    ],
)
def test_where_texts_part(left: str, right: str, expected: tuple[str, str, str] | None) -> None:
    assert parting(left, right) == expected


def test_only_the_text_around_is_shown() -> None:
    found = parting("a " * 5000 + "b" * 5000, "a " * 5000 + "c" * 5000)
    assert found is not None
    assert all(len(text) <= AROUND_CHARS + 2 for text in found)


def test_a_long_text_keeps_both_ends_and_counts_the_rest() -> None:
    text = "begin" + "x" * 10_000 + "end"
    shown = excerpt(text)
    assert shown == f"{text[:1000]}\n[… 8,608 characters left out …]\n{text[-400:]}"
    lines = excerpt("line\n" * 1000)
    assert lines.count("\n") <= 24 + 12
    assert "characters left out" in lines


@pytest.mark.parametrize("text", ["", "short", "x" * 1400, "line\n" * 30])
def test_a_short_text_stays_whole(text: str) -> None:
    assert excerpt(text) == text
