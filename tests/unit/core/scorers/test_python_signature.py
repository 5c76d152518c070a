"""Code replies: parsed, never run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvquant_eval.core.score import Score
from kvquant_eval.core.scorers.python_signature import PythonSignature
from tests.fakes.records import golden_turn, rendered_turn, reply

EXPECTED = {"function": "total", "parameters": ["rows", "tax"], "uses": ["Invoice", "net", "RATE"]}
GOOD = "def total(rows, tax):\n    return sum(Invoice(r).net for r in rows) * tax * RATE\n"


def score(text: str, **expected: Any) -> Score:
    found = PythonSignature()(reply(text), golden_turn(expected={**EXPECTED, **expected}), rendered_turn())
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("text", "points"),
    [
        (GOOD, 100),
        (f"Here it is:\n```python\n{GOOD}```\nDone.", 100),
        (f"```py\n{GOOD}", 100),  # cut off before the fence ends
        (f"```\n{GOOD}```", 100),
        (GOOD.replace("def total", "async def total"), 100),
        (GOOD.replace("(rows, tax)", "(rows, vat)").replace("* tax", "* vat"), 75),
        (GOOD.replace("(rows, tax)", "(tax, rows)"), 75),
        (GOOD.replace("(rows, tax)", "(rows, *, tax)"), 100),
        (GOOD.replace("Invoice(r).net", "r"), 50 + 25 + 25 / 3),
        ("class A:\n    def total(self):\n        pass\n", 50),
        ("def sum_all(rows, tax):\n    return 0\n", 25),
        ("x = 1\n", 25),
    ],
)
def test_a_quarter_each(text: str, points: float) -> None:
    assert score(text).points == pytest.approx(points)


def test_explanations() -> None:
    assert score(GOOD).explanation == "as asked"
    assert score("x = 1").explanation == "no function total"
    short = score("def total(rows):\n    return RATE * Invoice\n")
    assert short.explanation == "parameters ['rows']; does not use net"


def test_identifiers_count_wherever_they_stand() -> None:
    text = "from shop import Invoice\ndef total(rows, tax):\n    return getattr(rows, 'net') + RATE\n"
    assert score(text).points == 100


def test_nothing_to_use_is_used() -> None:
    assert score("def total(rows, tax): ...", uses=[]).points == 100


@pytest.mark.parametrize(
    "text",
    [
        "I would write a loop.",
        "def total(rows, tax:\n",
        "```python\ndef total(rows, tax):\nreturn 1\n```",
        "def total(rows, tax):\n    return '\0'\n",
        "-" * 100_000 + "1",
        "(" * 100_000,
        "x = " + "[" * 5000 + "]" * 5000,
        "a." * 50_000 + "b",
        "\ud800",
    ],
)
def test_what_does_not_parse_earns_nothing_and_harms_nothing(text: str) -> None:
    found = score(text)
    assert found.points <= 25
    if found.points == 0:
        assert not found.parseable
        assert found.explanation.startswith("does not parse: ")


def test_code_is_never_run(tmp_path: Path) -> None:
    trap = tmp_path / "ran"
    score(f"open({str(trap)!r}, 'w').close()\ndef total(rows=open({str(trap)!r}, 'w'), tax=1): ...\n")
    assert not trap.exists()


def test_a_turn_without_a_function_is_not_scored() -> None:
    assert PythonSignature()(reply("x = 1"), golden_turn(), rendered_turn()) is None
