"""Other people's errors as one clause."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from kvquant_eval.worker.errors import clause, message, printable


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("one thing", "ValueError: one thing"),
        ("first line\nsecond line", "ValueError: first line"),
        ("The head is 0.5 wide. It should not be. ", "ValueError: The head is 0.5 wide"),
        ("Value error, not this", "ValueError: not this"),
        ("  \n ", "ValueError"),
        ("\x1b[31mred\u202e\x00 \t text", "ValueError: [31mred text"),
        ("x" * 1000, f"ValueError: {'x' * 300}..."),
    ],
)
def test_an_error_is_one_printable_clause(said: str, shown: str) -> None:
    assert clause(ValueError(said)) == shown


def test_of_a_validation_error_the_first_thing_wrong() -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(list[int]).validate_python(["a", "b"])
    assert message(caught.value) == "Input should be a valid integer, unable to parse string as an integer"


def test_what_can_be_printed_stays() -> None:
    assert printable("Größe 语言  {x} %s") == "Größe 语言 {x} %s"
