"""What a check finds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kvquant_eval.core.records import GoldenTurn


class Severity(StrEnum):
    """``ERROR``: the gate refuses the set, or what it measures is wrong. ``WARNING``: worth a look before pinning."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True)
class Placed:
    """A turn and where it stands, ``file:line``."""

    place: str
    turn: GoldenTurn


@dataclass(frozen=True, kw_only=True)
class Fault:
    """``text`` is ``<rule>, got <value>; <remedy>``; ``check`` names the kind; ``turn_id`` is empty for a whole class
    or file.
    """

    severity: Severity
    check: str
    place: str
    text: str
    turn_id: str = ""


def error(check: str, at: Placed, text: str) -> Fault:
    """An error of one turn."""
    return Fault(severity=Severity.ERROR, check=check, place=at.place, text=text, turn_id=at.turn.turn_id)


def warning(check: str, at: Placed, text: str) -> Fault:
    """A warning about one turn."""
    return Fault(severity=Severity.WARNING, check=check, place=at.place, text=text, turn_id=at.turn.turn_id)
