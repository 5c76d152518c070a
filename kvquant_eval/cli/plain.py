"""Plain configuration data to records, strictly, with what is wrong in a user's words."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from kvquant_eval.core.codec import DataError, nearest

R = TypeVar("R")

MOST, DEEPEST = 100_000, 50
"""Values in a configuration, and levels of it."""
RULES = {
    "int": ("a whole number", "write it in digits"),
    "float": ("a number", "write one such as 0.5"),
    "string": ("text", "set it"),
    "bool": ("true or false", "choose one"),
    "tuple": ("a list", "write it in brackets: [...]"),
    "dict": ("keys and values", "write {key: value}"),
    "dataclass": ("keys and values", "write {key: value}"),
}
"""Kinds of value as pydantic names them: the rule and the remedy."""


def check_plain(data: Any) -> None:
    """Raise DataError unless ``data`` is what JSON can say: text keys, numbers of 64 bits, text in UTF-8, and not too
    deep or too many of them (a few lines of YAML can stand for more than fits in memory).
    """
    todo = [("", data, 0)]
    for _ in range(MOST):
        if not todo:
            return
        place, node, depth = todo.pop()
        if depth > DEEPEST:
            raise DataError(f"configuration: at most {DEEPEST} levels, got more; write it flatter")
        if isinstance(node, Mapping):
            todo += [(_key(place, key), inner, depth + 1) for key, inner in node.items()]
        elif isinstance(node, list | tuple):
            todo += [(f"{place}.{n}", inner, depth + 1) for n, inner in enumerate(node)]
        else:
            _check_scalar(place, node)
    raise DataError(f"configuration: at most {MOST} values, got more; leave some out")


def mapping(data: Any, where: str) -> Mapping[str, Any]:
    """``data`` itself. Raises DataError unless it has keys and values."""
    if not isinstance(data, Mapping):
        raise DataError(f"{where}: keys and values, got {shown(data)}; set {where}.KEY=...")
    return data


def known_keys(data: Any, known: Iterable[str], where: str = "") -> Mapping[str, Any]:
    """``data`` itself. Raises DataError for what is no mapping, and for a key not in ``known``, with the nearest."""
    known = sorted(known)
    for key in mapping(data, where or "configuration"):
        if key not in known:
            raise unknown_key(f"{where}.{key}" if where else key, key, known)
    return data  # type: ignore[no-any-return]


def unknown_key(where: str, key: str, known: Iterable[str]) -> DataError:
    """The error for ``key``, which is none of ``known``."""
    known = sorted(known)
    remedy = one_line(nearest(key, known)) if known else "leave it out"
    return DataError(f"{one_line(where) or 'configuration'}: a known key, got {shown(key)}; {remedy}")


def missing(where: str) -> DataError:
    """The error for a value that is not there."""
    return DataError(f"{where}: a value, got none; set it: {where}=...")


def value(kind: type[R], data: Any, where: str) -> R:
    """A value of type ``kind`` from JSON values, strictly: ``true`` and ``'3'`` are no numbers, ``3`` is no text.

    Raises DataError with the place, the rule and the value; one that ``kind`` itself raises goes through.
    """
    try:
        made: R = _adapter(cast("Hashable", kind)).validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        raise _reworded(error, where) from None
    return made


def record(kind: type[R], data: Any, where: str, **given: Any) -> R:
    """As ``value``, for a dataclass. Keys that it does not have are refused, and those that are ``given`` here."""
    known = [field.name for field in fields(kind) if field.name not in given]  # type: ignore[arg-type]
    return value(kind, {**known_keys(data, known, where), **given}, where)


def _key(place: str, key: Any) -> str:
    if not isinstance(key, str):
        raise DataError(f"{one_line(place) or 'configuration'}: keys that are text, got {shown(key)}; put it in quotes")
    _check_scalar(place, key)
    return f"{place}.{key}" if place else key


def _check_scalar(place: str, node: Any) -> None:
    where = one_line(place) or "configuration"
    if isinstance(node, str):
        if not _is_unicode(node):
            raise DataError(f"{where}: text in UTF-8, got {shown(node)}; correct it")
    elif isinstance(node, int):
        if node.bit_length() > 64:
            raise DataError(f"{where}: a number of at most 64 bits, got one of {node.bit_length()}; correct it")
    elif not isinstance(node, float | None):
        rule = "text, a number, true, false, null, a list, or keys with values"
        raise DataError(f"{where}: {rule}, got {one_line(str(node), 80)}; put it in quotes")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown(value: Any) -> str:
    """A value as the user writes it, in one line of at most 80 characters, control characters escaped."""
    if isinstance(value, str):
        return repr(value[:80])
    return one_line(json.dumps(value, ensure_ascii=False, default=str), 80)


def one_line(text: str, most: int = 300) -> str:
    """``text`` in one line of at most ``most`` characters; what is not printable is escaped."""
    line = " ".join(text.split())
    escaped = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
    return escaped if len(escaped) <= most else f"{escaped[: most - 3]}..."


def _reworded(error: ValidationError, where: str) -> DataError:
    first = error.errors(include_url=False)[0]
    place = one_line(".".join([where, *map(str, first["loc"])]))
    kind, got = first["type"], first["input"]
    if kind == "missing":
        return missing(place)
    if kind == "enum":
        choices = re.findall("'([^']*)'", first["ctx"]["expected"])
        remedy = nearest(got, choices) if isinstance(got, str) else f"choose from {', '.join(choices)}"
        return DataError(f"{place}: one of {', '.join(choices)}, got {shown(got)}; {remedy}")
    rule, remedy = RULES.get(kind.split("_")[0], (first["msg"], "correct it"))
    if rule == "text" and isinstance(got, int | float):
        remedy = f"put it in quotes: '{shown(got)}'"
    return DataError(f"{place}: {rule}, got {shown(got)}; {remedy}")


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
