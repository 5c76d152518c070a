"""The answers that scorers asked for, in the run folder: append-only, one JSON line each."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from kvquant_eval.core.records import Json
from kvquant_eval.core.score import Question

_LOCK = Lock()


@dataclass(frozen=True)
class AnswerFile:
    """``answers.jsonl``: ``{"key": ..., "kind": ..., "answer": ...}``; of one key the last line counts."""

    path: Path

    def read(self) -> dict[str, Json]:
        """Every answer by the key of its question; a line that is cut or damaged is passed over."""
        return {key: answer for key, answer, _ in self._sound()}

    def settle(self, into: Path) -> None:
        """Write the lines that count to another file, in the order of their keys: equal answers give equal bytes. Where
        there is none, no file is made.
        """
        lines = {key: line for key, _, line in self._sound()}
        if lines:
            into.write_text("".join(f"{line.rstrip()}\n" for _, line in sorted(lines.items())), encoding="utf-8")

    def _sound(self) -> Iterator[tuple[str, Json, str]]:
        """Key, answer and line, of the lines that have both."""
        if not self.path.exists():
            return
        with self.path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                try:
                    entry: Any = json.loads(line)
                    yield str(entry["key"]), entry["answer"], line
                except (ValueError, KeyError, TypeError):
                    continue

    def add(self, question: Question, answer: Json) -> None:
        """Append an answer and wait until it is on disk; from any thread."""
        line = json.dumps({"key": question.key, "kind": question.kind, "answer": answer}, ensure_ascii=True)
        with _LOCK, self.path.open("ab") as file:
            if file.tell() and not _ends_a_line(self.path):
                file.write(b"\n")  # what stood there was cut by a kill
            file.write(line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def _ends_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
