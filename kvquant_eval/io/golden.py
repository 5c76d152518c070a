"""Golden sets on disk: ``MANIFEST.json`` pins every file by sha256; a changed file is refused."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kvquant_eval.core.codec import DataError, digest, from_json
from kvquant_eval.core.records import GoldenSet, GoldenTurn

MANIFEST = "MANIFEST.json"


def load(folder: Path, workloads: Iterable[str]) -> GoldenSet:
    """Load and verify the turns of the named workload classes.

    Raises DataError, with file and line, for a missing or changed file, a bad turn, a duplicate id or a class without
    turns.
    """
    manifest = read_manifest(folder)
    turns: list[GoldenTurn] = []
    for workload in workloads:
        files = sorted(name for name, entry in manifest["files"].items() if entry["workload"] == workload)
        if not files:
            raise DataError(
                f"golden: turns for every workload class, got none for {workload!r} in {folder}; "
                f"the set has {', '.join(sorted({e['workload'] for e in manifest['files'].values()}))}"
            )
        for name in files:
            turns += _turns(folder, name, manifest["files"][name])
    for turn_id, count in Counter(turn.turn_id for turn in turns).items():
        if count > 1:
            raise DataError(f"{folder}: turn ids must be unique, got {turn_id!r} {count} times; rename one")
    used = {name: entry["sha256"] for name, entry in manifest["files"].items()}
    return GoldenSet(name=manifest["name"], version=manifest["version"], sha256=digest(used), turns=tuple(turns))


def pin(folder: Path, name: str, version: str, about: dict[str, str]) -> dict[str, Any]:
    """The manifest of the JSONL files in ``folder``: sha256, number of turns and class of each, plus what is said
    about it.
    """
    files = {}
    for path in sorted(folder.glob("*/*.jsonl")):
        data = path.read_bytes()
        files[f"{path.parent.name}/{path.name}"] = {
            "workload": path.parent.name,
            "sha256": hashlib.sha256(data).hexdigest(),
            "turns": data.count(b"\n"),
        }
    return {"name": name, "version": version, **about, "files": files}


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a golden set. Raises DataError when it is missing, damaged or says too little of a file."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise DataError(f"golden.path: a folder with a {MANIFEST}, got {folder}; correct the path") from None
    except ValueError as error:
        raise DataError(f"{path}: a manifest in JSON, got {error}; restore it") from None
    for key, kind in (("name", str), ("version", str), ("files", dict)):
        if not isinstance(_get(manifest, key), kind):
            raise DataError(f"{path}: a manifest with name, version and files, got no {key}; restore it")
    for name, entry in manifest["files"].items():
        for key in ("workload", "sha256"):
            if not isinstance(_get(entry, key), str):
                raise DataError(f"{path}: workload and sha256 of every file, got no {key} of {name!r}; restore it")
    result: dict[str, Any] = manifest
    return result


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None


def _turns(folder: Path, name: str, entry: dict[str, Any]) -> list[GoldenTurn]:
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise DataError(f"{folder / MANIFEST}: files inside the golden folder, got {name!r}; remove the entry")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: a readable file, got {error.strerror}; restore it") from None
    found = hashlib.sha256(data).hexdigest()
    if found != entry["sha256"]:
        raise DataError(
            f"{path}: the pinned sha256 {entry['sha256'][:12]}, got {found[:12]}; "
            "golden turns are immutable: restore the file, or pin a new version"
        )
    turns = []
    for number, line in enumerate(data.rstrip(b"\n").split(b"\n"), 1):
        turn = from_json(GoldenTurn, line, f"{path}:{number}")
        if turn.workload != entry["workload"]:
            raise DataError(f"{path}:{number}: workload {entry['workload']!r}, got {turn.workload!r}; move the turn")
        turns.append(turn)
    return turns
