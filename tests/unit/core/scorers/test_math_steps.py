"""Partial credit along a chain of steps."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvquant_eval.core.score import Score
from kvquant_eval.core.scorers.math_steps import MathSteps
from tests.fakes.records import golden_turn, rendered_turn, reply

STEPS = [
    {"left": 340, "operator": "+", "operand": 20, "result": 360},
    {"left": 360, "operator": "*", "operand": 2, "result": 720},
]


def score(text: str, steps: Any = STEPS, final: int = 720) -> Score:
    turn = golden_turn(expected={"steps": steps, "final": final})
    found = MathSteps()(reply(text), turn, rendered_turn())
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("340 + 20 = 360\n360 * 2 = 720", 9),
        ("Step 1: crate = 20, 340 + 20 = 360. Step 2: 360 x 2 = 720. So 720", 9),
        ("340+20=360, 360×2=720", 9),
        (
            "340 + 20 = 361\n361 * 2 = 722",
            3 + 2,
        ),  # the first result wrong, then its followers: operator and operand right
        ("340 + 20 = 360\n360 * 2 = 720, so the answer is 7", 8),
        ("340 + 20 = 360\nso 720", 4 + 1),
        ("340 + 20 = 360", 4),
        ("360 * 2 = 720\n340 + 20 = 360", 0),  # steps count in order
        ("340 - 20 = 360\n360 / 2 = 720", 7),
    ],
)
def test_fields_right_of_nine(text: str, right: int) -> None:
    assert score(text).points == pytest.approx(100 * right / 9)
    assert score(text).parseable


@pytest.mark.parametrize(
    "text",
    [
        "$340 + $20 = $360, $360 * 2 = $720",
        "340 km + 20 km = 360 km\n360 km x 2 = 720 km",
        "340km+20km=360km\n360km*2=720km",
        "340 cm² + 20 cm² = 360 cm²; 360 cm² · 2 = 720 cm²",
        "340 + 20 = **360**\n**360** * 2 = **720**",
        "340.0 + 20.00 = 360\n360 × 2.0 = 720.0",
        r"\(340 + 20 = 360\), \(360 \times 2 = 720\)",
        r"$340 + 20 = 360$ and $360 \cdot 2 = 720$",
        "680/2 + 20 = 360\n720/2 x 2 = 720",
        "360x2=720".join(["340+20=360 ", ""]),
        "340 miles/h + 20 miles/h = 360 miles/h, 360 miles/h * 2 = 720 miles/h.",
        "340% + 20 % = 360%, 360% * 2 = 720%",
    ],
)
def test_units_and_other_ways_to_write_a_number(text: str) -> None:
    assert score(text).points == 100


@pytest.mark.parametrize(
    ("text", "step", "final"),
    [
        ("1,340 + 2,020 = 3,360", (1340, "+", 2020, 3360), 3360),
        (r"1{,}340 + 20 = 1{,}360", (1340, "+", 20, 1360), 1360),
        ("1,234,567.5 + 0.5 = 1,234,568", (1234567.5, "+", 0.5, 1234568), 1234568),
        ("3 − 5 = −2", (3, "-", 5, -2), -2),
        ("3/4 + 1/4 = 1", ("3/4", "+", 0.25, 1), 1),
        ("3/4 * 2/3 = 1/2", ("3/4", "*", "2/3", "1/2"), "2/4"),
        ("0.75 * 2 = 1.5", ("3/4", "*", 2, 1.5), "3/2"),
        ("6/2 = 3", (6, "/", 2, 3), 3),
        ("6 / 2 = 3", (6, "/", 2, 3), 3),
        (r"6 \div 2 = 3", (6, "/", 2, 3), 3),
        ("0.1 + 0.2 = 0.3", (0.1, "+", 0.2, 0.3), 0.3),
        ("1e3 is no number here; 5 + 5 = 10", (5, "+", 5, 10), 10),
    ],
)
def test_numbers_are_equal_by_value(text: str, step: tuple[Any, ...], final: Any) -> None:
    steps = [dict(zip(("left", "operator", "operand", "result"), step, strict=True))]
    assert score(text, steps, final).points == 100


@pytest.mark.parametrize("text", ["340 + 20 = 3,60", "340 + 20 = 360/0", "340 + 20 = 360/2", "340 + 20 = 36,0"])
def test_what_only_looks_like_the_number_is_another(text: str) -> None:
    assert score(text, STEPS[:1], 360).points < 100


def test_the_first_wrong_step_is_named() -> None:
    assert score("340 + 20 = 360\n360 * 2 = 721\n").explanation == "7 of 9 fields right; step 2 first wrong"
    assert score("340 + 20 = 360\n360 * 2 = 720").explanation == "9 of 9 fields right"


def test_negative_numbers_and_division() -> None:
    steps = [{"left": -6, "operator": "/", "operand": 2, "result": -3}]
    assert score("-6 ÷ 2 = -3", steps, -3).points == 100


@pytest.mark.parametrize("text", ["", "I cannot do that.", "720"])
def test_a_reply_without_a_step_cannot_be_read(text: str) -> None:
    found = score(text)
    assert (found.points, found.parseable) == (0.0, False)


def test_a_turn_without_steps_is_not_scored() -> None:
    assert MathSteps()(reply("1 + 1 = 2"), golden_turn(), rendered_turn()) is None


@given(st.text(alphabet="0123456789+-*/x×÷= \n.a,$%°²−\\{}"))
def test_any_text_gets_0_to_100_points(text: str) -> None:
    assert 0 <= score(text).points <= 100


@pytest.mark.parametrize("text", ["340 + 20 = " + "9" * 5000, "340 + 20 = 360 " + "9" * 5000])
def test_a_number_without_end_is_a_wrong_number(text: str) -> None:
    assert 0 <= score(text).points < 100
