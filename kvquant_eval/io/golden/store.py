"""Golden sets on disk: ``MANIFEST.json`` pins every file by sha256; a changed file is refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Iterable, Iterator
from pathlib import Path
from typing import Any

from kvquant_eval.core.codec import DataError, digest, from_data, quoted
from kvquant_eval.core.records import GoldenSet, GoldenTurn
from kvquant_eval.core.strict_json import BadJson, parse
from kvquant_eval.core.turns import problem
from kvquant_eval.io.golden.manifest import MANIFEST, Manifest, PinnedFile, check_manifest, open_file, read_manifest

LONGEST_LINE = 32 * 2**20
"""Bytes of one turn: a million tokens are about 4 MiB, and escapes can make six times that of them."""


def load(folder: Path, workloads: Iterable[str]) -> GoldenSet:
    """Load and verify the turns of the named workload classes.

    Raises DataError, with file and line, for a missing or changed file, a bad turn, a duplicate id or a class without
    turns.
    """
    return _load(folder, read_manifest(folder), workloads)


def pin(
    folder: Path, name: str, version: str, about: dict[str, str], paths: Iterable[Path] | None = None
) -> dict[str, Any]:
    """The manifest of the JSONL files in ``folder``, or of those ``paths`` alone: sha256, number of turns and class of
    each, plus what is said about it. The files are taken as they are; ``verify`` says whether they can be loaded.
    """
    files = {}
    for path in sorted(folder.glob("*/*.jsonl") if paths is None else paths):
        with open_file(path) as stream:
            sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
            stream.seek(0)
            turns = sum(1 for _ in stream)
        files[f"{path.parent.name}/{path.name}"] = {"workload": path.parent.name, "sha256": sha256, "turns": turns}
    return {"name": name, "version": version, **about, "files": files}


def write_manifest(folder: Path, pinned: dict[str, Any]) -> Path:
    """Write what ``pin`` made beside the files; returns where."""
    path = folder / MANIFEST
    path.write_text(json.dumps(pinned, indent=2) + "\n", encoding="utf-8")
    return path


def verify(folder: Path, pinned: dict[str, Any]) -> Manifest:
    """What ``pin`` made, as a manifest under which the whole set can be loaded. Raises DataError as ``load`` does."""
    manifest = check_manifest(folder, pinned)
    _load(folder, manifest, manifest.workloads)
    return manifest


def _load(folder: Path, manifest: Manifest, workloads: Iterable[str]) -> GoldenSet:
    turns: list[GoldenTurn] = []
    places: dict[Hashable, str] = {}
    for workload in workloads:
        names = sorted(name for name, pinned in manifest.files.items() if pinned.workload == workload)
        if not names:
            raise DataError(
                f"golden: turns for every workload class, got none for {quoted(workload)} in {folder}; "
                f"the set has {', '.join(sorted(manifest.workloads))}"
            )
        for name in names:
            for place, turn in _turns(folder, name, manifest.files[name]):
                refuse_twice(turn, place, places)
                turns.append(turn)
    used = {name: pinned.sha256 for name, pinned in manifest.files.items()}
    return GoldenSet(name=manifest.name, version=manifest.version, sha256=digest(used), turns=tuple(turns))


def refuse_twice(turn: GoldenTurn, place: str, places: dict[Hashable, str]) -> None:
    """``places`` says where each id, and each place of a conversation, was seen first; ``turn`` is added."""
    if (first := places.setdefault(turn.turn_id, place)) != place:
        raise DataError(f"{place}: turn ids must be unique, got {turn.turn_id!r} 2 times, first in {first}; rename one")
    if (first := places.setdefault((turn.conversation_id, turn.turn_index), place)) != place:
        raise DataError(
            f"{place}: {turn.turn_id}: one turn at each turn_index of a conversation, got {turn.turn_index} of "
            f"{turn.conversation_id!r} 2 times, first in {first}; correct one"
        )


def _turns(folder: Path, name: str, pinned: PinnedFile) -> Iterator[tuple[str, GoldenTurn]]:
    """Each turn of a file with its place, ``file:line``."""
    path = folder / name
    number = 0
    with open_file(path) as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
        if found != pinned.sha256:
            raise DataError(
                f"{path}: the pinned sha256 {pinned.sha256[:12]}, got {found[:12]}; "
                "golden turns are immutable: restore the file, or pin a new version"
            )
        stream.seek(0)
        while line := stream.readline(LONGEST_LINE + 1):
            number += 1
            place = f"{path}:{number}"
            yield place, read_turn(line, place, pinned.workload)
    if not number:
        raise DataError(f"{path}: at least one turn, got an empty file; add turns, or remove it from the set")
    if number != pinned.turns:
        raise DataError(f"{folder / MANIFEST}: {name}: turns: {number}, got {pinned.turns}; pin the set again")


def read_turn(line: bytes, where: str, workload: str) -> GoldenTurn:
    """One line of a file as a turn of the class. Raises DataError, beginning with ``where``, for what is not one."""
    if len(line) > LONGEST_LINE:
        raise DataError(f"{where}: lines of at most {LONGEST_LINE >> 20} MiB, got a longer one; shorten the turn")
    if not line.strip():
        raise DataError(f"{where}: a turn on every line, got an empty line; remove it")
    if line.endswith(b"\r\n"):
        raise DataError(f"{where}: lines that end in LF, got CR LF; convert the file")
    try:
        data = parse(line.removesuffix(b"\n"))
    except BadJson as error:
        place = f"{where}:{error.column}" if error.column else where
        raise DataError(f"{place}: JSON, got {error.reason}; correct the line") from None
    if not isinstance(data, dict):
        raise DataError(f"{where}: a turn as a JSON object, got {quoted(data)}; correct the line")
    turn = from_data(GoldenTurn, data, where)
    if turn.workload != workload:
        raise DataError(f"{where}: workload {workload!r}, got {quoted(turn.workload)}; move the turn")
    if found := problem(turn):
        raise DataError(f"{where}: {found}")
    return turn
