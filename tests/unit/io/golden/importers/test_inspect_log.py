"""Logs that inspect_ai itself wrote: small ones made here, and those of its own test suite."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from kvquant_eval.core.codec import DataError
from kvquant_eval.core.conversation import Conversation, LeftOut, cut
from kvquant_eval.core.records import GoldenTurn
from kvquant_eval.core.turns import problem
from kvquant_eval.io.golden.importers.inspect_log import LONGEST_ANSWER, read

real = pytest.mark.skipif("KVQUANT_REAL_DATA" not in os.environ, reason="needs KVQUANT_REAL_DATA")


@pytest.fixture
def inspect_ai() -> Any:
    return pytest.importorskip("inspect_ai", reason="the extra 'inspect' is not installed")


def test_without_inspect_ai_the_remedy_is_its_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "inspect_ai", None)
    with pytest.raises(DataError, match=r"the package inspect_ai, got .*; pip install 'kvquant_eval\[inspect\]'"):
        list(read(str(tmp_path)))


def write(path: Path, *samples: dict[str, Any], **config: Any) -> Path:
    """A log with the samples, the first of which has the id 1."""
    from inspect_ai.log import EvalConfig, EvalDataset, EvalLog, EvalSample, EvalSpec, write_eval_log

    filled = [
        {"id": number, "epoch": 1, "input": "?", "target": "", **given} for number, given in enumerate(samples, 1)
    ]
    spec = EvalSpec(
        created="2026-01-01T00:00:00+00:00",
        task="travel",
        dataset=EvalDataset(name="d", sample_ids=[1]),
        model="m/m",
        config=EvalConfig(**config),
    )
    log = EvalLog(eval=spec, status="success", samples=[EvalSample(**given) for given in filled])
    write_eval_log(log, str(path))
    return path


def said(*contents: Any) -> list[Any]:
    """Messages of the user and the assistant in turn."""
    from inspect_ai.model import ChatMessageAssistant, ChatMessageUser

    kinds = (ChatMessageUser, ChatMessageAssistant)
    return [kinds[number % 2](content=content) for number, content in enumerate(contents)]


def reasons(found: list[Conversation | LeftOut]) -> list[str]:
    return [record.reason for record in found if isinstance(record, LeftOut)]


def turns(found: list[Conversation | LeftOut]) -> list[GoldenTurn | LeftOut]:
    return [turn for record in found if isinstance(record, Conversation) for turn in cut(record, "agent")]


@pytest.mark.parametrize("suffix", [".eval", ".json"])
def test_a_sample_with_tools_is_a_conversation(inspect_ai: Any, tmp_path: Path, suffix: str) -> None:
    from inspect_ai.event import ModelEvent
    from inspect_ai.model import (
        ChatMessageAssistant,
        ChatMessageSystem,
        ChatMessageTool,
        ChatMessageUser,
        ContentReasoning,
        ContentText,
        GenerateConfig,
        ModelOutput,
    )
    from inspect_ai.tool import ToolCall, ToolCallError, ToolInfo, ToolParam, ToolParams

    def called(number: int) -> ToolCall:
        return ToolCall(id=f"c{number}", function="trains", arguments={"city": "Ulm"})

    about = "Trains to a city. " * 20
    tool = ToolInfo(
        name="trains",
        description=about,
        parameters=ToolParams(properties={"city": ToolParam(type="string")}, required=["city"]),
    )
    messages = [
        ChatMessageSystem(content="You book trains."),
        ChatMessageUser(content=[ContentText(text="To Ulm,"), ContentText(text="please.")]),
        ChatMessageAssistant(content=[ContentReasoning(reasoning="secret")], tool_calls=[called(1)]),
        ChatMessageTool(content="", tool_call_id="c1", function="trains", error=ToolCallError("timeout", "too slow")),
        ChatMessageAssistant(content="Again.", tool_calls=[called(2)]),
        ChatMessageTool(content=[ContentText(text="9:14")], tool_call_id="c2", function="trains"),
        ChatMessageAssistant(content=[ContentReasoning(reasoning="secret"), ContentText(text="At 9:14.")]),
    ]
    event = ModelEvent(
        model="m", input=messages[:2], tools=[tool], tool_choice="auto", config=GenerateConfig(), output=ModelOutput()
    )
    path = write(
        tmp_path / f"log{suffix}", {"messages": messages, "events": [event], "target": ["9:14", " quarter past"]}
    )
    [conversation] = found = list(read(str(path)))
    assert isinstance(conversation, Conversation)
    assert (conversation.conversation_id, conversation.place) == ("travel/1/1", f"{path}:1:1")
    first, second, third = turns(found)
    assert isinstance(first, GoldenTurn)
    assert isinstance(second, GoldenTurn)
    assert isinstance(third, GoldenTurn)
    function = {"name": "trains", "arguments": {"city": "Ulm"}}
    assert first.messages == (
        {"role": "system", "content": "You book trains."},
        {"role": "user", "content": "To Ulm,\nplease."},
    )
    assert first.reference == {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": function}],
    }
    assert second.messages[-1] == {
        "role": "tool",
        "content": "Error: too slow",
        "tool_call_id": "c1",
        "name": "trains",
    }
    assert third.messages[-1] == {"role": "tool", "content": "9:14", "tool_call_id": "c2", "name": "trains"}
    assert third.reference == {"role": "assistant", "content": "At 9:14."}
    assert (first.expected, third.expected) == ({"calls": [function]}, {"answers": ["9:14", "quarter past"]})
    assert [span.text for span in third.decisive] == ["9:14"]
    parameters = {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    }
    described = {"name": "trains", "description": about, "parameters": parameters}
    assert first.tools == third.tools == ({"type": "function", "function": described},)
    assert [problem(turn) for turn in (first, second, third)] == [None] * 3


def test_a_target_that_is_empty_or_long_is_no_answer(inspect_ai: Any, tmp_path: Path) -> None:
    targets = [" ", "x" * LONGEST_ANSWER, "x" * (LONGEST_ANSWER + 1), ["a", "y" * 300]]
    samples = [{"messages": said("?", "!", "?", "!"), "target": target} for target in targets]
    found = list(read(str(write(tmp_path / "log.eval", *samples))))
    replies = [record.replies for record in found if isinstance(record, Conversation)]
    assert replies == [
        {1: {}, 3: {}},
        {1: {}, 3: {"answers": ["x" * LONGEST_ANSWER]}},
        {1: {}, 3: {}},
        {1: {}, 3: {"answers": ["a"]}},
    ]


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        ({"type": "image", "image": "https://example.org/a.png"}, "an image"),
        ({"type": "audio", "audio": "a.wav", "format": "wav"}, "audio"),
        ({"type": "video", "video": "a.mp4", "format": "mp4"}, "a video"),
        ({"type": "document", "document": "a.pdf"}, "a file"),
        ({"type": "data", "data": {}}, "content of parts that are text, got the type 'data'"),
    ],
)
def test_what_is_no_text_ends_the_turns_of_a_sample(
    inspect_ai: Any, tmp_path: Path, part: dict[str, Any], reason: str
) -> None:
    path = write(tmp_path / "log.eval", {"messages": said("Hello", "Yes?", [part], "I see.")})
    first, second = turns(list(read(str(path))))
    assert isinstance(first, GoldenTurn)
    assert first.reference["content"] == "Yes?"
    assert second == LeftOut(f"{path}:1:1", reason)


def test_samples_that_cannot_be_used_say_why(inspect_ai: Any, tmp_path: Path) -> None:
    from inspect_ai.log import EvalError
    from inspect_ai.model import ChatMessageAssistant
    from inspect_ai.tool import ToolCall

    broken = ToolCall(id="c", function="f", arguments={}, parse_error="no JSON")
    samples: list[dict[str, Any]] = [
        {"messages": said("?", "!"), "error": EvalError(message="out of memory", traceback="", traceback_ansi="")},
        {"messages": said("?")},
        {"messages": [*said("?"), ChatMessageAssistant(content="", tool_calls=[broken])]},
        {"messages": said("?", "!")},
    ]
    found = list(read(str(write(tmp_path / "log.eval", *samples))))
    assert reasons(found) == [
        "a sample that ended in an error, got 'out of memory'",
        "a sample without a reply of the assistant",
        "a tool call with arguments, got 'no JSON'",
    ]
    assert len(turns(found)) == 1


def test_every_epoch_is_read_whatever_the_header_promises(inspect_ai: Any, tmp_path: Path) -> None:
    samples = [{"messages": said("?", "!"), "epoch": epoch, "id": "a"} for epoch in (1, 2, 3)]
    for suffix in (".eval", ".json"):
        found = list(read(str(write(tmp_path / f"log{suffix}", *samples, epochs=2))))
        assert [record.conversation_id for record in found if isinstance(record, Conversation)] == [
            "travel/a/1",
            "travel/a/2",
            "travel/a/3",
        ]


def test_a_folder_is_read_whole_and_what_is_no_log_in_it_is_counted(inspect_ai: Any, tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    write(tmp_path / "a.json", {"messages": said("?", "a")})
    write(tmp_path / "inner" / "b.eval", {"messages": said("?", "b")})
    write(tmp_path / "none.eval")
    whole = write(tmp_path / "cut.eval", {"messages": said("?", "c")}).read_bytes()
    (tmp_path / "cut.eval").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "other.json").write_text('{"settings": 1}')
    (tmp_path / "torn.json").write_text('{"version": 2, "ev')
    (tmp_path / "notes.txt").write_text("nothing")
    found = list(read(str(tmp_path)))
    assert [turn.reference["content"] for turn in turns(found) if isinstance(turn, GoldenTurn)] == ["a", "b"]
    left = {
        Path(record.place).name: record.reason.partition(", got ")[0] for record in found if isinstance(record, LeftOut)
    }
    assert left == {
        "none.eval": "a log without samples",
        "cut.eval": "a log that inspect_ai reads",
        "other.json": "a log that inspect_ai reads",
        "torn.json": "a log that inspect_ai reads",
    }


def test_a_damaged_sample_is_left_out_and_the_others_are_read(inspect_ai: Any, tmp_path: Path) -> None:
    from zipfile import ZipFile

    path = write(tmp_path / "whole.eval", *({"messages": said("?", f"{number}")} for number in range(3)))
    with ZipFile(path) as whole, ZipFile(tmp_path / "damaged.eval", "w") as damaged:
        for name in whole.namelist():
            damaged.writestr(name, b'{"id": 2, "epo' if name.startswith("samples/2_") else whole.read(name))
    found = list(read(str(tmp_path / "damaged.eval")))
    assert [turn.reference["content"] for turn in turns(found) if isinstance(turn, GoldenTurn)] == ["0", "2"]
    [left] = [record for record in found if isinstance(record, LeftOut)]
    assert left.place == f"{tmp_path}/damaged.eval:2:1"
    assert left.reason.startswith("a sample that inspect_ai reads, got ")


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("missing.eval", "a readable file, got No such file or directory"),
        ("notes.txt", r"a log \(.eval or .json\) or a folder of logs, got neither"),
        ("", "a folder with .eval or .json logs, got none"),
    ],
)
def test_a_source_that_is_no_log_is_said_in_one_line(inspect_ai: Any, tmp_path: Path, name: str, rule: str) -> None:
    with pytest.raises(DataError, match=f"{tmp_path / name}: {rule}; "):
        list(read(str(tmp_path / name)))


@real
def test_the_logs_of_inspect_ais_own_tests(inspect_ai: Any) -> None:
    folder = f"{os.environ['KVQUANT_REAL_DATA']}/inspect_logs"
    found = list(read(folder))
    guess, popularity = (record for record in found if isinstance(record, Conversation))
    [left] = [record for record in found if isinstance(record, LeftOut)]
    assert left == LeftOut(f"{folder}/log_tool_call_error.json:1:4", "a sample without a reply of the assistant")

    calls = [turn for turn in cut(guess, "agent") if isinstance(turn, GoldenTurn)]
    assert guess.conversation_id == "inspect_test_utils/guess_number/0/1"
    assert [problem(turn) for turn in calls] == [None] * 6
    assert calls[0].messages == ({"role": "user", "content": "Guess the number"},)
    assert [turn.expected for turn in calls] == [
        *[{"calls": [{"name": "bash", "arguments": {"cmd": "ls"}}]}] * 5,
        {"answers": ["42.7"]},
    ]
    assert calls[5].reference == {"role": "assistant", "content": "done"}
    assert len(calls[5].messages) == 11
    functions = [tool["function"] for tool in calls[0].tools]
    assert [function["name"] for function in functions] == ["bash", "python"]
    assert functions[1]["description"].startswith("Use the python function to execute Python code.")

    [answered] = cut(popularity, "agent")
    assert isinstance(answered, GoldenTurn)
    assert [message["role"] for message in answered.messages] == ["system", "user"]
    assert answered.reference == {"role": "assistant", "content": "Yes\n"}
    assert answered.expected == {"answers": ["Yes"]}
    assert [span.text for span in answered.decisive] == ["Yes"]
    assert problem(answered) is None
