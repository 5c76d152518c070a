"""Text made harmless: what is shown of it, and how much."""

from __future__ import annotations

import unicodedata
from html import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvquant_eval.core.text import LINE_CHARS, TEXT_CHARS, TEXT_LINES, masked, one_line, safe, tail, writable


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("a\tb\nc – ü 数", "a\tb\nc – ü 数"),
        ("\x1b\u200b\U000e0001", "\\x1b\\u200b\\U000e0001"),
        ("x" * (LINE_CHARS + 2), "x" * LINE_CHARS + " … [2 more characters]"),
        ("a\u115f\u3164\ufe0f\u034f\U000e0100", "a\\u115f\\u3164\\ufe0f\\u034f\\U000e0100"),
        ("\n" * (TEXT_LINES + 2), "\n" * (TEXT_LINES - 1) + " … [3 more lines]"),
    ],
)
def test_safe(text: str, expected: str) -> None:
    assert safe(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a https://u:p@host/x and b@c", "a https://***@host/x and b@c"),
        ("tracking.uri=postgresql://u:p@ss@host:1/db@2", "tracking.uri=postgresql://***@host:1/db@2"),
        ("http://host/x@y", "http://host/x@y"),
    ],
)
def test_credentials_are_masked(text: str, expected: str) -> None:
    assert masked(text) == expected


def test_accents_are_not_piled_up() -> None:
    """Eight on a letter are more than any script has; five hundred would lie over the lines above."""
    assert safe("e" + "\u0301" * 500 + "x\u0301") == "e" + "\u0301" * 8 + "\\u0301" * 492 + "x\u0301"
    assert safe("\u0e01\u0e34\u0e49 \u05d1\u05bc\u05b8 é") == "\u0e01\u0e34\u0e49 \u05d1\u05bc\u05b8 é"


def test_tail_keeps_the_end() -> None:
    assert tail("abcdef", 6) == "abcdef"
    assert tail("abcdef", 2) == "[4 characters before] … ef"


def test_one_line_is_one() -> None:
    assert one_line("a\nb\tc\r\x85\u2028d") == "a\\nb\\tc\\x0d\\x85\\u2028d"
    assert one_line("x" * (LINE_CHARS + 2)) == "x" * LINE_CHARS + " … [2 more characters]"
    assert len(one_line("line\n" * 100_000)) < 2 * LINE_CHARS


@given(st.text())
def test_what_is_left_is_visible(text: str) -> None:
    for shown, allowed in ((safe(text), "\t\n"), (one_line(text), "")):
        assert all(unicodedata.category(c)[0] != "C" and c not in "\u2028\u2029" for c in shown if c not in allowed)
        assert safe(shown) == shown
        shown.encode()


@pytest.mark.parametrize("char", ["x", "<", '"', "\x1b", "\u202e", "\U000f0000", "\n", "\n\U000f0000"])
def test_no_text_takes_more_room_than_is_said(char: str) -> None:
    """At most six bytes a character in a page, and no more than ``TEXT_CHARS`` of them but for the marks."""
    for text in (char * 1_000_000, (char * LINE_CHARS + "\n") * 1000):
        shown = safe(text)
        assert len(shown) <= TEXT_CHARS + 100
        assert len(escape(shown)) <= 6 * (TEXT_CHARS + 100)
        assert " more " in shown


def test_lines_that_escapes_make_long_are_fewer() -> None:
    shown = safe("\n".join(["\x1b" * 1000] * 5))
    assert shown == "\n".join(["\\x1b" * 1000] * 2) + " … [3 more lines]"
    assert safe("\U000f0000" * 1001 + "\nb").endswith("\\U000f0000 … [1 more characters] … [1 more lines]")


def test_only_lone_surrogates_cannot_be_written() -> None:
    assert writable("\ud800 \x00\x1b\u202e数") == "\\ud800 \x00\x1b\u202e数"
