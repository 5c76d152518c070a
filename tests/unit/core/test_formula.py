"""What may go to a library of symbolic mathematics, and as what."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvquant_eval.core.formula import LONGEST, latex


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("2x + 3", "2x + 3"),
        ("x**2", "x^2"),
        ("x²−1", "x^2-1"),
        ("sqrt(8)", "sqrt(8)"),
        ("3·π", r"3\cdot \pi"),
        (r"\left(x+1\right)", "(x+1)"),
        (r"\dfrac{1}{2}", r"\frac{1}{2}"),
        (r"2\sqrt{2}\text{ cm}.", r"2\sqrt{2}"),
        ("sin(x)", "sin(x)"),
        ("ab", "ab"),
        ("$x$", "x"),
    ],
)
def test_a_formula(text: str, made: str) -> None:
    assert latex(text) == made


@pytest.mark.parametrize(
    "text",
    [
        "",
        " . ",
        "Paris",
        "the answer",
        "2 apples",
        "x" * (LONGEST + 1),
        "(" * 9 + "1" + ")" * 9,
        "__import__('os')",
        "x.__class__",
        "lambda: 0",
        "eval(x)",
        r"\write18{ls}",
        r"\input{x}",
        "'x'",
        '"x"',
        "`x`",
        "x;y",
        "x @ y",
        "x#y",
        "∑x",
        "ⅷ",
        "٣",
        "x\x00",
        "\ud800",
    ],
)
def test_what_is_no_formula(text: str) -> None:
    assert latex(text) is None


@given(st.text(max_size=400))
def test_of_any_text_only_known_words_and_signs_are_left(text: str) -> None:
    made = latex(text)
    assert made is None or (made.isascii() and "__" not in made and len(made) < 20 * LONGEST)
