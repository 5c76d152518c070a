"""Whether a tool call is the expected one: names, arguments and the values that are right for them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from kvquant_eval.core.records import Json
from kvquant_eval.core.tool_calls import Written


def answered(expected: Sequence[Mapping[str, Any]], calls: Sequence[Mapping[str, Any]]) -> list[int | None]:
    """Which expected call each of ``calls`` makes, in any order, each one once; None for a call of its own.

    Arguments must be equal as JSON values, or be accepted.
    """
    open_ = list(range(len(expected)))
    found: list[int | None] = []
    for call in calls:
        index = next((i for i in open_ if _same(expected[i], call)), None)
        found.append(index)
        if index is not None:
            open_.remove(index)
    return found


def _same(want: Mapping[str, Any], call: Mapping[str, Any]) -> bool:
    return bool(want["name"] == call["name"]) and all(right_arguments(want, call, 0.0).values())


def right_arguments(want: Mapping[str, Any], call: Mapping[str, Any], tolerance: float) -> dict[str, bool]:
    """Every argument that is due or given, and whether it has a right value; numbers are equal within the relative
    ``tolerance`` where one of them is a float, else exactly.
    """
    got = arguments_of(call)
    right = {}
    for key in dict.fromkeys((*want["arguments"], *got)):
        right[key] = key in got and any(_equal(value, got[key], tolerance) for value in accepted(want, key))
    return right


def arguments_of(call: Mapping[str, Any]) -> Mapping[str, Json]:
    """A call's arguments; none where they are no object."""
    given = call.get("arguments")
    return given if isinstance(given, dict) else {}


def accepted(want: Mapping[str, Any], key: str) -> list[Json]:
    """The right values of an argument, the expected one first."""
    arguments = want["arguments"]
    return [*([arguments[key]] if key in arguments else ()), *want.get("accept", {}).get(key, ())]


def _equal(want: Json, got: Json, tolerance: float) -> bool:
    """Whether two JSON values are equal. It goes no deeper than ``want``."""
    if isinstance(got, Written):
        return _equal(want, got.text if isinstance(want, str) else got.value, tolerance)
    if isinstance(want, dict) and isinstance(got, dict):
        return want.keys() == got.keys() and all(_equal(want[key], got[key], tolerance) for key in want)
    if isinstance(want, list | tuple) and isinstance(got, list):
        return len(want) == len(got) and all(_equal(a, b, tolerance) for a, b in zip(want, got, strict=True))
    if isinstance(want, float | int) and isinstance(got, float | int):
        return _same_number(want, got, tolerance)
    return type(want) is type(got) and bool(want == got)


def _same_number(want: float, got: float, tolerance: float) -> bool:
    """Whole numbers are often ids, so they are exact."""
    if isinstance(want, bool) or isinstance(got, bool) or (isinstance(want, int) and isinstance(got, int)):
        return type(want) is type(got) and want == got
    try:
        return math.isclose(want, got, rel_tol=tolerance)
    except OverflowError:  # one of them is beyond a double
        return False
