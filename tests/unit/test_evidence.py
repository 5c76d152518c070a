"""What scorers ask: once, in the order of keys, kept; and scores that execute code only where that is safe."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from kvquant_eval.core.codec import DataError
from kvquant_eval.core.policy import ScorePolicy, ScoreRole
from kvquant_eval.core.records import Json
from kvquant_eval.core.score import Question
from kvquant_eval.core.scorers.code import Code
from kvquant_eval.core.settings import CodeSettings, Settings
from kvquant_eval.evidence import executable, gather, leave_out, oracles
from kvquant_eval.io.answers import AnswerFile
from kvquant_eval.io.sandbox import Isolation
from tests.fakes.gate import settings, treatments
from tests.fakes.kills import wait_until

ROOT = Path(__file__).parents[2]
STRONG = Isolation(bubblewrap="/usr/bin/bwrap", weakness="")
WEAK = Isolation(bubblewrap="", weakness="bubblewrap is not installed")


@dataclass
class Oracle:
    """Doubles numbers, and remembers who asked."""

    at_once: int = 1
    answers: Mapping[int, Json] = field(default_factory=dict)
    asked: list[int] = field(default_factory=list)

    def __call__(self, content: Mapping[str, Any]) -> Json:
        self.asked.append(content["n"])
        return self.answers.get(content["n"], 2 * content["n"])


def number(n: int, kind: str = "double") -> Question:
    return Question(kind, {"n": n})


@pytest.fixture
def file(tmp_path: Path) -> AnswerFile:
    return AnswerFile(tmp_path / "answers.jsonl")


def test_equal_questions_are_asked_once(file: AnswerFile) -> None:
    oracle = Oracle()
    answers = gather([number(1), number(2), number(1)], {"double": oracle}, file)
    assert sorted(oracle.asked) == [1, 2]
    assert answers == {number(1).key: 2, number(2).key: 4} == file.read()


def test_questions_go_out_in_the_order_of_their_keys(file: AnswerFile) -> None:
    oracle, numbers = Oracle(), range(20)
    gather([number(n) for n in numbers], {"double": oracle}, file)
    assert oracle.asked == sorted(numbers, key=lambda n: number(n).key)
    assert oracle.asked != list(numbers)


def test_a_kind_is_part_of_a_question(file: AnswerFile) -> None:
    one, other = Oracle(), Oracle(answers={1: "other"})
    answers = gather([number(1, "b"), number(1, "a")], {"a": one, "b": other}, file)
    assert answers == {number(1, "a").key: 2, number(1, "b").key: "other"}


def test_what_nobody_can_answer_stays_open(file: AnswerFile) -> None:
    assert gather([number(1), number(2, "judge")], {"double": Oracle()}, file) == {number(1).key: 2}
    assert gather([], {}, file) == {number(1).key: 2}


def test_an_answer_is_kept_and_an_error_is_asked_again(file: AnswerFile) -> None:
    gather([number(1), number(2)], {"double": Oracle(answers={2: {"error": "down"}})}, file)
    assert file.read()[number(2).key] == {"error": "down"}
    again = Oracle()
    assert gather([number(1), number(2)], {"double": again}, file) == {number(1).key: 2, number(2).key: 4}
    assert again.asked == [2]


def test_a_damaged_line_is_asked_again(file: AnswerFile) -> None:
    gather([number(1), number(2)], {"double": Oracle()}, file)
    lines = file.path.read_text().splitlines()
    file.path.write_text(f"{lines[0][:-9]}\n{lines[1]}\n")
    again = Oracle()
    assert len(gather([number(1), number(2)], {"double": again}, file)) == 2
    assert len(again.asked) == 1


def test_as_many_are_asked_side_by_side_as_the_oracle_takes(file: AnswerFile) -> None:
    together = Barrier(3, timeout=10)

    class Waiting(Oracle):
        def __call__(self, content: Mapping[str, Any]) -> Json:
            return together.wait() >= 0

    assert len(gather([number(n) for n in range(3)], {"double": Waiting(at_once=3)}, file)) == 3


def test_an_interrupt_keeps_what_was_answered(file: AnswerFile) -> None:
    class Interrupted(Oracle):
        def __call__(self, content: Mapping[str, Any]) -> Json:
            if len(self.asked) == 2:
                raise KeyboardInterrupt
            return super().__call__(content)

    questions = [number(n) for n in range(5)]
    with pytest.raises(KeyboardInterrupt):
        gather(questions, {"double": Interrupted()}, file)
    assert len(file.read()) == 2
    again = Oracle()
    assert len(gather(questions, {"double": again}, file)) == 5
    assert len(again.asked) == 3


SLOW = """
import sys, time
from pathlib import Path
from kvquant_eval.core.score import Question
from kvquant_eval.evidence import gather
from kvquant_eval.io.answers import AnswerFile
class Slow:
    at_once = 2
    def __call__(self, content):
        time.sleep(0.1)
        return 2 * content["n"]
gather([Question("double", {"n": n}) for n in range(1000)], {"double": Slow()}, AnswerFile(Path(sys.argv[1])))
"""


def test_killed_half_way_it_goes_on_with_the_rest(file: AnswerFile) -> None:
    with subprocess.Popen([sys.executable, "-c", SLOW, file.path], cwd=ROOT, stderr=subprocess.DEVNULL) as child:
        assert wait_until(lambda: len(file.read()) >= 5, 30)
        os.kill(child.pid, signal.SIGKILL)
    before = file.read()
    again = Oracle()
    answers = gather([number(n) for n in range(30)], {"double": again}, file)
    assert answers == {number(n).key: 2 * n for n in range(30)} | before
    assert not {number(n).key for n in again.asked} & before.keys()


def coding(folder: Path, role: ScoreRole, **changes: Any) -> Settings:
    """A gate whose class faq executes code too."""
    made = settings(folder, treatments("good"))
    faq = {**made.policy.scores["faq"], "code": ScorePolicy(role=role, margin=10.0)}
    policy = replace(made.policy, scores={**made.policy.scores, "faq": faq})
    scorers = {**made.scorers, "faq": {**made.scorers["faq"], "code": Code()}}
    return replace(made, policy=policy, scorers=scorers, **changes)


@pytest.fixture
def weak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvquant_eval.evidence.find_isolation", lambda: WEAK)


@pytest.mark.parametrize("role", ScoreRole)
def test_code_is_executed_where_isolation_is_strong(
    role: ScoreRole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvquant_eval.evidence.find_isolation", lambda: STRONG)
    given = coding(tmp_path, role)
    assert executable(given) == given
    assert getattr(oracles(given)["python"], "isolation", None) == STRONG


@pytest.mark.usefixtures("weak")
def test_a_gating_score_that_executes_code_needs_strong_isolation(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        executable(coding(tmp_path, ScoreRole.GATE))
    assert str(caught.value) == (
        "workloads.faq.scores.code: strong isolation for code that is executed, got none "
        "(bubblewrap is not installed); "
        "install bubblewrap, or set scorer.code.allow_execution=true, which README.md explains"
    )


@pytest.mark.usefixtures("weak")
@pytest.mark.parametrize("role", [ScoreRole.BOUND, ScoreRole.REPORT])
def test_another_score_is_left_out(role: ScoreRole, tmp_path: Path) -> None:
    given = coding(tmp_path, role)
    found = executable(given)
    without = settings(tmp_path, treatments("good"))
    assert (found.policy, found.scorers) == (without.policy, without.scorers)
    assert found.left_out == {"faq.code": "no strong isolation for code that is executed (bubblewrap is not installed)"}
    assert oracles(given) == {}


@pytest.mark.usefixtures("weak")
def test_who_allows_it_gets_it_all_the_same(tmp_path: Path) -> None:
    given = coding(tmp_path, ScoreRole.GATE, code=CodeSettings(allow_execution=True))
    assert executable(given) == given
    assert getattr(oracles(given)["python"], "isolation", None) == WEAK


def test_without_code_nothing_is_probed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never() -> Isolation:
        raise AssertionError

    monkeypatch.setattr("kvquant_eval.evidence.find_isolation", never)
    given = settings(tmp_path, treatments("good"))
    assert executable(given) == given
    assert oracles(given) == {}


def test_leaving_nothing_out_changes_nothing(tmp_path: Path) -> None:
    given = coding(tmp_path, ScoreRole.BOUND)
    assert leave_out(given, {}) == given
