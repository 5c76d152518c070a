"""A golden set as it lies on disk, with a fault for every line that is no turn: pinned or not, whole or not."""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path

from kvquant_eval.core.codec import DataError
from kvquant_eval.core.lint.fault import Fault, Placed, Severity
from kvquant_eval.io.golden.manifest import open_file
from kvquant_eval.io.golden.store import LONGEST_LINE, read_turn, refuse_twice


def read_all(folder: Path) -> tuple[list[Placed], list[Fault]]:
    """Every turn of ``<class>/*.jsonl``, and what is wrong with the lines that are none. Raises DataError where there
    is no such file.
    """
    paths = sorted(folder.glob("*/*.jsonl"))
    if not paths:
        raise DataError(f"{folder}: <class>/*.jsonl files to read, got none; correct --path")
    turns: list[Placed] = []
    faults: list[Fault] = []
    places: dict[Hashable, str] = {}
    for path in paths:
        with open_file(path) as stream:
            number = 0
            while line := stream.readline(LONGEST_LINE + 1):
                number += 1
                place = f"{path}:{number}"
                try:
                    turn = read_turn(line, place, path.parent.name)
                    refuse_twice(turn, place, places)
                    turns.append(Placed(place, turn))
                except DataError as error:
                    column, text = _after(str(error).removeprefix(place))
                    faults.append(Fault(severity=Severity.ERROR, check="turn", place=f"{place}{column}", text=text))
                while len(line) > LONGEST_LINE and not line.endswith(b"\n"):
                    line = stream.readline(LONGEST_LINE)
    return turns, faults


def _after(line: str) -> tuple[str, str]:
    """What follows the place in an error of ``store``: a column (``:7``), where it is known, and the text."""
    column, _, text = line.partition(": ")
    return (column, text) if re.fullmatch(r"(?::\d+)?", column) else ("", line)
