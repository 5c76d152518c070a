"""Markdown that reads text as text."""

from __future__ import annotations

import re

import pytest

from kvquant_eval.io.report import markdown


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
        ("__x__ {0.__class__} _", "\\_\\_x\\_\\_ {0.\\_\\_class\\_\\_} \\_"),
        ("[x] approved", "\\[x] approved"),
        ("1. one 2. two", "1\\. one 2. two"),
        ("12) x", "12\\) x"),
        ("4.90 euros", "4.90 euros"),
        ("a ##", "a #\\#"),
        ("https://a.b www.a.b", "https\\://a.b www\\.a.b"),
        ("_x_ *y* `z` ~~w~~ a|b", "\\_x\\_ \\*y\\* \\`z\\` \\~\\~w\\~\\~ a\\|b"),
        ("[a](b) ![c][d] [e]: f", "[a\\](b) ![c\\][d] [e\\]: f"),
        ("# h\n- i", "\\# h - i"),
        ("<b>&lt;", "&lt;b&gt;&amp;lt;"),
        ("+1.75", "+1.75"),
    ],
)
def test_escape(text: str, expected: str) -> None:
    assert markdown.escape(text) == expected
