"""Other people's errors as one clause of ours."""

from __future__ import annotations

import re

from pydantic import ValidationError

_SENTENCE_END = re.compile(r"\.\s+(?=[A-Z])")
_LONGEST = 300


def clause(error: BaseException) -> str:
    """``<type>: <first sentence>`` of an error, one printable line of at most 300 characters."""
    kind = type(error).__name__
    said = printable(message(error))
    return f"{kind}: {said}" if said else kind


def message(error: BaseException) -> str:
    """What an error says in its first sentence; of a validation error, of the first thing wrong."""
    text = error.errors(include_url=False)[0]["msg"] if isinstance(error, ValidationError) else str(error)
    lines = text.strip().removeprefix("Value error, ").splitlines() or [""]
    return _SENTENCE_END.split(lines[0])[0].rstrip(" .:")


def printable(text: str) -> str:
    """``text`` on one line, without control characters; cut at 300 characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."
