"""The evidence stage: what scorers must ask is asked once, after all replays, and kept in the run folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Protocol

from tqdm import tqdm

from kvquant_eval.core.codec import DataError
from kvquant_eval.core.policy import ScoreRole
from kvquant_eval.core.records import Json
from kvquant_eval.core.score import Question, is_error, who_is_asked
from kvquant_eval.core.scorers.code import KIND as PYTHON
from kvquant_eval.core.scorers.judge import KIND as JUDGE
from kvquant_eval.core.scorers.math_answer import KIND as MATH
from kvquant_eval.core.settings import Settings
from kvquant_eval.io import symbolic
from kvquant_eval.io.answers import AnswerFile
from kvquant_eval.io.judge_client import JudgeClient, api_key
from kvquant_eval.io.sandbox import Sandbox, find_isolation

EXECUTION_REMEDY = "install bubblewrap, or set scorer.code.allow_execution=true, which README.md explains"


class Oracle(Protocol):
    """Answers one kind of question. It raises nothing: what went wrong is ``{"error": line}``. Where it has a
    ``close``, that is called when there is nothing more to ask.
    """

    @property
    def at_once(self) -> int:
        """How many questions it takes side by side."""
        ...

    def __call__(self, content: Mapping[str, Json]) -> Json: ...


def refuse_unready(settings: Settings) -> None:
    """Raise DataError where a score asks somebody who is not set up: it would only be known after all replays."""
    for workload, scores in settings.scorers.items():
        for name, scorer in scores.items():
            where = f"workloads.{workload}.scores.{name}"
            if who_is_asked(scorer) == JUDGE:
                for key in ("url", "model"):
                    if not getattr(settings.judge, key):
                        rule = f"a value for {where}, got none"
                        raise DataError(f"scorer.judge.{key}: {rule}; set it, or leave the score out")
                api_key(settings.judge)
            elif who_is_asked(scorer) == MATH and not symbolic.is_installed():
                remedy = "pip install 'kvquant_eval[math]', or set it to false"
                raise DataError(f"{where}.scorer.symbolic: the package math-verify, got none; {remedy}")


def oracles(settings: Settings) -> Mapping[str, Oracle]:
    """Who answers what, by ``Question.kind``."""
    kinds = {who_is_asked(scorer) for scores in settings.scorers.values() for scorer in scores.values()}
    found: dict[str, Oracle] = {}
    if PYTHON in kinds:
        isolation = find_isolation()
        if isolation.strong or settings.code.allow_execution:
            found[PYTHON] = Sandbox(isolation, settings.code)
    if JUDGE in kinds:
        found[JUDGE] = JudgeClient(settings.judge)
    if MATH in kinds:
        found[MATH] = symbolic.Symbolic()
    return found


def executing(settings: Settings) -> list[tuple[str, str]]:
    """Class and name of the scores that execute code."""
    return [
        (workload, name)
        for workload, scorers in settings.scorers.items()
        for name, scorer in scorers.items()
        if who_is_asked(scorer) == PYTHON
    ]


def no_execution(settings: Settings) -> str:
    """Why no code may be executed here (empty: it may, or there is none)."""
    return "" if settings.code.allow_execution or not executing(settings) else find_isolation().weakness


def executable(settings: Settings) -> Settings:
    """The settings without the scores that execute code, where it may not be executed here.

    Raises DataError where one of them gates: its class would have no evidence.
    """
    weakness = no_execution(settings)
    if not weakness:
        return settings
    for workload, score in executing(settings):
        if settings.policy.scores[workload][score].role is ScoreRole.GATE:
            rule = "strong isolation for code that is executed"
            raise DataError(f"workloads.{workload}.scores.{score}: {rule}, got none ({weakness}); {EXECUTION_REMEDY}")
    why = f"no strong isolation for code that is executed ({weakness})"
    return leave_out(settings, {f"{workload}.{score}": why for workload, score in executing(settings)})


def leave_out(settings: Settings, why: Mapping[str, str]) -> Settings:
    """The settings without the scores that ``why`` names as ``<class>.<score>``."""

    def kept(scores: Mapping[str, Any], workload: str) -> dict[str, Any]:
        return {name: found for name, found in scores.items() if f"{workload}.{name}" not in why}

    rules = {workload: kept(scores, workload) for workload, scores in settings.policy.scores.items()}
    scorers = {workload: kept(scores, workload) for workload, scores in settings.scorers.items()}
    return replace(settings, policy=replace(settings.policy, scores=rules), scorers=scorers, left_out=dict(why))


def gather(asked: Iterable[Question], oracles: Mapping[str, Oracle], file: AnswerFile) -> dict[str, Json]:
    """Every answer by its question's key: those of ``file``, and new ones for what has none or only an error.

    Questions go out in the order of their keys, which are hashes: no arm's come first, and none can be told by its
    place. A kind without an oracle stays unanswered.
    """
    answers = file.read()
    missing = {q.key: q for q in asked if q.kind in oracles and is_error(answers.get(q.key))}
    for kind in sorted({question.kind for question in missing.values()}):
        oracle = oracles[kind]
        todo = [question for _, question in sorted(missing.items()) if question.kind == kind]

        def work(question: Question, oracle: Oracle = oracle) -> None:
            file.add(question, oracle(question.content))

        pool = ThreadPoolExecutor(oracle.at_once)
        try:
            for _ in tqdm(pool.map(work, todo), total=len(todo), desc=kind, unit="question", disable=None):
                pass
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            getattr(oracle, "close", lambda: None)()  # also ends what waits to try again
            pool.shutdown()
    return file.read()
