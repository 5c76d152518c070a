"""Regular expressions out of a golden set, searched in hostile text in linear time.

The engine is Rust's crate ``regex``, which pydantic brings: it never goes back, so it has no look-around and no back
references, and a pattern that would take too much memory does not compile.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import SchemaError

LONGEST = 1000
"""Characters of a pattern."""
_CONFIG = ConfigDict(regex_engine="rust-regex")


def problem(pattern: str) -> str | None:
    """Why ``pattern`` cannot be used, in a few words; None: it can."""
    if len(pattern) > LONGEST:
        return f"one of {len(pattern)}"
    try:
        _compiled(pattern)
    except SchemaError as error:
        return str(error).rstrip(".").splitlines()[-1].strip().removeprefix("SchemaError: ").removeprefix("error: ")
    return None


def found(pattern: str, text: str) -> bool:
    """Whether ``pattern`` matches somewhere in ``text``; never in one with half a surrogate pair.

    Raises pydantic_core.SchemaError for a pattern with a ``problem``.
    """
    try:
        _compiled(pattern).validate_python(text)
    except ValidationError:
        return False
    return True


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> TypeAdapter[str]:
    return TypeAdapter(Annotated[str, Field(pattern=pattern)], config=_CONFIG)
