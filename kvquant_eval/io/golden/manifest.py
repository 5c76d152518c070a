"""``MANIFEST.json`` of a golden set: which files it has, and what pins each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import Any

from kvquant_eval.core.codec import DataError, from_data, quoted
from kvquant_eval.core.records import Whole
from kvquant_eval.core.strict_json import BadJson, parse
from kvquant_eval.core.turns import LONGEST_NAME, WORKLOAD_RULE, is_name, is_workload

MANIFEST = "MANIFEST.json"
LARGEST_MANIFEST = 16 * 2**20
"""Bytes; enough for some 80,000 files."""

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class PinnedFile:
    """The class of the turns in one file, the file's sha256 (hex), and how many turns it has."""

    workload: str
    sha256: str
    turns: Whole


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A golden set's name and version, and its files by their names relative to the set's folder."""

    name: str
    version: str
    files: Mapping[str, PinnedFile]

    @property
    def workloads(self) -> tuple[str, ...]:
        """The classes of the set, in the order of the files."""
        return tuple(dict.fromkeys(file.workload for file in self.files.values()))


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a golden set. Raises DataError when it is missing or damaged, says too little of a file, or names
    a file that is not one of the folder's.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise DataError(f"golden.path: a folder with a {MANIFEST}, got {folder}; correct the path")
    with open_file(path) as stream:
        data = stream.read(LARGEST_MANIFEST + 1)
    if len(data) > LARGEST_MANIFEST:
        raise DataError(f"{path}: a manifest of at most {LARGEST_MANIFEST >> 20} MiB, got a larger one; restore it")
    try:
        said = parse(data)
    except BadJson as error:
        raise DataError(f"{path}: a manifest in JSON, got {error}; restore it") from None
    return check_manifest(folder, said)


def check_manifest(folder: Path, said: Any) -> Manifest:
    """The manifest that JSON values say. Raises DataError as ``read_manifest`` does."""
    path = folder / MANIFEST
    if not isinstance(said, dict):
        raise DataError(f"{path}: a manifest with name, version and files, got {quoted(said)}; restore it")
    for key, kind in (("name", str), ("version", str), ("files", dict)):
        if not isinstance(said.get(key), kind):
            got = f"{key} {quoted(said[key])}" if key in said else f"no {key}"
            raise DataError(f"{path}: a manifest with name, version and files, got {got}; restore it")
        if kind is str and not is_name(said[key]):
            rule = f"a {key} of 1 to {LONGEST_NAME} printable characters"
            raise DataError(f"{path}: {rule}, got {quoted(said[key])}; correct it")
    names: dict[Path, str] = {}
    for name in said["files"]:
        target = _inside(folder, name)
        if (other := names.setdefault(target, name)) != name:
            raise DataError(f"{path}: every file once, got it as {quoted(other)} and {quoted(name)}; remove one")
    files = {name: _pinned(entry, f"{path}: {name}") for name, entry in said["files"].items()}
    return Manifest(name=said["name"], version=said["version"], files=files)


def open_file(path: Path) -> BufferedReader:
    """Open a file of the set for reading. Raises DataError for what cannot be opened and what is no file: a pipe would
    keep its reader waiting.
    """
    try:
        if path.exists() and not path.is_file():
            raise DataError(f"{path}: a readable file, got something else; restore it")
        return path.open("rb")
    except OSError as error:
        raise DataError(f"{path}: a readable file, got {error.strerror}; restore it") from None


def _inside(folder: Path, name: str) -> Path:
    """Where a file of the set is, links followed."""
    path = folder / MANIFEST
    if not is_name(name):
        rule = f"file names of 1 to {LONGEST_NAME} printable characters"
        raise DataError(f"{path}: {rule}, got {quoted(name)}; rename the file")
    plain = PurePosixPath(name)
    try:
        target = (folder / plain).resolve()
        inside = target.is_relative_to(folder.resolve()) and ".." not in plain.parts and not plain.is_absolute()
    except (OSError, RuntimeError):  # a link that leads to itself
        inside = False
    if not inside:
        raise DataError(f"{path}: files inside the golden folder, got {name!r}; remove the entry")
    if str(plain) != name:
        raise DataError(f"{path}: plain file names, got {name!r}; write {str(plain)!r}")
    return target


def _pinned(entry: Any, where: str) -> PinnedFile:
    if not isinstance(entry, dict):
        raise DataError(f"{where}: an object with workload, sha256 and turns, got {quoted(entry)}; restore it")
    pinned = from_data(PinnedFile, entry, where)
    if not is_workload(pinned.workload):
        raise DataError(f"{where}: workload: {WORKLOAD_RULE}, got {quoted(pinned.workload)}; rename the class")
    if not _SHA256.fullmatch(pinned.sha256):
        raise DataError(f"{where}: sha256: 64 hex digits in lower case, got {quoted(pinned.sha256)}; restore it")
    if pinned.turns < 0:
        raise DataError(f"{where}: turns: 0 or more, got {pinned.turns}; restore it")
    return pinned
