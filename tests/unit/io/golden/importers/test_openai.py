"""OpenAI chat requests: every shape in which they are logged, and what is no request."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from kvquant_eval.core.codec import DataError
from kvquant_eval.core.conversation import Conversation, LeftOut
from kvquant_eval.io.golden.importers import _files
from kvquant_eval.io.golden.importers.openai import read

ASK = {"role": "user", "content": "How much is item 3?"}
SAYS = {"role": "assistant", "content": "It is 3.10."}
CALLS = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "price", "arguments": '{"item": 3}'}}],
}
TOOL = {"type": "function", "function": {"name": "price"}}
NONE = "a request with messages, got 'None'"


def write(folder: Path, *records: Any) -> Path:
    path = folder / "chats.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def one(folder: Path, record: Any) -> Conversation:
    [found] = read(str(write(folder, record)))
    assert isinstance(found, Conversation), found
    return found


def left(folder: Path, record: Any) -> str:
    path = write(folder, record)
    [found] = read(str(path))
    assert isinstance(found, LeftOut), found
    assert found.place == f"{path}:1"
    return found.reason


def test_fine_tuning_has_its_answers_in_the_messages(tmp_path: Path) -> None:
    found = one(tmp_path, {"messages": [ASK, SAYS, ASK, CALLS], "tools": [TOOL], "parallel_tool_calls": False})
    assert found == Conversation(
        conversation_id="chats-1",
        place=f"{tmp_path}/chats.jsonl:1",
        messages=[ASK, SAYS, ASK, CALLS],
        tools=[TOOL],
        replies=None,
    )


CHOICES = {"id": "chatcmpl-1", "choices": [{"index": 0, "message": SAYS}, {"index": 1, "message": CALLS}]}


@pytest.mark.parametrize("request_key", ["request", "body", None])
@pytest.mark.parametrize(
    "answer",
    [
        {"response": {"status_code": 200, "body": CHOICES}},
        {"response": CHOICES},
        {"response": {"message": SAYS}},
        {"response": SAYS},
        {"response": {"content": "It is 3.10."}},
        {"response": "It is 3.10."},
        {"completion": "It is 3.10."},
        {"completion": SAYS},
        {"completion": CHOICES},
        {"response": None, "completion": SAYS},
        {"choices": CHOICES["choices"]},
        {"message": SAYS},
    ],
)
def test_a_request_with_what_was_answered(tmp_path: Path, request_key: str | None, answer: dict[str, Any]) -> None:
    request = {"model": "m", "messages": [ASK, SAYS, ASK], "tools": [TOOL]}
    found = one(tmp_path, {**(request if request_key is None else {request_key: request}), **answer})
    assert found.messages == [ASK, SAYS, ASK, SAYS]
    assert found.replies == {3: {}}
    assert found.tools == [TOOL]


def test_an_answer_that_calls(tmp_path: Path) -> None:
    found = one(tmp_path, {"messages": [ASK], "choices": [{"message": CALLS}]})
    assert found.messages == [ASK, CALLS]
    assert found.replies == {1: {}}


@pytest.mark.parametrize(
    "answer",
    [
        {"response": {"status_code": 500, "body": {"error": {"message": "overloaded"}}}},
        {"response": {"choices": []}},
        {"response": {"choices": [None]}},
        {"response": {"body": None}},
        {"response": 3},
        {"response": []},
        {"response": None, "error": {"code": "expired"}},
        {"choices": ["It"]},
        {"message": "It is 3.10."},
        {"content": "It is 3.10."},
        {},
    ],
)
def test_without_an_answer_the_messages_stand_for_themselves(tmp_path: Path, answer: dict[str, Any]) -> None:
    found = one(tmp_path, {"messages": [ASK, SAYS, ASK], **answer})
    assert found.messages == [ASK, SAYS, ASK]
    assert found.replies is None


def test_a_request_of_a_batch_is_taken_without_its_response(tmp_path: Path) -> None:
    record = {"custom_id": "r-1", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [ASK, SAYS]}}
    found = one(tmp_path, record)
    assert (found.conversation_id, found.messages, found.replies) == ("r-1", [ASK, SAYS], None)


def test_functions_of_old_are_tools(tmp_path: Path) -> None:
    assert one(tmp_path, {"messages": [ASK, SAYS], "functions": [{"name": "price"}]}).tools == [{"name": "price"}]
    both = {"messages": [ASK, SAYS], "tools": [TOOL], "functions": [{"name": "old"}]}
    assert one(tmp_path, both).tools == [TOOL]
    assert one(tmp_path, {"messages": [ASK, SAYS], "tools": None}).tools == []


@pytest.mark.parametrize(
    ("ids", "name"),
    [
        ({"conversation_id": "a", "custom_id": "b", "id": "c"}, "a"),
        ({"custom_id": "b", "id": "c"}, "b"),
        ({"id": "c"}, "c"),
        ({"id": 17}, "17"),
        ({"id": {"$oid": "5f"}}, "{'$oid': '5f'}"),
        ({"conversation_id": "", "id": None}, "chats-1"),
        ({"id": "../../etc/passwd\x1b"}, "../../etc/passwd\x1b"),
    ],
)
def test_the_conversation_has_the_records_name(tmp_path: Path, ids: dict[str, Any], name: str) -> None:
    assert one(tmp_path, {"messages": [ASK, SAYS], **ids}).conversation_id == name


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (None, "a request as a JSON object, got 'None'"),
        ([ASK, SAYS], "a request as a JSON object, got \"[{'role': 'user', 'content': 'How much is item 3?'}"),
        ("hello", "a request as a JSON object, got 'hello'"),
        ({}, NONE),
        ({"prompt": "x", "completion": "y"}, NONE),
        ({"messages": "hello"}, "a request with messages, got 'hello'"),
        ({"messages": {"role": "user"}}, "a request with messages, got \"{'role': 'user'}\""),
        ({"request": {}, "messages": [ASK, SAYS]}, NONE),
        ({"messages": [ASK, SAYS], "tools": {"a": 1}}, "tools as a list, got \"{'a': 1}\""),
        ({"messages": [ASK, SAYS], "functions": "price"}, "tools as a list, got 'price'"),
    ],
)
def test_what_is_no_request_is_left_out(tmp_path: Path, record: Any, reason: str) -> None:
    assert left(tmp_path, record).startswith(reason)


GOOD = json.dumps({"messages": [ASK, SAYS]}).encode()


def found_in(folder: Path, data: bytes) -> list[tuple[str, str]]:
    """The line of each record, and why it was left out."""
    path = folder / "chats.jsonl"
    path.write_bytes(data)
    found = list(read(str(path)))
    assert all(one.place.startswith(f"{path}:") for one in found)
    return [(one.place.rpartition(":")[2], one.reason if isinstance(one, LeftOut) else "") for one in found]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "Expecting property name enclosed in double quotes at line 1, column 2"),
        (b"hello", "Expecting value at line 1, column 1"),
        (GOOD[:-1], f"Expecting ',' delimiter at line 1, column {len(GOOD)}"),
        (b'{"messages": NaN}', "NaN at line 1, column 14"),
        (b'{"a": 1, "a": 2}', "the key 'a' twice in one object"),
        (b'{"a": "\\ud800"}', "half a surrogate pair"),
        (b'{"a": "\xff"}', "the byte 0xff, which is no UTF-8 at line 1, column 8"),
        (b"[" * 101 + b"]" * 101, "more than 100 levels"),
        (b"[" * 100_000, "more than 100 levels"),
        (b"9" * 5000, "an integer of more than 4300 digits"),
    ],
)
def test_a_broken_line_is_left_out_and_the_others_are_read(tmp_path: Path, line: bytes, reason: str) -> None:
    said = f"JSON that cannot be read, got {reason}"
    assert found_in(tmp_path, GOOD + b"\n" + line + b"\n" + GOOD) == [("1", ""), ("2", said), ("3", "")]


def test_lines_of_windows_and_blank_ones(tmp_path: Path) -> None:
    data = b"\xef\xbb\xbf" + GOOD + b"\r\n\r\n \t\n" + GOOD + b"\r\n\n"
    assert found_in(tmp_path, data) == [("1", ""), ("4", "")]
    assert found_in(tmp_path, b"") == []


def test_a_line_that_is_too_long_is_left_out_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_files, "LONGEST_RECORD", 1 << 20)
    longer = b'"' + b"x" * (3 << 20) + b'"\n'
    just = GOOD + b" " * ((1 << 20) - len(GOOD) - 1) + b"\n"
    reason = "a line of more than 1 MiB"
    assert found_in(tmp_path, GOOD + b"\n" + longer + just + longer) == [
        ("1", ""),
        ("2", reason),
        ("3", ""),
        ("4", reason),
    ]
    assert found_in(tmp_path, longer.rstrip()) == [("1", reason)]


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = write(tmp_path, {})
    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(DataError, match=r"chats\.jsonl: a readable file, got Permission denied; "):
        list(read(str(path)))


def test_a_file_that_is_none(tmp_path: Path) -> None:
    for path, got in ((tmp_path / "none", "No such file or directory"), (tmp_path, "something else")):
        with pytest.raises(DataError) as caught:
            list(read(str(path)))
        assert str(caught.value) == f"{path}: a readable file, got {got}; restore it"
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="got something else"):
        list(read(str(tmp_path / "pipe")))
