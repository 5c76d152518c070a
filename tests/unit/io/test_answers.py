"""The file of answers: append-only, and forgiving about what a kill or a disk left in it."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kvquant_eval.core.records import Json
from kvquant_eval.core.score import Question
from kvquant_eval.io.answers import AnswerFile


def question(number: int) -> Question:
    return Question("k", {"n": number})


@pytest.fixture
def file(tmp_path: Path) -> AnswerFile:
    return AnswerFile(tmp_path / "answers.jsonl")


def test_no_file_is_no_answers(file: AnswerFile) -> None:
    assert file.read() == {}


@pytest.mark.parametrize("answer", [{"errors": ["", "x"], "stopped": ""}, 0.1 + 0.2, None, "\u2028 \ud800 é", [1, [2]]])
def test_an_answer_comes_back_as_it_was(file: AnswerFile, answer: Json) -> None:
    file.add(question(1), answer)
    assert file.read() == {question(1).key: answer}
    assert file.path.read_bytes().isascii()


def test_of_several_answers_the_last_one_counts(file: AnswerFile) -> None:
    for answer in ({"error": "down"}, 1, 2):
        file.add(question(1), answer)
    file.add(question(2), 3)
    assert file.read() == {question(1).key: 2, question(2).key: 3}


def test_a_line_says_who_was_asked(file: AnswerFile) -> None:
    file.add(question(1), 1)
    assert json.loads(file.path.read_text()) == {"key": question(1).key, "kind": "k", "answer": 1}


@pytest.mark.parametrize(
    "damaged",
    [b"", b"{", b'{"key": "x"}', b"[1]", b"3", b"null", b'{"answer": 1}', b"\xff\xfe\x00", b'"' + b"x" * 10**6],
)
def test_a_damaged_line_is_passed_over(file: AnswerFile, damaged: bytes) -> None:
    file.add(question(1), 1)
    with file.path.open("ab") as raw:
        raw.write(damaged + b"\n")
    file.add(question(2), 2)
    assert file.read() == {question(1).key: 1, question(2).key: 2}


def test_a_line_that_a_kill_cut_costs_itself_and_no_other(file: AnswerFile) -> None:
    """At every length that it can have been cut to."""
    file.add(question(1), 1)
    whole = file.path.read_bytes()
    for cut in range(len(whole) + 1):
        file.path.write_bytes(whole[:cut])
        file.add(question(2), 2)
        found = file.read()
        assert found.pop(question(2).key) == 2
        assert found == ({question(1).key: 1} if cut >= len(whole) - 1 else {})


def test_threads_write_whole_lines(file: AnswerFile) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: file.add(question(n), "x" * 5000), range(50)))
    assert file.read() == {question(n).key: "x" * 5000 for n in range(50)}
    assert len(file.path.read_text().splitlines()) == 50


def test_what_counts_is_settled_in_the_order_of_keys(file: AnswerFile, tmp_path: Path) -> None:
    """Whatever order the answers came in, and whatever else stands between them."""
    file.settle(tmp_path / "none.jsonl")
    assert not (tmp_path / "none.jsonl").exists()
    other = AnswerFile(tmp_path / "other.jsonl")
    for n in (3, 1, 2):
        file.add(question(n), {"error": "down"})
        other.add(question(n), n)
    for n in (2, 1, 3):
        file.add(question(n), n)
    with file.path.open("a") as damaged:
        damaged.write(f'{{"key": "{question(1).key}"}}\n{{"key": "x", "ans')
    file.settle(tmp_path / "a.jsonl")
    other.settle(tmp_path / "b.jsonl")
    lines = (tmp_path / "a.jsonl").read_bytes()
    assert lines == (tmp_path / "b.jsonl").read_bytes()
    assert AnswerFile(tmp_path / "a.jsonl").read() == {question(n).key: n for n in (1, 2, 3)}
    assert [json.loads(line)["key"] for line in lines.splitlines()] == sorted(question(n).key for n in (1, 2, 3))
