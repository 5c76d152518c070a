"""JSON as people write it, read strictly: no key is dropped, and what is read can be written again."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import Any, NoReturn

from kvquant_eval.core.codec import quoted

DEEPEST = 100
"""Lists and objects inside each other. Serializers give up somewhere beyond 200."""

_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\w.+-]+')
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class BadJson(ValueError):
    """What is wrong with a text, and where: line and column count from 1; column 0 is not known. After bytes that are
    no UTF-8 the column counts bytes, else characters.
    """

    def __init__(self, reason: str, line: int = 1, column: int = 0) -> None:
        super().__init__(f"{reason} at line {line}, column {column}" if column else reason)
        self.reason = reason
        self.line = line
        self.column = column


def parse(data: bytes) -> Any:
    """The value of one JSON text in UTF-8.

    Raises BadJson for anything but strict JSON, for a key given twice in one object, and for what could not be written
    again: numbers beyond a double, half a surrogate pair, more than ``DEEPEST`` levels.
    """
    text = _text(data)
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        reason = error.msg.rstrip(": ").removesuffix(" starting at").removesuffix(" at")
        raise BadJson(reason, error.lineno, error.colno) from None
    except _NotJson as error:
        raise BadJson(error.literal[:80], *_place(text, error.literal)) from None
    except RecursionError:
        raise BadJson(f"more than {DEEPEST} levels") from None
    except BadJson:
        raise
    except ValueError:  # Python converts no more digits, so that nobody waits for it
        raise BadJson("an integer of more than 4300 digits") from None
    if text.count("[") + text.count("{") > DEEPEST and depth(value) > DEEPEST:
        raise BadJson(f"more than {DEEPEST} levels")
    if _SURROGATE.search(text) and not _encodes(value):
        raise BadJson("half a surrogate pair")
    return value


class _NotJson(ValueError):
    def __init__(self, literal: str) -> None:
        super().__init__(literal)
        self.literal = literal


def _text(data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line_start = data.rfind(b"\n", 0, error.start) + 1
        place = data.count(b"\n", 0, error.start) + 1, error.start - line_start + 1
        raise BadJson(f"the byte 0x{data[error.start]:02x}, which is no UTF-8", *place) from None
    if text.startswith("\ufeff"):
        raise BadJson("a byte order mark", 1, 1)
    return text


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        [(twice, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise BadJson(f"the key {quoted(twice)} twice in one object")
    return made


def _refuse(literal: str) -> NoReturn:
    raise _NotJson(literal)


def _finite(literal: str) -> float:
    value = float(literal)
    return value if math.isfinite(value) else _refuse(literal)


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_refuse, parse_float=_finite)


def _place(text: str, literal: str) -> tuple[int, int]:
    """Line and column of the first ``literal`` that stands outside of all strings."""
    start = next(match.start() for match in _TOKEN.finditer(text) if match[0].startswith(literal))
    return text.count("\n", 0, start) + 1, start - text.rfind("\n", 0, start)


def depth(value: Any) -> int:
    """How many lists and objects stand inside each other."""
    depth, level = 0, [value]
    while level := [inner for inner in level if isinstance(inner, list | dict)]:
        depth += 1
        level = [inner for outer in level for inner in (outer.values() if isinstance(outer, dict) else outer)]
    return depth


def _encodes(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True
