"""JSON schemas out of a golden set, and hostile JSON against them: nothing is fetched, and the time is bounded.

Schemas are of draft 2020-12. Patterns are those of ``core.pattern``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError, best_match
from jsonschema.protocols import Validator
from jsonschema.validators import extend
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from kvquant_eval.core import pattern
from kvquant_eval.core.codec import quoted
from kvquant_eval.core.records import Json

DRAFT = "https://json-schema.org/draft/2020-12/schema"
MOST_REFERENCES = 20_000
"""Times that a check follows a ``$ref``: alternatives that lead back to themselves double with every level."""
_REFUSED = ("patternProperties", "$dynamicRef", "$dynamicAnchor")
_NOWHERE: Registry[Any] = Registry()
"""It knows no other schema and retrieves none."""


class Unbounded(Exception):
    """The check of a value was given up."""


def problem(schema: Mapping[str, Json]) -> str | None:
    """The first thing that makes ``schema`` unusable, in a few words; None: nothing."""
    if schema.get("$schema", DRAFT) != DRAFT:
        return f"the draft {quoted(schema['$schema'])}"
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        return quoted(error.message)
    except RecursionError:
        return "one nested too deeply"
    resolver = _NOWHERE.resolver_with_root(DRAFT202012.create_resource(schema))
    for key, value in _entries({**schema, "$schema": None}):
        if key in _REFUSED or (key == "$schema" and value is not None):
            return f"the keyword {key}"
        if key == "pattern" and isinstance(value, str) and (why := pattern.problem(value)):
            return f"the pattern {quoted(value)} ({why})"
        if key == "$ref" and isinstance(value, str):
            try:
                resolver.lookup(value)
            except Unresolvable:
                return f"a reference to {quoted(value)}"
    try:
        mismatch(schema, None)
    except Unbounded:
        return "one that refers to itself without end"
    return None


def mismatch(schema: Mapping[str, Json], value: Json) -> str | None:
    """What keeps ``value`` from being of ``schema``, in a few words; None: it is of it. ``schema`` has no ``problem``.

    Raises Unbounded where that would take too long or too deep a recursion.
    """
    kind = _counting()
    plain = {key: inner for key, inner in schema.items() if key != "$schema"}  # it would choose another class
    try:
        error = best_match(kind(plain, registry=_NOWHERE).iter_errors(value))
    except (RecursionError, _TooMany):
        raise Unbounded("it is nested too deeply, or fits too many alternatives") from None
    except ArithmeticError:
        return "a number beyond all bounds"
    if error is None:
        return None
    place = "".join(f"[{quoted(part) if isinstance(part, str) else part}]" for part in list(error.absolute_path)[:8])
    return f"{place or 'it'}: {error.validator} {quoted(error.validator_value)}, got {quoted(error.instance)}"


class _TooMany(Exception):
    pass


def _entries(schema: Json) -> Iterator[tuple[str, Json]]:
    """Every key with its value, at whatever depth; a property may have the name of a keyword."""
    waiting = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield from value.items()
        waiting += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _counting() -> type[Validator]:
    """A validator class that follows ``MOST_REFERENCES`` references, and then raises _TooMany."""
    left = [MOST_REFERENCES]
    follow: Any = Draft202012Validator.VALIDATORS["$ref"]

    def reference(validator: Any, ref: str, instance: Json, schema: Json) -> Iterator[ValidationError]:
        left[0] -= 1
        if left[0] < 0:
            raise _TooMany
        yield from follow(validator, ref, instance, schema) or ()

    kind: type[Validator] = extend(
        Draft202012Validator, {"$ref": reference, "pattern": _pattern, "uniqueItems": _unique}
    )
    return kind


def _pattern(validator: Any, wanted: str, instance: Json, schema: Json) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not pattern.found(wanted, instance):
        yield ValidationError("does not match")


def _unique(validator: Any, wanted: bool, instance: Json, schema: Json) -> Iterator[ValidationError]:
    if wanted and isinstance(instance, list) and len({_key(value) for value in instance}) < len(instance):
        yield ValidationError("has an item twice")


def _key(value: Json) -> object:
    """Equal for equal JSON: 1 is 1.0, and neither is true."""
    if isinstance(value, dict):
        return frozenset((key, _key(inner)) for key, inner in value.items())
    if isinstance(value, list):
        return tuple(map(_key, value))
    return type(value) is bool, value
