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
from kvquant_eval.core.score import Question
from kvquant_eval.core.settings import Settings
from kvquant_eval.io.answers import AnswerFile
from kvquant_eval.io.sandbox import Sandbox, find_isolation

EXECUTION_REMEDY = "install bubblewrap, or set scorer.code.allow_execution=true, which README.md explains"


class Oracle(Protocol):
    """Answers one kind of question. It raises nothing: what went wrong is ``{"error": line}``."""

    @property
    def at_once(self) -> int:
        """How many questions it takes side by side."""
        ...

    def __call__(self, content: Mapping[str, Json]) -> Json: ...


def oracles(settings: Settings) -> Mapping[str, Oracle]:
    """Who answers what, by ``Question.kind``."""
    found: dict[str, Oracle] = {}
    if executing(settings) and not no_execution(settings):
        found["python"] = Sandbox(find_isolation(), settings.code)
    return found


def executing(settings: Settings) -> list[tuple[str, str]]:
    """Class and name of the scores that execute code."""
    return [
        (workload, name)
        for workload, scorers in settings.scorers.items()
        for name, scorer in scorers.items()
        if getattr(scorer, "asks", "") == "python"
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
    missing = {q.key: q for q in asked if q.kind in oracles and _is_error(answers.get(q.key))}
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
            pool.shutdown(cancel_futures=True)
    return file.read()


def _is_error(answer: Any) -> bool:
    return answer is None or (isinstance(answer, dict) and "error" in answer)
