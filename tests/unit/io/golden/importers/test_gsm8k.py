from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kvquant_eval.core.conversation import Conversation, LeftOut, cut
from kvquant_eval.core.records import GoldenTurn
from kvquant_eval.io.golden.importers.gsm8k import read

WORKED = "Ann packs 40/4=<<40/4=10>>10 boxes.\nAt $3 that is 10*3=$<<10*3=30>>30.\n#### 30"


def write(folder: Path, *records: object) -> str:
    path = folder / "problems.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def turn(found: Conversation | LeftOut) -> GoldenTurn:
    assert isinstance(found, Conversation)
    [made] = cut(found, "math_chain")
    assert isinstance(made, GoldenTurn)
    return made


def test_a_problem_is_a_turn_without_the_calculators_marks(tmp_path: Path) -> None:
    [found] = read(write(tmp_path, {"question": "How much?", "answer": WORKED}))
    made = turn(found)
    assert made.turn_id == "problems-1/t00"
    assert made.messages == ({"role": "user", "content": "How much?"},)
    assert made.reference["content"] == "Ann packs 40/4=10 boxes.\nAt $3 that is 10*3=$30.\n#### 30"
    assert made.expected == {"answers": ["30"]}


def test_every_result_and_the_final_answer_decide(tmp_path: Path) -> None:
    [found] = read(write(tmp_path, {"question": "How much?", "answer": WORKED}))
    assert [(span.text, span.nth) for span in turn(found).decisive] == [("10", 0), ("30", 0), ("30", 1)]


def test_an_answer_with_commas_may_be_said_without(tmp_path: Path) -> None:
    [found] = read(write(tmp_path, {"question": "?", "answer": "A lot.\n#### 1,250"}))
    assert turn(found).expected == {"answers": ["1,250", "1250"]}


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ([], "a problem as a JSON object, got '[]'"),
        ({"answer": WORKED}, "a problem with a question, got 'None'"),
        ({"question": "?", "answer": 3}, "a problem with an answer, got '3'"),
        ({"question": "?", "answer": "30"}, "an answer that ends in #### and a number"),
    ],
)
def test_what_is_no_problem_is_left_out(tmp_path: Path, record: object, reason: str) -> None:
    source = write(tmp_path, {"question": "?", "answer": WORKED}, record)
    assert list(read(source))[1:] == [LeftOut(f"{source}:2", reason)]


@pytest.mark.skipif("KVQUANT_REAL_DATA" not in os.environ, reason="needs KVQUANT_REAL_DATA")
def test_gsm8ks_own_file() -> None:
    found = list(read(f"{os.environ['KVQUANT_REAL_DATA']}/gsm8k/test_first300.jsonl"))
    turns = [turn(conversation) for conversation in found]
    assert len(turns) == 300
    assert turns[0].expected == {"answers": ["18"]}
    assert all(made.decisive for made in turns)
    assert not any("<<" in made.reference["content"] for made in turns)
