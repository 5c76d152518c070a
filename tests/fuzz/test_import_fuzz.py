"""Recordings broken at random: they are refused in one clean line, or imported as turns that a gate can load."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvquant_eval.core.codec import DataError
from kvquant_eval.core.conversation import LeftOut
from kvquant_eval.io.golden import load, pin
from kvquant_eval.io.golden.importers.mlflow_traces import _conversations as trace_conversations
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


def gsm8k() -> list[Any]:
    answer = "16 - 4 = <<16-4=12>>12 are left.\nShe makes 12 * 2 = $<<12*2=24>>24.\n#### 24"
    return [{"question": f"How much of {number}?", "answer": answer} for number in range(3)]


def atif() -> dict[str, Any]:
    """With every field of the schema that is read."""
    call = {"tool_call_id": "c1", "function_name": "price", "arguments": {"item": 3}}
    observed = {"results": [{"source_call_id": "c1", "content": [{"type": "text", "text": "3.10"}]}]}
    agent = {"name": "a", "tool_definitions": [{"type": "function", "function": {"name": "price"}}]}
    steps = [
        {"step_id": 1, "source": "system", "message": "Be brief."},
        {"step_id": 2, "source": "user", "message": "How much is item 3?"},
        {"step_id": 3, "source": "agent", "message": "", "tool_calls": [call], "observation": observed},
        {"step_id": 4, "source": "agent", "message": "3.10", "llm_call_count": 1, "is_copied_context": False},
    ]
    inner = {"schema_version": "ATIF-v1.7", "trajectory_id": "inner", "agent": agent, "steps": steps}
    return {**inner, "trajectory_id": "outer", "session_id": "s", "subagent_trajectories": [inner]}


def bfcl() -> list[Any]:
    """A question of one turn, and one of two that the simulated file system answers."""
    ask = [{"role": "user", "content": "How much is item 3?"}]
    parameters = {"type": "dict", "properties": {"item": {"type": "integer"}, "rate": {"type": "float"}}}
    root = {"workspace": {"type": "directory", "contents": {"a.txt": {"type": "file", "content": "x"}}}}
    return [
        {"id": "one", "question": [ask], "function": [{"name": "price", "parameters": parameters}]},
        {
            "id": "several",
            "question": [ask, ask],
            "initial_config": {"GorillaFileSystem": {"root": root}},
            "involved_classes": ["GorillaFileSystem"],
            "excluded_function": ["cp"],
        },
    ]


TRUTH = [
    {"id": "one", "ground_truth": [{"price": {"item": [3], "rate": ["", 0.5], "place": [{"city": ["Rome"]}]}}]},
    {"id": "several", "ground_truth": [["ls(a=True)"], ["cat('a.txt')", "touch(file_name='b.txt')"]]},
]


def rows() -> list[Any]:
    said = [{"from": "human", "value": "How much?"}, {"from": "gpt", "value": "3.10"}]
    return [{"talk": json.dumps(said), "key": f"k{n}", "right": ["3.10"], "tools": "[]"} for n in range(2)]


COLUMNS = {
    "messages": "talk", "id": "key", "answers": "right", "tools": "tools", "role": "from", "content": "value",
    "roles": {"human": "user", "gpt": "assistant"},
}  # fmt: skip


def inspect_log() -> dict[str, Any]:
    """A log as inspect_ai writes it."""
    from inspect_ai.log import EvalConfig, EvalDataset, EvalLog, EvalSample, EvalSpec
    from inspect_ai.model import ChatMessageAssistant, ChatMessageTool, ChatMessageUser
    from inspect_ai.tool import ToolCall

    call = ToolCall(id="c1", function="price", arguments={"item": 3})
    messages = [
        ChatMessageUser(content="How much is item 3?"),
        ChatMessageAssistant(content="", tool_calls=[call]),
        ChatMessageTool(content="3.10", tool_call_id="c1", function="price"),
        ChatMessageAssistant(content="3.10"),
    ]
    sample = EvalSample(id=1, epoch=1, input="?", target="3.10", messages=messages)
    dataset, created = EvalDataset(name="d", sample_ids=[1]), "2026-01-01T00:00:00+00:00"
    spec = EvalSpec(created=created, task="t", dataset=dataset, model="m/m", config=EvalConfig())
    made = EvalLog(eval=spec, status="success", samples=[sample]).model_dump(mode="json", exclude_none=True)
    document: dict[str, Any] = json.loads(json.dumps(made))
    return document


@dataclass(frozen=True)
class Format:
    """A good recording, every record of which gives a turn, and how it is written to a file of that name; ``beside``
    are files that it needs, ``more`` what ``read`` is to be told.
    """

    document: Any
    write: Callable[[Any], bytes]
    name: str = "source"
    beside: Mapping[str, bytes] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)


FORMATS = {
    "openai": Format(openai(), json_lines),
    "gsm8k": Format(gsm8k(), json_lines),
    "atif": Format(atif(), json_file),
    "bfcl": Format(bfcl(), json_lines, "source.json", {"possible_answer/source.json": json_lines(TRUTH)}),
    "datasets": Format(rows(), json_lines, "source.jsonl", more={"mapping": COLUMNS}),
    "inspect_log": Format(inspect_log(), json_file, "source.json"),
}


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
    form = FORMATS[name]
    source, target = folder / form.name, folder / "golden" / "faq" / "turns.jsonl"
    source.write_bytes(data)
    for path, content in form.beside.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_bytes(content)
    target.unlink(missing_ok=True)
    left: list[LeftOut] = []
    try:
        found = list(importer(name).read(str(source), **form.more))
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


SPANS = [
    {
        "inputs": {"messages": record["messages"], "tools": record.get("tools", []), "system": "Be brief."},
        "outputs": {"choices": [{"message": record["messages"][-1]}]},
        "tools": None,
        "type": "CHAT_MODEL",
    }
    for record in openai()[::2]
]
"""What the spans of a trace say; MLflow itself reads them from its database."""


def span(number: int, said: Any) -> Any:
    """A span of MLflow with these contents, whatever they are."""
    part = said if isinstance(said, dict) else {}
    return SimpleNamespace(
        span_id=str(number),
        span_type=part.get("type"),
        start_time_ns=number,
        status=SimpleNamespace(status_code=SimpleNamespace(value=str(part.get("status"))), description="why"),
        inputs=part.get("inputs"),
        outputs=part.get("outputs"),
        get_attribute=lambda name: part.get("tools"),
    )


@settings(max_examples=CASES)
@given(data=st.data())
def test_a_broken_trace_gives_turns_or_reasons(folder: Path, data: st.DataObject) -> None:
    document: Any = SPANS
    for _ in range(data.draw(FEW)):
        document = data.draw(changed(document))
    spans = [span(number, said) for number, said in enumerate(document if isinstance(document, list) else [document])]
    found = list(trace_conversations("trace", spans))
    target = folder / "golden" / "faq" / "turns.jsonl"
    target.unlink(missing_ok=True)
    try:
        done = write_turns(found, target, "faq")
        assert loaded(folder) == done.turns
    except DataError:
        assert not target.exists()
    assert all(record.reason.isprintable() for record in found if isinstance(record, LeftOut))


@pytest.mark.parametrize("name", FORMATS)
def test_a_good_recording_is_imported_whole(folder: Path, name: str) -> None:
    form = FORMATS[name]
    result = imported(name, form.write(form.document), folder)
    assert result.done is not None, result.error
    assert not result.done.left_out
    assert result.done.conversations == {"atif": 2, "inspect_log": 1}.get(name, len(form.document))
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
