"""One thing that a user gets wrong, and the line that says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Case:
    """``make`` writes what is wrong under an empty folder and returns the arguments behind ``kvquant-eval``.

    ``line`` is the whole message, with ``{folder}`` for that folder; it stands in docs/bad-input.md as it is.
    ``environment`` is what it happens in.
    """

    what: str
    make: Callable[[Path], Sequence[str]]
    line: str
    environment: Mapping[str, str] = field(default_factory=dict)
