"""Recorded conversations into a file of golden turns: every line is one that ``store`` will load."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import islice
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType

from pydantic_core import PydanticSerializationError

from kvquant_eval.core.codec import DataError, nearest, quoted, to_json
from kvquant_eval.core.conversation import LONGEST_ID, Conversation, LeftOut, conversation_name, cut
from kvquant_eval.core.records import GoldenTurn
from kvquant_eval.io.golden import importers
from kvquant_eval.io.golden.store import read_turn


@dataclass
class Imported:
    """What came of an import: ``left_out`` counts by reason, with the place that each was first met at in ``first``."""

    conversations: int = 0
    turns: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)

    def leave(self, left: LeftOut) -> None:
        """Count what was left out."""
        kind = re.sub(r"\.\d+\b", "", left.reason.partition(", got ")[0])
        self.left_out[kind] += 1
        self.first.setdefault(kind, f"{left.place}: {left.reason}")


def formats() -> tuple[str, ...]:
    """The formats that can be imported: the modules of ``importers``."""
    return tuple(module.name for module in iter_modules(importers.__path__) if not module.name.startswith("_"))


def importer(name: str) -> ModuleType:
    """The module of a format. Raises DataError for one that is not there."""
    if name not in formats():
        raise DataError(f"--format: a format that can be imported, got {quoted(name)}; {nearest(name, formats())}")
    return import_module(f"{importers.__name__}.{name}")


def write_turns(
    found: Iterable[Conversation | LeftOut], target: Path, workload: str, limit: int | None = None
) -> Imported:
    """Write the turns of the conversations to ``target``, which appears once it is whole; at most ``limit`` of them.

    Raises DataError when ``target`` is there already, and when not one turn can be used.
    """
    if target.exists():
        raise DataError(f"{target}: a new file, got one that is there; golden turns are immutable: choose another")
    done = Imported()
    half = target.with_name(f".{target.name}.part")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with half.open("wb") as stream:
            stream.writelines(islice(_lines(found, workload, done), limit))
        if not done.turns:
            raise DataError(f"{_nothing(done)}; correct the source or --format")
        half.rename(target)
    finally:
        half.unlink(missing_ok=True)
    return done


def _lines(found: Iterable[Conversation | LeftOut], workload: str, done: Imported) -> Iterator[bytes]:
    """The lines of the file, one at a time: those of one long conversation can be larger than memory."""
    names = _Names()
    for record in found:
        if isinstance(record, LeftOut):
            done.leave(record)
            continue
        name = ""
        for turn in cut(record, workload):
            if isinstance(turn, GoldenTurn):
                name = name or names.choose(conversation_name(record.conversation_id), turn.turn_index)
                turn = names.take(turn, name, record.place)
            line = turn if isinstance(turn, LeftOut) else _line(turn, record.place, workload)
            if isinstance(line, LeftOut):
                done.leave(line)
                continue
            done.conversations += names.is_new(name)
            done.turns += 1
            yield line


class _Names:
    """Conversation ids and the places in each that are taken. What was logged a request at a time comes together again
    as one conversation, as long as every turn has a place of its own; else a number tells them apart.
    """

    def __init__(self) -> None:
        self.taken: set[int] = set()
        self.names: set[int] = set()
        self.used: Counter[str] = Counter()

    def choose(self, name: str, index: int) -> str:
        """The id for a record whose first turn has this ``turn_index``."""
        chosen = name
        while hash((chosen, index)) in self.taken:
            self.used[name] += 1
            end = f"-{self.used[name] + 1}"
            chosen = f"{name[: LONGEST_ID - len(end)]}{end}"
        return chosen

    def is_new(self, name: str) -> bool:
        """Whether it is the first time that this is asked of the id."""
        before = len(self.names)
        self.names.add(hash(name))
        return len(self.names) > before

    def take(self, turn: GoldenTurn, name: str, place: str) -> GoldenTurn | LeftOut:
        """The turn under the id, if its place there is free."""
        turn_id = f"{name}/t{turn.turn_index:02d}"
        key = hash((name, turn.turn_index))
        if key in self.taken:
            return LeftOut(place, f"a turn of its own, got {turn_id} again")
        self.taken.add(key)
        return replace(turn, turn_id=turn_id, conversation_id=name)


def _line(turn: GoldenTurn, place: str, workload: str) -> bytes | LeftOut:
    """The turn as a line of the file, if it can be loaded again."""
    try:
        line = to_json(turn).encode() + b"\n"
        read_turn(line, "turn", workload)
    except PydanticSerializationError:
        return LeftOut(place, "text that is no Unicode: half a surrogate pair")
    except DataError as error:
        return LeftOut(place, str(error).removeprefix("turn: ").removeprefix(f"{turn.turn_id}: "))
    return line


def _nothing(done: Imported) -> str:
    if not done.left_out:
        return "source: conversations to import, got none"
    kind, count = done.left_out.most_common(1)[0]
    return f"source: a turn that can be used, got none; {count} times: {done.first[kind]}"
