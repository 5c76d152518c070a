"""The journal of an arm: replays on disk, committed block by block, append-only.

The first line says whose replays these are: ``{"journal": 1, "model": ..., "kv_requested": ..., ...}``. Then each block
is its replays, one JSON line each, and a commit line ``{"commit": index, "arm": ..., "n": ..., ..., "sha256": ...}``
over the lines before it and over itself. ``arm`` is the fingerprint of everything that can change the replays: blocks
of another arm, model, engine or golden set are recognised. Lines that no commit line covers are of a block that was not
finished: it is run again whole.
"""

from __future__ import annotations

import hashlib
import json
import operator
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

from kvquant_eval.core.codec import DataError, from_data, from_json, to_data, to_json
from kvquant_eval.core.ranges import LayerRanges
from kvquant_eval.core.records import BlockResult, Replay
from kvquant_eval.core.stored import StoredLayer

VERSION = 1
Place = tuple[int, int]
"""(First byte, bytes): a block's lines and its commit line."""
HEADER, COMMIT = '{"journal"', '{"commit"'


class Journal:
    """An append-only file of the finished blocks of the arm with this fingerprint."""

    def __init__(self, path: Path, fingerprint: str = "") -> None:
        self.path, self.fingerprint = path, fingerprint

    def begin(self, identity: Mapping[str, Any]) -> None:
        """Write the header of a new journal; one that has lines already keeps the header it has."""
        if not self.path.exists() or self.path.stat().st_size == 0:
            self._append([json.dumps({"journal": VERSION, **identity})])

    def commit(self, result: BlockResult) -> None:
        """Append a finished block and wait until it is on disk."""
        lines = [to_json(replay) for replay in result.replays]
        mark = {
            "commit": result.index,
            "arm": self.fingerprint,
            "n": len(lines),
            "preemptions": result.preemptions,
            "seconds": round(result.seconds, 3),
            "second_rounding": list(result.second_rounding),
            "stored": [to_data(layer) for layer in result.stored],
            "ranges": [to_data(layer) for layer in result.ranges],
        }
        self._append([*lines, _commit_line(mark, lines)])

    def blocks(self) -> Iterator[BlockResult]:
        """The committed blocks in file order; an unfinished tail and damaged blocks are passed over.

        Raises DataError for a whole block of another arm, and where a replay is as it was written, but no replay.
        """
        if self.path.exists():
            with self.path.open(encoding="utf-8", errors="replace") as file:
                yield from self._blocks(file)

    def places(self) -> dict[int, Place]:
        """Where each committed block lies, by its index: blocks can be read in another order than they ran in."""
        found: dict[int, Place] = {}
        if not self.path.exists():
            return found
        at = start = 0
        with self.path.open("rb") as file:
            for line in file:
                at += len(line)
                if line.startswith(COMMIT.encode()) and line.endswith(b"\n"):
                    with suppress(ValueError, KeyError, TypeError):  # damaged
                        found[operator.index(json.loads(line)["commit"])] = (start, at - start)
                    start = at
        return found

    def read(self, place: Place) -> BlockResult | None:
        """The block at a place, None where it is damaged. Raises DataError as ``blocks`` does."""
        start, size = place
        with self.path.open("rb") as file:
            file.seek(start)
            raw = BytesIO(file.read(size))
        return next(self._blocks(TextIOWrapper(raw, encoding="utf-8", errors="replace")), None)

    def truncate_unfinished(self) -> None:
        """Cut what stands behind the header and the last commit line, so that the next block begins on a line of its
        own.
        """
        if not self.path.exists():
            return
        at = end = 0
        with self.path.open("r+b") as file:
            for line in file:
                at += len(line)
                if line.startswith((HEADER.encode(), COMMIT.encode())) and line.endswith(b"\n"):
                    end = at
            file.truncate(end)

    def _blocks(self, file: Iterable[str]) -> Iterator[BlockResult]:
        lines: list[str] = []
        for line in file:
            if line.startswith(COMMIT) and line.endswith("\n"):
                if (result := self._block(lines, line.rstrip("\n"))) is not None:
                    yield result
                lines = []
            else:
                lines.append(line.rstrip("\n"))

    def _append(self, lines: Sequence[str]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _block(self, lines: Sequence[str], commit_line: str) -> BlockResult | None:
        try:
            mark = json.loads(commit_line)
            lines = lines[len(lines) - mark["n"] :]
            del mark["sha256"]
        except (ValueError, KeyError, TypeError):
            return None
        if _commit_line(mark, lines) != commit_line:
            return None
        if mark.get("arm") != self.fingerprint:
            theirs, ours = str(mark.get("arm"))[:12], self.fingerprint[:12]
            raise DataError(
                f"{self.path}: replays of the arm {ours}, got block {mark['commit']} of the arm {theirs}; "
                "put the file back where it belongs, or remove it"
            )
        replays = tuple(from_json(Replay, line, str(self.path)) for line in lines)
        return BlockResult(
            index=mark["commit"],
            replays=replays,
            preemptions=mark["preemptions"],
            seconds=mark["seconds"],
            second_rounding=tuple(mark["second_rounding"]),
            stored=tuple(from_data(StoredLayer, layer, str(self.path)) for layer in mark.get("stored", [])),
            ranges=tuple(from_data(LayerRanges, layer, str(self.path)) for layer in mark.get("ranges", [])),
        )


def _commit_line(mark: Mapping[str, Any], lines: Sequence[str]) -> str:
    sha256 = hashlib.sha256("\n".join([*lines, json.dumps(mark)]).encode()).hexdigest()
    return json.dumps({**mark, "sha256": sha256})
