"""Records to JSON and back. Bad data raises ``DataError`` with the place in it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

R = TypeVar("R")


QUOTED_CHARS = 80
MOST_CHOICES = 30


class DataError(Exception):
    """Bad input, in one line: ``<where>: <rule>, got <value>; <remedy>``.

    Only what prints comes out of it: a line feed or a terminal's escape becomes a backslash escape.
    """

    def __init__(self, line: str) -> None:
        super().__init__("".join(char if char.isprintable() else repr(char)[1:-1] for char in line))


def quoted(value: Any) -> str:
    """A value for an error message: its first ``QUOTED_CHARS`` characters, in quotes and escaped."""
    text = str(value)
    return repr(text[:QUOTED_CHARS]) + "..." * (len(text) > QUOTED_CHARS)


def to_json(record: Any) -> str:
    """One line of strict JSON; floats keep every bit."""
    return _adapter(type(record)).dump_json(record).decode()


def to_data(record: Any) -> Any:
    """The record as plain JSON values."""
    return _adapter(type(record)).dump_python(record, mode="json")


def from_json(kind: type[R], text: str | bytes, where: str) -> R:
    """Parse a record of type ``kind``; ``where`` (file:line) goes into the ``DataError``."""
    try:
        record: R = _adapter(kind).validate_json(text)
    except ValidationError as error:
        raise DataError(f"{where}: {_first(error, kind)}") from None
    return record


def from_data(kind: type[R], data: Any, where: str) -> R:
    """As ``from_json``, from plain JSON values."""
    try:
        record: R = _adapter(kind).validate_python(data)
    except ValidationError as error:
        raise DataError(f"{where}: {_first(error, kind)}") from None
    return record


def nearest(name: str, known: Iterable[str]) -> str:
    """A remedy for an unknown name: the nearest known one, or the first ``MOST_CHOICES`` of them."""
    known = list(known)
    near = get_close_matches(name, known, 1)
    more = f" and {len(known) - MOST_CHOICES} more" * (len(known) > MOST_CHOICES)
    return f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(known[:MOST_CHOICES])}{more}"


def canonical(value: Any) -> str:
    """JSON with sorted keys and no spaces: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(value: Any) -> str:
    """sha256 (hex) of the canonical JSON of ``value``."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def _adapter(kind: Any) -> TypeAdapter[Any]:
    return _build(kind)


@cache
def _build(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _first(error: ValidationError, kind: Any) -> str:
    """The first thing wrong; an unknown key before all else, as it is often why another one is missing."""
    errors = error.errors(include_url=False)
    first = next((e for e in errors if e["type"] == "unexpected_keyword_argument"), errors[0])
    place = ".".join(str(part)[:QUOTED_CHARS] for part in first["loc"]) or "line"
    if first["type"] == "unexpected_keyword_argument":
        key = str(first["loc"][-1])
        return f"{place}: a known key, got {quoted(key)}; {nearest(key[:QUOTED_CHARS], _keys(kind))}"
    return f"{place}: {first['msg']}, got {quoted(first['input'])}"


def _keys(kind: Any) -> list[str]:
    """The keys of a record and of the records in it."""
    schema = _adapter(kind).json_schema()
    return sorted({key for part in (schema, *schema.get("$defs", {}).values()) for key in part.get("properties", {})})
