"""Recordings broken at random: they are refused in one clean line, or imported as turns that a gate can load."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvquant_eval.core.codec import DataError
from kvquant_eval.core.conversation import LeftOut
from kvquant_eval.io.golden import load, pin
from kvquant_eval.io.golden.imports import Imported, importer, write_turns
from kvquant_eval.io.golden.manifest import MANIFEST
from tests.fuzz.cases import CASES
from tests.fuzz.mutations import changed, damaged, values

FEW = st.sampled_from((1, 1, 1, 2, 3))


def json_lines(records: Any) -> bytes:
    """One record a line."""
    lines = records if isinstance(records, list) else [records]
    return b"".join(json.dumps(record).encode() + b"\n" for record in lines)


def json_file(document: Any) -> bytes:
    return json.dumps(document).encode()


def openai() -> list[Any]:
    """Every shape that the format has."""
    ask, says = {"role": "user", "content": "How much is item 3?"}, {"role": "assistant", "content": "3.10.\n#### 3"}
    call = {"id": "call_1", "type": "function", "function": {"name": "price", "arguments": '{"item": 3}'}}
    calls, old = {"role": "assistant", "content": None, "tool_calls": [call]}, {"name": "price", "arguments": "{}"}
    tool = {"type": "function", "function": {"name": "price", "parameters": {"type": "object", "properties": {}}}}
    system = {"role": "system", "content": [{"type": "text", "text": "Be brief."}]}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "3.10"}
    return [
        {"messages": [system, ask, calls, result, says, ask, says], "tools": [tool]},
        {"custom_id": "x", "body": {"messages": [ask]}, "response": {"body": {"choices": [{"message": says}]}}},
        {
            "id": "x",
            "messages": [ask, {"role": "assistant", "function_call": old}, {"role": "function", "content": ""}],
        },
        {"id": "x", "request": {"messages": [ask], "functions": [{"name": "price"}]}, "response": calls},
        {"messages": [ask], "completion": "It is 3.10."},
    ]


@dataclass(frozen=True)
class Format:
    """A good recording, every record of which gives a turn, and how it is written to a file."""

    document: Any
    write: Callable[[Any], bytes]


FORMATS = {"openai": Format(openai(), json_lines)}


@st.composite
def broken(draw: st.DrawFn, form: Format) -> bytes:
    """A change or two to the recording, then perhaps to its records or bytes."""
    document = form.document
    for _ in range(draw(FEW)):
        document = draw(changed(document))
    match draw(st.sampled_from(("values", "values", "values", "values", "records", "bytes", "none left"))):
        case "records" if isinstance(document, list):
            document = [*document, *draw(st.lists(values | st.sampled_from(form.document), max_size=3))]
        case "records":
            document = draw(values)
        case "bytes":
            return draw(damaged(form.write(document)))
        case "none left":
            return draw(st.binary(max_size=40))
    return form.write(document)


@dataclass(frozen=True)
class Result:
    """What an import made; ``error``: the line that refused it."""

    left: list[LeftOut]
    done: Imported | None = None
    error: str = ""


def imported(name: str, data: bytes, folder: Path, limit: int | None = None) -> Result:
    """Import the data. Everything but a DataError is a defect and goes on."""
    source, target = folder / "source", folder / "golden" / "faq" / "turns.jsonl"
    source.write_bytes(data)
    target.unlink(missing_ok=True)
    left: list[LeftOut] = []
    try:
        found = list(importer(name).read(str(source)))
        left += [record for record in found if isinstance(record, LeftOut)]
        return Result(left, done=write_turns(found, target, "faq", limit))
    except DataError as error:
        return Result(left, error=str(error))


def loaded(folder: Path) -> int:
    """How many turns the set has, as a gate reads it."""
    golden = folder / "golden"
    (golden / MANIFEST).write_text(json.dumps(pin(golden, "fuzz", "1", {})))
    return len(load(golden, ["faq"]).turns)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all cases: each writes anew what it breaks."""
    return tmp_path_factory.mktemp("import")


@pytest.mark.parametrize("name", FORMATS)
def test_a_good_recording_is_imported_whole(folder: Path, name: str) -> None:
    form = FORMATS[name]
    result = imported(name, form.write(form.document), folder)
    assert result.done is not None, result.error
    assert not result.done.left_out
    assert result.done.conversations == (len(form.document) if isinstance(form.document, list) else 1)
    assert loaded(folder) == result.done.turns


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=CASES)
@given(data=st.data())
def test_a_broken_recording_is_refused_in_one_line_or_gives_turns(folder: Path, name: str, data: st.DataObject) -> None:
    limit = data.draw(st.sampled_from((None, None, 1, 2, 5)))
    result = imported(name, data.draw(broken(FORMATS[name])), folder, limit)
    for left in result.left:
        assert left.place.startswith(str(folder / "source"))
        assert left.reason
        assert left.reason.isprintable()
    if result.done is None:
        assert result.error.isprintable()
        assert len(result.error) < 1000
        assert not list((folder / "golden" / "faq").iterdir())
        return
    assert loaded(folder) == result.done.turns
    assert 0 < result.done.conversations <= result.done.turns <= (limit or result.done.turns)
    assert all(kind and place.startswith(str(folder / "source")) for kind, place in result.done.first.items())
    assert result.done.first.keys() == result.done.left_out.keys()
