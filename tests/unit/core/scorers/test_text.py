"""Plain answers: Match, Needle, ContainsAll, Regex, TokenF1."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvquant_eval.core.scorers.text import ContainsAll, Match, Needle, Regex, TokenF1, holds, words
from tests.fakes.records import golden_turn, rendered_turn, reply

TURN = golden_turn(
    reference={"role": "assistant", "content": "The parcel costs 4.90 euros"},
    expected={"answers": ["4.90", "four euros ninety"], "needle": ["QX-4471", "Hollin Weir"]},
)


def test_words_keep_numbers_codes_and_times_whole() -> None:
    assert words("It's 4.90 (code QX-4471) at 14:30, 1,200 m/s!") == [
        "it", "s", "4.90", "code", "qx-4471", "at", "14:30", "1,200", "m/s",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "answer", "found"),
    [
        ("It costs 4.90 euros.", "4.90", True),
        ("It costs 14.90 euros.", "4.90", False),
        ("It costs 4.905", "4.90", False),
        ("four  Euros\nninety", "Four euros ninety", True),
        ("ninety euros four", "four euros ninety", False),
        ("STRASSE", "straße", True),
        ("", "4.90", False),
        ("anything", "...", False),
    ],
)
def test_holds_whole_words_in_order(text: str, answer: str, found: bool) -> None:
    assert holds(text, answer) is found


@pytest.mark.parametrize(
    ("text", "points"), [("That is 4.90.", 100), ("Four euros ninety, sir.", 100), ("That is 5.", 0)]
)
def test_match(text: str, points: float) -> None:
    score = Match()(reply(text), TURN, rendered_turn())
    assert score is not None
    assert score.points == points


def test_match_says_what_it_found() -> None:
    assert Match()(reply("4.90"), TURN, rendered_turn()).explanation == "found '4.90'"  # type: ignore[union-attr]
    assert "none of ['4.90'" in Match()(reply("5"), TURN, rendered_turn()).explanation  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "points", "explanation"),
    [
        ("QX-4471 lies at Hollin Weir.", 100, "all found"),
        ("It is qx-4471", 50, "missing ['Hollin Weir']"),
        ("QX-4472", 0, "missing ['QX-4471', 'Hollin Weir']"),
    ],
)
def test_needle(text: str, points: float, explanation: str) -> None:
    score = Needle()(reply(text), TURN, rendered_turn())
    assert score is not None
    assert (score.points, score.explanation) == (points, explanation)


@pytest.mark.parametrize(
    ("text", "points"),
    [
        ("the PARCEL costs 4.90 euros", 100),
        ("parcel", 100 * 2 * 1 / (5 + 1)),
        ("the the the", 100 * 2 * 1 / (5 + 3)),  # a word counts as often as the golden reply has it
        ("nothing alike", 0),
        ("!!!", 0),
    ],
)
def test_token_f1(text: str, points: float) -> None:
    score = TokenF1()(reply(text), TURN, rendered_turn())
    assert score is not None
    assert score.points == pytest.approx(points)


@given(st.text(), st.text(min_size=1))
def test_f1_is_symmetric_and_within_0_to_100(left: str, right: str) -> None:
    def f1(golden: str, text: str) -> float | None:
        turn = golden_turn(reference={"role": "assistant", "content": golden})
        score = TokenF1()(reply(text), turn, rendered_turn())
        return None if score is None else score.points

    one, two = f1(left, right), f1(right, left)
    if one is not None and two is not None:
        assert one == pytest.approx(two)
        assert 0 <= one <= 100


def test_a_turn_without_expectations_is_not_scored() -> None:
    bare = golden_turn(reference={"role": "assistant", "content": None})
    for scorer in (Match(), Needle(), ContainsAll(), Regex(), TokenF1()):
        assert scorer(reply("x"), bare, rendered_turn()) is None


@pytest.mark.parametrize(
    ("text", "points", "explanation"),
    [
        ("Order A-1042 ships on Monday.", 100, "all found"),
        ("a-1042, on a Monday", 100, "all found"),
        ("Order A-10421 ships on Monday.", 50, "missing ['A-1042']"),
        ("no", 0, "missing ['A-1042', 'Monday']"),
    ],
)
def test_contains_all(text: str, points: float, explanation: str) -> None:
    score = ContainsAll()(reply(text), golden_turn(expected={"contains": ["A-1042", "Monday"]}), rendered_turn())
    assert score is not None
    assert (score.points, score.explanation) == (points, explanation)


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        (r"\bA-\d{4}\b", "Order A-1042.", True),
        (r"\bA-\d{4}\b", "Order A-10421.", False),
        (r"^yes", "Yes", False),
        (r"(?i)^yes", "Yes, it is", True),
        (r"(?m)^Total: \d+$", "Items: 2\nTotal: 7\nBye", True),
        (r"\A\{.*\}\z", "{a}\n", False),
        (r"(?s)\A\{.*\}", "{a\nb}", True),
        (r"ß|\p{Greek}", "π", True),
        ("x", "\ud800x", False),
    ],
)
def test_regex(pattern: str, text: str, found: bool) -> None:
    score = Regex()(reply(text), golden_turn(expected={"regex": pattern}), rendered_turn())
    assert score is not None
    assert score.points == (100 if found else 0)
    assert score.explanation == f"{'matches' if found else 'no match of'} {pattern!r}"


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)+$", "(a|aa)+$", ".*.*.*.*=$", "(?:[ab]*a[ab]{200})x"])
def test_a_pattern_that_would_never_end_ends(pattern: str) -> None:
    score = Regex()(reply("a" * 300_000 + "!"), golden_turn(expected={"regex": pattern}), rendered_turn())
    assert score is not None
    assert score.points == 0
