"""The hidden tests of the coding turns, really executed: every reference passes them, and no wrong answer does.

They run in the isolation that there is; these turns are the project's own.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from kvquant_eval.cli.config import data_folder
from kvquant_eval.core.records import GoldenTurn
from kvquant_eval.core.score import Ask, Score
from kvquant_eval.core.scorers.code import Code
from kvquant_eval.core.settings import CodeSettings
from kvquant_eval.io.golden import load
from kvquant_eval.io.sandbox import Sandbox, find_isolation
from tests.fakes.records import rendered_turn, reply

TURNS = load(data_folder("golden"), ["coding"]).turns


@pytest.fixture(scope="module")
def scores() -> Callable[[dict[str, str]], dict[str, Score]]:
    """Points by turn id for a reply to each."""
    box = Sandbox(find_isolation(), CodeSettings())

    def one(turn: GoldenTurn, text: str) -> Score:
        found = Code()(reply(text), turn, rendered_turn())
        assert found is not None
        return found.score(box(found.question.content)) if isinstance(found, Ask) else found

    def all_of(replies: dict[str, str]) -> dict[str, Score]:
        with ThreadPoolExecutor(box.at_once) as pool:
            return dict(zip(replies, pool.map(lambda turn: one(turn, replies[turn.turn_id]), TURNS), strict=True))

    return all_of


def code(turn: GoldenTurn) -> str:
    return str(turn.reference["content"])


def header(turn: GoldenTurn) -> str:
    return f"def {turn.expected['function']}({', '.join(turn.expected['parameters'])})"


def test_every_turn_has_tests() -> None:
    assert len(TURNS) == 44
    assert min(len(turn.expected["tests"]) for turn in TURNS) >= 2


def test_every_reference_passes(scores: Callable[[dict[str, str]], dict[str, Score]]) -> None:
    found = scores({turn.turn_id: code(turn) for turn in TURNS})
    assert {name: score.explanation for name, score in found.items() if score.points != 100} == {}


@pytest.mark.parametrize("body", ["pass", "raise NotImplementedError", "return 0"])
def test_a_body_that_does_nothing_fails(scores: Callable[[dict[str, str]], dict[str, Score]], body: str) -> None:
    found = scores({turn.turn_id: f"{header(turn)}:\n    {body}\n" for turn in TURNS})
    assert [name for name, score in found.items() if score.points == 100] == []


def test_no_code_at_all_earns_nothing(scores: Callable[[dict[str, str]], dict[str, Score]]) -> None:
    """What the setup brings passes no test by itself, though it has the functions of earlier turns."""
    found = scores({turn.turn_id: "x = 1" for turn in TURNS})
    assert {score.points for score in found.values()} == {0.0}


def test_the_code_that_the_user_showed_or_the_reply_before_fails(
    scores: Callable[[dict[str, str]], dict[str, Score]],
) -> None:
    """Nothing was changed: the usual way to fail an edit."""
    before = {
        turn.turn_id: str(turn.messages[-2]["content"]) if turn.turn_index else str(turn.messages[-1]["content"])
        for turn in TURNS
    }
    assert sum("```python" in text for text in before.values()) > 38  # the others ask for a first function
    found = scores(before)
    assert [name for name, score in found.items() if score.points == 100] == []
