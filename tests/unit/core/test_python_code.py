"""Python found in text, and parsed."""

from __future__ import annotations

import warnings

import pytest

from kvquant_eval.core.python_code import UNPARSEABLE, code_of, parsed, problem


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        ("x = 1", "x = 1"),
        ("Here:\n```python\nx = 1\n```\nDone.", "x = 1\n"),
        ("```py\nx = 1", "x = 1"),
        ("```\nx = 1\n```\n```python\ny = 2\n```", "x = 1\n"),
        ("```python\n```", ""),
        ("", ""),
    ],
)
def test_code_stands_in_the_first_fence(reply: str, code: str) -> None:
    assert code_of(reply) == code


@pytest.mark.parametrize("code", ["def f(:", "\0", "-" * 100_000 + "1", "(" * 100_000, "\ud800"])
def test_what_is_no_python(code: str) -> None:
    with pytest.raises(UNPARSEABLE):
        parsed(code)
    assert problem(code)


def test_a_warning_is_not_passed_on() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parsed("x = '\\d'")


@pytest.mark.parametrize("code", ["", "# nothing", "\n\n"])
def test_nothing_is_no_statement(code: str) -> None:
    assert problem(code) == "nothing that does anything"
    assert problem("pass") == ""
