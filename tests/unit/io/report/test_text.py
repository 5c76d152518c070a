"""Text made harmless, and Markdown that reads it as text."""

from __future__ import annotations

import re

import pytest

from kvquant_eval.io.report import markdown
from kvquant_eval.io.report.safe import LINE_CHARS, TEXT_LINES, safe, tail


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("a\tb\nc – ü 数", "a\tb\nc – ü 数"),
        ("\x1b\u200b\U000e0001", "\\x1b\\u200b\\U000e0001"),
        ("x" * (LINE_CHARS + 2), "x" * LINE_CHARS + " … [2 more characters]"),
        ("\n" * (TEXT_LINES + 2), "\n" * (TEXT_LINES - 1) + " … [3 more lines]"),
    ],
)
def test_safe(text: str, expected: str) -> None:
    assert safe(text) == expected


def test_tail_keeps_the_end() -> None:
    assert tail("abcdef", 6) == "abcdef"
    assert tail("abcdef", 2) == "[4 characters before] … ef"


@pytest.mark.parametrize("text", ["a", "`", "a ``` b", "```\n````\n`", "|", ""])
def test_no_backtick_ends_a_fence_or_a_span(text: str) -> None:
    ticks = markdown.fence(text).split("\n")[0].removesuffix("text")
    assert len(ticks) >= 3
    assert ticks not in text
    span = markdown.code(text)
    run = re.match("`+", span)
    assert run
    assert run[0] not in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mean drop 1.75 points [-0.05, 3.54]", "mean drop 1.75 points [-0.05, 3.54]"),
        ("fp8_e4m3", "fp8_e4m3"),
        ("_x_ *y* `z` ~~w~~ a|b", "\\_x\\_ \\*y\\* \\`z\\` \\~\\~w\\~\\~ a\\|b"),
        ("[a](b) ![c][d] [e]: f", "[a\\](b) ![c\\][d] [e\\]: f"),
        ("# h\n- i", "\\# h - i"),
        ("<b>&lt;", "&lt;b&gt;&amp;lt;"),
        ("+1.75", "+1.75"),
    ],
)
def test_escape(text: str, expected: str) -> None:
    assert markdown.escape(text) == expected
