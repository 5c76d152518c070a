"""With the real package bfcl-eval 2026.3.23: counts and texts are those of its data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvquant_eval.core.codec import DataError
from kvquant_eval.core.conversation import Conversation, LeftOut, cut
from kvquant_eval.core.records import GoldenTurn
from kvquant_eval.io.golden.importers.bfcl import read


def split(source: str) -> tuple[dict[str, Conversation], list[LeftOut]]:
    found = list(read(source))
    taken = {record.conversation_id: record for record in found if isinstance(record, Conversation)}
    return taken, [record for record in found if isinstance(record, LeftOut)]


def turns(conversation: Conversation) -> list[GoldenTurn]:
    made = list(cut(conversation, "tool_calling"))
    assert all(isinstance(turn, GoldenTurn) for turn in made), made
    return [turn for turn in made if isinstance(turn, GoldenTurn)]


def write(folder: Path, question: Any, truth: Any) -> str:
    (folder / "possible_answer").mkdir()
    (folder / "own.json").write_text(json.dumps(question))
    (folder / "possible_answer" / "own.json").write_text(json.dumps({"id": "q", "ground_truth": truth}))
    return str(folder / "own.json")


QUESTION = {"id": "q", "question": [[{"role": "user", "content": "?"}]], "function": [{"name": "f"}]}


@pytest.mark.parametrize(
    ("category", "count"), [("simple_python", 400), ("multiple", 200), ("parallel", 200), ("live_multiple", 1053)]
)
def test_single_turns(category: str, count: int) -> None:
    taken, left = split(category)
    assert (len(taken), left) == (count, [])


def test_the_first_accepted_values_are_the_golden_call() -> None:
    [turn] = turns(split("multiple")[0]["multiple_0"])
    optional = {"get_area": [True], "get_perimeter": [True], "get_angles": [True]}
    golden = {"name": "triangle_properties.get", "arguments": {"side1": 5, "side2": 4, "side3": 3}}
    assert turn.expected["calls"] == [{**golden, "accept": optional}]
    parameters = next(t for t in turn.tools if t["function"]["name"] == "triangle_properties.get")["function"]
    assert parameters["parameters"]["type"] == "object"
    assert parameters["parameters"]["properties"]["side1"]["type"] == "integer"


def test_several_turns_are_answered_by_the_simulation() -> None:
    taken, left = split("multi_turn_base")
    assert (len(taken), left) == (200, [])
    made = turns(taken["multi_turn_base_0"])
    assert len(made) == 10
    assert [turn.expected["calls"][0]["name"] for turn in made[:4]] == ["cd", "mkdir", "mv", "cd"]
    assert made[1].messages[-1]["content"] == '{"current_working_directory": "document"}'
    assert made[6].expected["calls"] == [{"name": "cd", "arguments": {"folder": ".."}}]
    assert "cp" not in [tool["function"]["name"] for tool in made[0].tools]  # excluded there
    assert turns(taken["multi_turn_base_0"]) == made  # the simulation begins anew


def test_a_conversation_ends_where_the_right_answer_is_a_question() -> None:
    taken, _ = split("multi_turn_miss_param")
    assert len(taken) == 200
    cuts = [list(cut(conversation, "x")) for conversation in taken.values()]
    assert sum(isinstance(turn, GoldenTurn) for made in cuts for turn in made) == 384
    assert sum(isinstance(turn, LeftOut) for made in cuts for turn in made) == 81


@pytest.mark.parametrize(
    ("category", "reason"),
    [
        ("irrelevance", "a question without a golden reply: the right answer is no call"),
        ("multi_turn_miss_func", "a conversation whose tools change"),
        ("memory", "a simulated tool, got 'MemoryAPI'"),
    ],
)
def test_what_has_no_golden_reply_is_left_out(category: str, reason: str) -> None:
    taken, left = split(category)
    assert taken == {}
    assert {record.reason for record in left} == {reason}


def test_objects_in_answers_list_accepted_values_too(tmp_path: Path) -> None:
    truth = [{"f": {"place": [{"city": ["Paris", "PARIS"], "zip": ["", "75"]}], "rows": [[{"a": [1]}]], "n": ["", 3]}}]
    [turn] = turns(split(write(tmp_path, QUESTION, truth))[0]["q"])
    [call] = turn.expected["calls"]
    assert call["arguments"] == {"place": {"city": "Paris"}, "rows": [{"a": 1}]}
    assert call["accept"] == {"n": [3]}


@pytest.mark.parametrize("call", ["cd(folder=open('x'))", "__import__('os').system('x')", "cd", "rm_all()", "cd(1, 2)"])
def test_ground_truth_is_read_never_run(tmp_path: Path, call: str) -> None:
    question = {"id": "q", "question": QUESTION["question"], "involved_classes": ["GorillaFileSystem"]}
    source = write(tmp_path, {**question, "initial_config": {}}, [[call]])
    _, [left] = split(source)
    assert left.reason.startswith("a call of a documented function, got ")


def test_unknown_categories_are_named() -> None:
    with pytest.raises(DataError, match=r"^source: a category of BFCL, got 'multipel'; did you mean 'multiple'\?$"):
        list(read("multipel"))


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvquant_eval.io.golden.importers.bfcl.find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"^source: the package bfcl-eval, got none; pip install --no-deps bfcl-eval"):
        list(read("multiple"))
