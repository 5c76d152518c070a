"""The evidence stage: what scorers must ask is asked once, after all replays, and kept in the run folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from tqdm import tqdm

from kvquant_eval.core.records import Json
from kvquant_eval.core.score import Question
from kvquant_eval.core.settings import Settings
from kvquant_eval.io.answers import AnswerFile


class Oracle(Protocol):
    """Answers one kind of question. It raises nothing: what went wrong is ``{"error": line}``."""

    @property
    def at_once(self) -> int:
        """How many questions it takes side by side."""
        ...

    def __call__(self, content: Mapping[str, Json]) -> Json: ...


def oracles(settings: Settings) -> Mapping[str, Oracle]:
    """Who answers what, by ``Question.kind``."""
    return {}


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
