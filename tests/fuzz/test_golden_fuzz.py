"""Golden sets broken at random: they are refused in one clean line, or they can be rendered, scored and written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment

from kvquant_eval.cli.config import data_folder
from kvquant_eval.core.codec import DataError, canonical, from_data, to_data
from kvquant_eval.core.records import GoldenTurn
from kvquant_eval.core.scorers.json_schema import JsonSchema
from kvquant_eval.core.scorers.math_answer import MathAnswer
from kvquant_eval.core.scorers.math_steps import MathSteps
from kvquant_eval.core.scorers.python_signature import PythonSignature
from kvquant_eval.core.scorers.text import ContainsAll, Match, Needle, Regex, TokenF1
from kvquant_eval.core.scorers.tool_call import ToolCall
from kvquant_eval.io.golden import load, pin, verify
from kvquant_eval.io.golden.manifest import MANIFEST, read_manifest
from kvquant_eval.worker.render import normalise
from tests.fakes.records import rendered_turn, reply
from tests.fuzz.cases import CASES
from tests.fuzz.mutations import changed, damaged, values

CLASSES = ("faq", "coding", "tool_calling", "math_chain")
SOURCE = data_folder("golden")
TEMPLATE = ImmutableSandboxedEnvironment().from_string(
    (data_folder("conf") / "model" / "smollm2_tools.jinja").read_text(encoding="utf-8")
)
PLAIN = (Match(), Needle(), TokenF1(), ContainsAll(), Regex(), JsonSchema())
SCORERS = (*PLAIN, ToolCall(), MathSteps(), MathAnswer(), PythonSignature())
FEW = st.sampled_from((1, 1, 1, 2, 3))
SAID = ('<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>', "```python\ndef f(a): pass\n```", "1 + 2 = 3")


def shipped(workload: str) -> list[dict[str, Any]]:
    """A few turns of the project's own set: with tool calls and results where the class has them."""
    lines = (SOURCE / workload / "agents-v2.jsonl").read_text(encoding="utf-8").splitlines()[:3]
    return [json.loads(line) for line in lines]


TURNS = {workload: shipped(workload) for workload in CLASSES}


def write(folder: Path, workload: str, data: bytes) -> None:
    (folder / workload).mkdir(parents=True, exist_ok=True)
    (folder / workload / "turns.jsonl").write_bytes(data)


def lines(turns: list[Any]) -> bytes:
    return b"".join(json.dumps(turn).encode() + b"\n" for turn in turns)


def write_manifest(folder: Path, data: bytes) -> None:
    (folder / MANIFEST).write_bytes(data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all cases: each writes anew what it breaks."""
    return tmp_path_factory.mktemp("golden")


@st.composite
def broken_turns(draw: st.DrawFn) -> tuple[str, bytes]:
    """A class, and its file: a change or two to its turns, then perhaps to its lines or bytes."""
    workload = draw(st.sampled_from(CLASSES))
    turns: list[Any] = list(TURNS[workload])
    for _ in range(draw(FEW)):
        index = draw(st.integers(0, len(turns) - 1))
        turns[index] = draw(changed(turns[index]))
    match draw(st.sampled_from(("turns", "turns", "turns", "lines", "bytes", "none left"))):
        case "lines":
            turns.insert(draw(st.integers(0, len(turns))), draw(st.sampled_from(turns) | values))
        case "bytes":
            return workload, draw(damaged(lines(turns)))
        case "none left":
            return workload, draw(st.binary(max_size=40))
    return workload, lines(turns)


def assert_clean(error: DataError) -> None:
    line = str(error)
    assert line.isprintable()
    assert len(line) < 1000


def assert_usable(turn: GoldenTurn) -> None:
    """What the loader lets through goes through the child's pipe, the chat template and every scorer."""
    assert from_data(GoldenTurn, json.loads(json.dumps(to_data(turn))), "again") == turn
    canonical(to_data(turn)).encode()
    messages = [normalise(message) for message in (*turn.messages, turn.reference)]
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    assert all(isinstance(call["function"]["arguments"], dict) for call in calls)
    TEMPLATE.render(messages=messages, tools=list(turn.tools) or None).encode()
    for score in SCORERS:
        for text in SAID:
            score(reply(text), turn, rendered_turn())


def outcome(call: Any) -> Any:
    """What the call returned, or the line of its DataError. Everything else is a defect and goes on."""
    try:
        return call()
    except DataError as error:
        assert_clean(error)
        return str(error)


@settings(max_examples=CASES)
@given(broken_turns())
def test_broken_turns_are_refused_in_one_line_or_can_be_used(folder: Path, broken: tuple[str, bytes]) -> None:
    workload, data = broken
    alone = folder / "alone" / workload
    write(alone, workload, data)
    pinned = pin(alone, "fuzz", "1", {})
    write_manifest(alone, json.dumps(pinned).encode())
    before, loaded = outcome(lambda: verify(alone, pinned)), outcome(lambda: load(alone, [workload]))
    assert isinstance(before, str) == isinstance(loaded, str)
    if isinstance(loaded, str):
        assert before == loaded
        return
    for turn in loaded.turns:
        assert_usable(turn)


@st.composite
def broken_manifest(draw: st.DrawFn, whole: dict[str, Any]) -> bytes:
    said: Any = whole
    for _ in range(draw(FEW)):
        said = draw(changed(said))
    match draw(st.sampled_from(("values", "values", "values", "bytes", "other", "none left"))):
        case "bytes":
            return draw(damaged(json.dumps(said).encode()))
        case "other":
            return json.dumps(draw(values)).encode()
        case "none left":
            return draw(st.binary(max_size=40))
    return json.dumps(said).encode()


@pytest.fixture(scope="module")
def whole(folder: Path) -> dict[str, Any]:
    """The manifest of a good set in the folder."""
    for name in CLASSES:
        write(folder, name, lines(TURNS[name]))
    return pin(folder, "fuzz", "1", {"licence": "CC0"})


@settings(max_examples=CASES)
@given(data=st.data())
def test_a_broken_manifest_is_refused_in_one_line_or_pins_its_files(
    folder: Path, whole: dict[str, Any], data: st.DataObject
) -> None:
    write_manifest(folder, data.draw(broken_manifest(whole)))
    manifest = outcome(lambda: read_manifest(folder))
    if not isinstance(manifest, str):
        loaded = outcome(lambda: load(folder, manifest.workloads))
        known = {entry["sha256"] for entry in whole["files"].values()}
        assert isinstance(loaded, str) or {file.sha256 for file in manifest.files.values()} <= known
