"""What is said outside of think blocks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvquant_eval.core.thinking import said


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("plain", "plain"),
        ("", ""),
        ("<think>a</think>b", "b"),
        ("<think>\na\n</think>\n\nb", "\n\nb"),
        ("a</think>b", "b"),  # the template opened it
        ("[THINK]a[/THINK]b", "b"),
        ("a[/THINK]b", "b"),
        ("<think>a</think>b<think>c</think>d", "bd"),
        ("a</think>b<think>c</think>d", "bd"),
        ("x<think>a</think>b", "xb"),
        ("<think>a<think>b</think>c", "c"),
        ("<think>a</think>b</think>c", "bc"),  # a closing tag too many
        ("a</think>b</think>c", "bc"),
        ("<think></think>", ""),
        ("<think>a", None),
        ("<think>", None),
        ("[THINK]a", None),
        ("a</think>b<think>c", None),
        ("<think>a</thi", None),
        ("<Think>a", "<Think>a"),
        ("[think]a", "[think]a"),
    ],
)
def test_thoughts_are_not_said(text: str, left: str | None) -> None:
    assert said(text) == left


@given(st.lists(st.sampled_from(["<think>", "</think>", "[THINK]", "[/THINK]", "a", "<", "think>"])).map("".join))
def test_what_is_left_has_no_tag_of_the_text(text: str) -> None:
    left = said(text)
    assert left is None or len(left) <= len(text)
    if left is not None and "think" not in text.replace("<think>", "").replace("</think>", ""):
        assert "[THINK]" not in left
        assert "<think>" not in left
