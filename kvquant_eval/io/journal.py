"""The journal of an arm: replays on disk, committed block by block, append-only.

Each block is its replays, one JSON line each, then a commit line ``{"commit": index, "n": ..., "sha256": ...}`` over
the lines before it. Lines that no commit line covers are of a block that was not finished: it is run again whole.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from kvquant_eval.core.codec import from_json, to_json
from kvquant_eval.core.records import BlockResult, Replay


class Journal:
    """An append-only file of finished blocks."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def commit(self, result: BlockResult) -> None:
        """Append a finished block and wait until it is on disk."""
        lines = [to_json(replay) for replay in result.replays]
        mark = {
            "commit": result.index,
            "n": len(lines),
            "sha256": _sha(lines),
            "preemptions": result.preemptions,
            "seconds": round(result.seconds, 3),
        }
        with self.path.open("a", encoding="utf-8") as file:
            file.write("\n".join([*lines, json.dumps(mark)]) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def blocks(self) -> Iterator[BlockResult]:
        """The committed blocks in file order; an unfinished tail and damaged blocks are passed over."""
        if not self.path.exists():
            return
        lines: list[str] = []
        with self.path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith('{"commit"') and line.endswith("\n"):
                    if (result := self._block(lines, line)) is not None:
                        yield result
                    lines = []
                else:
                    lines.append(line.rstrip("\n"))

    def truncate_unfinished(self) -> None:
        """Cut what stands behind the last commit line, so that the next block begins on a line of its own."""
        if not self.path.exists():
            return
        data = self.path.read_bytes()
        mark = max(data.rfind(b'\n{"commit"'), 0 if data.startswith(b'{"commit"') else -1)
        end = data.find(b"\n", mark + 1) + 1 if mark >= 0 else 0
        with self.path.open("r+b") as file:
            file.truncate(end)

    def _block(self, lines: list[str], mark_line: str) -> BlockResult | None:
        try:
            mark = json.loads(mark_line)
        except ValueError:
            return None
        lines = lines[len(lines) - mark["n"] :] if len(lines) >= mark["n"] else []
        if len(lines) != mark["n"] or _sha(lines) != mark["sha256"]:
            return None
        replays = tuple(from_json(Replay, line, str(self.path)) for line in lines)
        return BlockResult(
            index=mark["commit"], replays=replays, preemptions=mark["preemptions"], seconds=mark["seconds"]
        )


def _sha(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
