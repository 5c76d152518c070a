"""Final answers, by value."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvquant_eval.core.score import Ask, Score
from kvquant_eval.core.scorers.math_answer import MathAnswer
from tests.fakes.records import golden_turn, rendered_turn, reply


def score(text: str, *answers: str) -> Score:
    found = MathAnswer()(reply(text), golden_turn(expected={"answers": list(answers)}), rendered_turn())
    assert isinstance(found, Score)
    return found


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (r"So 3 + 4 = 7. \boxed{18}", r"read '18' in \boxed{}"),
        (r"\boxed{17} no, \boxed{18}. That is 5 more.", r"read '18' in \boxed{}"),
        (r"#### 17 and \boxed{18}", r"read '18' in \boxed{}"),
        (r"\boxed{\text{18 dollars}}", r"read '18' in \boxed{}"),
        (r"\boxed{x = 18}", r"read '18' in \boxed{}"),
        (r"\boxed{\$18}", r"read '18' in \boxed{}"),
        ("9 * 2 = 18\n#### 18", "read '18' behind '####'"),
        ("#### 17\n#### 18 apples\n1", "read '18' behind '####'"),
        ("The answer is 17. Wait.\nThe answer is 18. There are 3 left.", "read '18' behind 'answer is'"),
        ("The answer is: **18**", "read '18' behind 'answer is'"),
        ("**Answer:** 18 apples, 3 pears", "read '18' behind 'answer is'"),
        ("So the answer is 9 * 2 = 18.", "read '18' behind 'answer is'"),
        ("Final answer:\n\n18", "read '18' behind 'answer is'"),
        ("The answer is $18.", "read '18' behind 'answer is'"),
        ("She sells 9 at 2 each, 18 in all.", "read '18' as the last number"),
        (r"\boxed{17 That is cut, so 18", "read '18' as the last number"),
        ("The answer is", None),
    ],
)
def test_where_the_final_answer_stands(text: str, read: str | None) -> None:
    if read is None:
        assert score(text, "18") == Score(0.0, "no final answer to read", parseable=False)
    else:
        assert score(text, "18") == Score(100.0, f"{read}, which is '18'")


def test_a_wrong_answer_is_named() -> None:
    assert score("#### 17", "18", "18.0").explanation == "read '17' behind '####', none of \"['18', '18.0']\""
    assert score("#### 18", "17", "18.0").points == 100


@pytest.mark.parametrize(
    ("read", "answer", "same"),
    [
        ("1,200", "1200", True),
        ("1,200,300.50", "1200300.5", True),
        ("18.00", "18", True),
        (".5", "0.5", True),
        ("-3", "-3", True),
        ("−3", "-3", True),
        ("-3", "3", False),
        ("-$3", "-3", True),
        ("$-3", "-3", True),
        ("+3", "3", False),  # nobody writes it, and it may be the end of a sum
        ("18 €", "18", True),
        ("£18", "18", True),
        (r"\$1{,}200", "1200", True),
        ("3/4", "0.75", True),
        ("-3/4", "-0.75", True),
        (r"\frac{3}{4}", "0.75", True),
        (r"-\dfrac{3}{4}", "-0.75", True),
        (r"\tfrac34", "3/4", True),
        ("6/8", "3/4", True),
        ("1 1/2", "1.5", True),
        (r"1\frac{1}{2}", "1.5", True),
        (r"-1\frac12", "-1.5", True),
        ("1 1/2 cups", "1.5", True),
        ("11/2", "1.5", False),
        ("1/0", "1", False),
        ("10/12/2024", "2024", False),
        ("50%", "50", True),
        ("50%", "0.5", True),
        (r"50\%", "50 %", True),
        ("50", "50%", True),
        ("0.5", "50%", True),
        ("0.5%", "50%", False),
        ("18 km/h", "18", True),
        ("18km", "18", True),
        ("18 cm^2", "18 square meters", False),
        ("18 cm²", "18 square centimeters", True),
        ("12 km", "12 kilometers", True),
        ("12 km", "12 kilometres in all", True),
        ("12", "12 km", True),
        ("12 km", "12", True),
        ("12 m", "12 km", False),
        ("12 000 m", "12 km", False),
        ("12000 m", "12 km", False),  # nothing is converted
        (r"12\text{ km}", "12 km", True),
        ("12 km/h", "12 kilometers per hour", True),
        ("12 mph", "12 km/h", False),
        ("12 apples", "12 pears", True),  # no units that are known
        ("12 in all", "12 m", True),
        (r"18\text{ cm}^2", "18", True),
        ("18m", "18", True),
        ("2x", "2", False),  # a variable
        ("2x+3", "2x+5", False),
        ("2x + 3", "2x+3", True),
        ("x^2", "x^2", True),
        ("3(4)", "3", False),
        ("0.333", "1/3", False),
        ("1e3", "1000", False),
        ("9" * 200, "9" * 200, True),  # as a text
        ("9" * 200, "9" * 199, False),
        ("Paris.", "paris", True),
        ("5, 7", "5,7", True),
        ("7, 5", "5,7", False),
    ],
)
def test_when_answers_are_the_same(read: str, answer: str, same: bool) -> None:
    found = score(rf"\boxed{{{read}}}", answer)
    assert found.points == (100 if same else 0), found.explanation


@pytest.mark.parametrize(
    ("text", "answer", "same"),
    [
        ("The answer is Paris, the capital.", "Paris", True),
        ("The answer is (B).", "B", True),
        ("The answer is Lyon.", "Paris", False),
        ("It costs 5-7 euros", "7", True),
        ("10 - 3 is 7", "7", True),
        ("part QX-4471", "4471", True),
        ("version v2", "2", False),
        ("none", "2", False),
    ],
)
def test_prose(text: str, answer: str, same: bool) -> None:
    assert score(text, answer).points == (100 if same else 0)


@pytest.mark.parametrize(
    ("text", "explanation"),
    [
        ("The answer is 12 kilometers.", "read '12' behind 'answer is', which is '12 km'"),
        ("The answer is 12.", "read '12' behind 'answer is', which is '12 km' without its unit"),
        ("The answer is 12 m.", "read '12' behind 'answer is', in another unit than '12 km'"),
        ("That makes 12 miles", "read '12' as the last number, in another unit than '12 km'"),
        ("The answer is 13 m.", "read '13' behind 'answer is', none of \"['12 km']\""),
    ],
)
def test_a_missing_unit_is_told_apart_from_a_wrong_one(text: str, explanation: str) -> None:
    assert score(text, "12 km").explanation == explanation


def asked(text: str, *answers: str) -> Ask | Score | None:
    turn = golden_turn(expected={"answers": list(answers)})
    return MathAnswer(symbolic=True)(reply(text), turn, rendered_turn())


@pytest.mark.parametrize(
    ("text", "answer", "content"),
    [
        (r"\boxed{3+2x}", "2x+3", {"gold": ["2x+3"], "answer": "3+2x"}),
        (r"\boxed{y = 3+2x}", "y=2x+3", {"gold": ["y=2x+3"], "answer": "y = 3+2x"}),
        (r"So the answer is $2\sqrt{2}$ meters.", r"\sqrt{8}", {"gold": [r"\sqrt{8}"], "answer": r"2\sqrt{2}"}),
        (r"The answer is \(2\sqrt{2}\).", r"$\sqrt{8}$", {"gold": [r"\sqrt{8}"], "answer": r"2\sqrt{2}"}),
        ("#### 3+2x", "2x+3", {"gold": ["2x+3"], "answer": "3+2x"}),
        (r"The answer is $\sqrt{16}$.", "4", {"gold": ["4"], "answer": r"\sqrt{16}"}),
        (r"\boxed{\sqrt{16}}", "4", {"gold": ["4"], "answer": r"\sqrt{16}"}),
    ],
)
def test_a_formula_is_asked_about(text: str, answer: str, content: dict[str, object]) -> None:
    ask = asked(text, answer, "Paris")
    assert isinstance(ask, Ask)
    assert (ask.question.kind, dict(ask.question.content)) == ("math", content)
    assert not ask.fickle
    assert ask.score({"same": content["gold"][0]}).points == 100  # type: ignore[index]
    assert ask.score({"same": content["gold"][0]}).explanation.endswith("by symbolic equality")  # type: ignore[index]
    assert ask.score({"same": None}).points == 0
    assert ask.score({"same": None, "why": "SymPy\nneeds more"}).explanation.endswith("; SymPy\\nneeds more")
    for damaged in (None, 3, [], "x", {}, {"same": 3}):
        with pytest.raises((KeyError, TypeError)):
            ask.score(damaged)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{18}", "18"),
        (r"\boxed{2x+3}", "2x + 3"),
        (r"\boxed{17}", "18"),  # plainly different
        (r"\boxed{1/2}", "0.6"),
        ("so it is 3 + 2x", "2x+3"),  # no answer is marked
        ("The answer is Lyon.", "Paris"),
        ("The answer is 3 + 2x, I think.", "2x+3"),
        (r"\boxed{__import__('os').system('true')}", "2x+3"),
        (r"\boxed{" + "x" * 10**6 + "}", "2x+3"),
        ("nothing", "2x+3"),
    ],
)
def test_what_needs_no_question_is_not_asked(text: str, answer: str) -> None:
    assert asked(text, answer) == score(text, answer)


def test_nothing_is_asked_unless_it_is_wanted() -> None:
    assert score(r"\boxed{3+2x}", "2x+3").points == 0
    assert (MathAnswer().asks, MathAnswer(symbolic=True).asks) == ("", "math")


def test_a_turn_without_answers_is_not_scored() -> None:
    assert MathAnswer()(reply("1"), golden_turn(), rendered_turn()) is None


PIECES = (
    "\\boxed{",
    "}",
    "{",
    "\\frac",
    "1",
    "23",
    "0",
    "/",
    ",",
    ".",
    "-",
    " ",
    "####",
    "answer is",
    "=",
    "x",
    "%",
    "\n",
    "²",
    "٣",
)


@given(st.lists(st.sampled_from(PIECES)).map("".join), st.lists(st.sampled_from(PIECES), min_size=1).map("".join))
def test_any_mixture_gets_0_or_100_points(text: str, answer: str) -> None:
    found = score(text, answer)
    assert found.points in (0.0, 100.0)
    assert found.explanation


@given(st.integers(-(10**9), 10**9), st.integers(0, 6))
def test_a_number_is_itself_however_it_is_written(number: int, zeros: int) -> None:
    for written in (str(number), f"{number:,}", f"{number}.{'0' * zeros}", f"{number:,} units"):
        assert score(f"so it is {written}", str(number)).points == 100
        assert score(f"#### {written}", str(number + 1)).points == 0
