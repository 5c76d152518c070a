"""Files of the user, read a line at a time, with a progress bar where a terminal shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

from kvquant_eval.core.chat import Unusable
from kvquant_eval.core.codec import DataError, quoted
from kvquant_eval.core.conversation import Conversation, LeftOut
from kvquant_eval.core.records import Json
from kvquant_eval.core.strict_json import BadJson, parse
from kvquant_eval.io.golden.manifest import open_file

LONGEST_RECORD = 256 * 2**20
"""Bytes of one line or of one JSON file."""


def json_lines(path: Path) -> Iterator[tuple[str, Json] | LeftOut]:
    """Every line that is not blank as (``file:line``, value); what is no strict JSON is left out."""
    with open_file(path) as stream, _bar(path) as bar:
        number = 0
        while line := stream.readline(LONGEST_RECORD + 1):
            number += 1
            bar.update(len(line))
            place = f"{path}:{number}"
            if len(line) > LONGEST_RECORD:
                while line and not line.endswith(b"\n"):
                    line = stream.readline(LONGEST_RECORD)
                    bar.update(len(line))
                yield LeftOut(place, f"a line of more than {LONGEST_RECORD >> 20} MiB")
            elif line.strip():
                yield _parsed(line.removesuffix(b"\n").removesuffix(b"\r"), place)


def json_files(source: Path, pattern: str = "*.json") -> Iterator[tuple[str, Json] | LeftOut]:
    """The JSON file, or every file of the folder that matches, as (file, value). Raises DataError for none."""
    paths = sorted(source.rglob(pattern)) if source.is_dir() else [source]
    if not paths:
        raise DataError(f"{source}: a folder with {pattern} files, got none; correct the path")
    for path in tqdm(paths, unit="file", disable=None):
        with open_file(path) as stream:
            data = stream.read(LONGEST_RECORD + 1)
        if len(data) > LONGEST_RECORD:
            yield LeftOut(str(path), f"a file of more than {LONGEST_RECORD >> 20} MiB")
        else:
            yield _parsed(data, str(path))


def _parsed(data: bytes, place: str) -> tuple[str, Json] | LeftOut:
    try:
        return place, parse(data.removeprefix(b"\xef\xbb\xbf"))
    except BadJson as error:
        return LeftOut(place, f"JSON that cannot be read, got {error}")


def conversations(
    found: Iterable[tuple[str, Json] | LeftOut], make: Callable[[Json, str], Conversation]
) -> Iterator[Conversation | LeftOut]:
    """What ``make(value, place)`` makes of every record; one that it finds ``Unusable`` is left out."""
    for record in found:
        if isinstance(record, LeftOut):
            yield record
            continue
        place, value = record
        try:
            yield make(value, place)
        except Unusable as error:
            yield LeftOut(place, str(error))


def numbered(place: str) -> str:
    """A conversation's name where the source has none: the file's, and the record's number in it."""
    source, _, number = place.rpartition(":")
    return f"{Path(source).stem}-{number}"


def expect(value: Json, kind: type, what: str) -> Json:
    """The value, if it is of the kind. Raises ``Unusable`` else; ``what`` names it."""
    if not isinstance(value, kind):
        raise Unusable(f"{what}, got {quoted(value)}")
    return value


def _bar(path: Path) -> tqdm[Any]:
    return tqdm(total=path.stat().st_size, desc=path.name, unit="B", unit_scale=True, disable=None)
