"""Conversations into a file of golden turns: whole or not there, loadable, and with an account of what was left out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvquant_eval.core.codec import DataError
from kvquant_eval.core.conversation import LONGEST_ID, Conversation, LeftOut
from kvquant_eval.core.records import GoldenTurn
from kvquant_eval.io.golden import LONGEST_LINE, load, pin, store
from kvquant_eval.io.golden.importers import openai
from kvquant_eval.io.golden.imports import Imported, formats, importer, write_turns
from kvquant_eval.io.golden.manifest import MANIFEST

ASK = {"role": "user", "content": "How much is item 3?"}
SAYS = {"role": "assistant", "content": "It is 3.10."}
IMAGE = {"role": "user", "content": [{"type": "image_url"}]}
LONG = "y" * (LONGEST_ID - 2)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "golden" / "faq" / "mine.jsonl"


def conversation(name: str = "c", *messages: Any, place: str = "f:1", **more: Any) -> Conversation:
    return Conversation(conversation_id=name, place=place, messages=messages or (ASK, SAYS), **more)


def calling(arguments: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"function": {"name": "price", "arguments": arguments}}]}


def loaded(target: Path) -> tuple[GoldenTurn, ...]:
    folder = target.parent.parent
    (folder / MANIFEST).write_text(json.dumps(pin(folder, "mine", "1", {})))
    return load(folder, [target.parent.name]).turns


def ids(target: Path) -> list[str]:
    return [turn.turn_id for turn in loaded(target)]


def refused(found: Any, target: Path, limit: int | None = None) -> str:
    with pytest.raises(DataError) as caught:
        write_turns(found, target, "faq", limit)
    assert not list(target.parent.iterdir())
    return str(caught.value)


def test_formats_are_the_modules() -> None:
    assert "openai" in formats()
    assert not any(name.startswith("_") for name in formats())
    assert importer("openai") is openai


@pytest.mark.parametrize(
    ("name", "remedy"), [("opnai", "did you mean 'openai'?"), ("_files", "choose from "), ("../x", "choose from ")]
)
def test_an_unknown_format(name: str, remedy: str) -> None:
    with pytest.raises(DataError) as caught:
        importer(name)
    assert str(caught.value).startswith(f"--format: a format that can be imported, got {name!r}; {remedy}")


def test_turns_are_written_as_they_are_loaded(target: Path) -> None:
    found = [conversation("a", ASK, SAYS, ASK, calling('{"item": 3}')), conversation("é" * 300)]
    assert write_turns(found, target, "faq") == Imported(conversations=2, turns=3)
    first, second, third = loaded(target)
    assert (first.turn_id, second.turn_id, third.turn_id) == ("a/t00", "a/t01", "é" * LONGEST_ID + "/t00")
    assert second.messages == (ASK, SAYS, ASK)
    assert second.expected == {"calls": [{"name": "price", "arguments": {"item": 3}}]}
    assert [span.text for span in second.decisive] == ["price", "3"]
    assert list(target.parent.iterdir()) == [target]


def test_the_file_appears_whole_only(target: Path) -> None:
    def found() -> Iterator[Conversation]:
        for number in range(3):
            assert not target.exists()
            yield conversation(f"c{number}", place=f"f:{number}")

    write_turns(found(), target, "faq")
    assert len(ids(target)) == 3


@pytest.mark.parametrize("error", [DataError("f: a readable file, got none; restore it"), OSError(5, "I/O error")])
def test_a_source_that_breaks_half_way_leaves_no_file(target: Path, error: Exception) -> None:
    def found() -> Iterator[Conversation]:
        yield conversation()
        raise error

    with pytest.raises(type(error)) as caught:
        write_turns(found(), target, "faq")
    assert caught.value is error
    assert not list(target.parent.iterdir())


def test_a_file_that_is_there_stays(target: Path) -> None:
    target.parent.mkdir(parents=True)
    target.write_text("mine")
    with pytest.raises(DataError) as caught:
        write_turns([conversation()], target, "faq")
    assert str(caught.value) == (
        f"{target}: a new file, got one that is there; golden turns are immutable: choose another"
    )
    assert target.read_text() == "mine"


def test_what_an_import_that_was_killed_left_behind_is_no_hindrance(target: Path) -> None:
    target.parent.mkdir(parents=True)
    (target.parent / ".mine.jsonl.part").write_text("half")
    write_turns([conversation()], target, "faq")
    assert ids(target) == ["c/t00"]
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize(("limit", "turns", "conversations"), [(1, 1, 1), (2, 2, 1), (3, 3, 2), (4, 4, 2), (9, 5, 3)])
def test_a_limit_holds_in_the_middle_of_a_conversation_too(
    target: Path, limit: int, turns: int, conversations: int
) -> None:
    found = [conversation(name, ASK, SAYS, ASK, SAYS) for name in ("a", "b")] + [conversation("c")]
    assert write_turns(found, target, "faq", limit) == Imported(conversations=conversations, turns=turns)
    assert ids(target) == ["a/t00", "a/t01", "b/t00", "b/t01", "c/t00"][:turns]


def test_nothing_is_read_behind_the_limit(target: Path) -> None:
    def found() -> Iterator[Conversation]:
        yield conversation("a", ASK, *[SAYS, ASK] * 5000, SAYS)
        raise AssertionError

    assert write_turns(found(), target, "faq", 2).turns == 2


def test_turns_are_written_one_at_a_time(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """10,000 messages: the turns of all of them would be gigabytes."""
    sizes = []

    def seen(line: bytes, *_: Any) -> None:
        sizes.append(len(line))
        if len(sizes) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("kvquant_eval.io.golden.imports.read_turn", seen)
    with pytest.raises(KeyboardInterrupt):
        write_turns([conversation("a", *[ASK, SAYS] * 5000)], target, "faq")
    assert max(sizes) < 1000
    assert not list(target.parent.iterdir())


@pytest.mark.parametrize(
    ("names", "unique"),
    [
        (["x", "x", "x-2"], ["x", "x-2", "x-2-2"]),
        (["x", "x-2", "x"], ["x", "x-2", "x-3"]),
        (["x-2", "x", "x", "x"], ["x-2", "x", "x-3", "x-4"]),
        (["x", "x\n", "\x1bx", " x "], ["x", "x-2", "x-3", "x-4"]),
        (["", "\x00"], ["conversation", "conversation-2"]),
        (["../../x", "..", "/"], ["../../x", "..", "/"]),
        (["a", "a/t00"], ["a", "a/t00"]),
        (["y" * 300, "y" * 400], [f"{LONG}yy", f"{LONG}-2"]),
        ([f"{LONG}-2", "y" * 300, "y" * 300], [f"{LONG}-2", f"{LONG}yy", f"{LONG}-3"]),
    ],
)
def test_names_that_were_there_before_get_a_number(target: Path, names: list[str], unique: list[str]) -> None:
    assert write_turns(map(conversation, names), target, "faq").conversations == len(names)
    assert ids(target) == [f"{name}/t00" for name in unique]


def test_one_name_for_all_costs_no_more_than_many(target: Path) -> None:
    """With a search from 2 on for each, this took minutes."""
    write_turns((conversation("x") for _ in range(1_000)), target, "faq")
    assert ids(target)[-1] == "x-1000/t00"


def test_requests_of_one_conversation_come_together_again(target: Path) -> None:
    """As a server logs them: each with the history so far, and one of them tried twice."""
    requests = [conversation("x", *[ASK, SAYS] * n, replies={2 * n - 1: {}}) for n in (1, 2, 2, 3)]
    done = write_turns(requests, target, "faq")
    assert ids(target) == ["x/t00", "x/t01", "x-2/t01", "x/t02"]
    assert done.conversations == 2


def test_a_turn_whose_place_is_taken_is_left_out(target: Path) -> None:
    late = conversation("x", ASK, SAYS, ASK, SAYS, replies={3: {}}, place="f:1")
    done = write_turns([late, conversation("x", ASK, SAYS, ASK, SAYS, place="f:2")], target, "faq")
    assert ids(target) == ["x/t01", "x/t00"]
    assert done.left_out == {"a turn of its own": 1}
    assert done.first == {"a turn of its own": "f:2: a turn of its own, got x/t01 again"}


def test_what_is_left_out_is_counted_with_its_first_place(target: Path) -> None:
    found = [
        LeftOut("f:1", "JSON that cannot be read, got NaN at line 1, column 3"),
        conversation("a", IMAGE, SAYS, ASK, SAYS, place="f:2"),
        conversation("b", ASK, calling("[1]"), place="f:3"),
        conversation("c", place="f:4"),
        LeftOut("f:5", "JSON that cannot be read, got Extra data at line 1, column 9"),
        conversation("d", ASK, SAYS, ASK, SAYS, {"role": "critic"}, SAYS, ASK, calling("x"), place="f:6"),
        conversation("e", ASK, SAYS, {"role": "\x1b[2J"}, SAYS, place="f:7"),
        conversation("f", ASK, {**calling("{}"), "content": ""}, ASK, SAYS, place="f:8"),
    ]
    done = write_turns(found, target, "faq")
    assert (done.conversations, done.turns) == (4, 5)
    assert done.left_out == {
        "an image": 2,
        "a role that is known": 3,
        "JSON that cannot be read": 2,
        "reference.tool_calls.function.arguments: a JSON object": 1,
        "messages.tool_calls: a tool result for every call": 1,
    }
    assert done.first == {
        "an image": "f:2: an image",
        "a role that is known": "f:6: a role that is known, got 'critic'",
        "JSON that cannot be read": "f:1: JSON that cannot be read, got NaN at line 1, column 3",
        "reference.tool_calls.function.arguments: a JSON object": (
            "f:3: reference.tool_calls.0.function.arguments: a JSON object, got '[1]'; correct it"
        ),
        "messages.tool_calls: a tool result for every call": (
            "f:8: messages.1.tool_calls: a tool result for every call, got none; add the tool message"
        ),
    }
    assert ids(target) == ["c/t00", "d/t00", "d/t01", "e/t00", "f/t00"]


@pytest.mark.parametrize(
    "odd",
    [
        lambda n: conversation("c", {"role": f"role-{n}"}, SAYS),
        lambda n: conversation("c", f"text {n}", SAYS, replies={1: {}}),
        lambda n: conversation("c", {"role": "user", "content": n}, SAYS),
        lambda n: conversation("c", {"role": "user", "content": [{"type": f"type-{n}"}]}, SAYS),
        lambda n: conversation("c", ASK, {"role": "assistant", "tool_calls": f"f({n})"}),
        lambda n: conversation("c", ASK, {"role": "assistant", "tool_calls": [f"f({n})"]}),
        lambda n: conversation("c", ASK, calling(f"item={n}")),
        lambda n: conversation("c", tools=[{"type": f"type-{n}"}]),
        lambda n: conversation("c", ASK, SAYS, {"role": "tool", "tool_call_id": f"call-{n}"}, SAYS, replies={3: {}}),
        lambda n: conversation(f"c{n}", ASK, {"role": "assistant", "content": ""}),
        lambda n: conversation("c", ASK, place=f"a\tb:{n}"),
        lambda n: conversation(f"c{n}", ASK, calling("[]"), place=f"a\tb:{n}"),
    ],
)
def test_reasons_do_not_grow_with_the_source(target: Path, odd: Any) -> None:
    done = write_turns([conversation("good"), *map(odd, range(50))], target, "faq")
    assert list(done.left_out.values()) == [50], done.left_out


@pytest.mark.parametrize(
    ("found", "line"),
    [
        ([], "source: conversations to import, got none; correct the source or --format"),
        (
            [LeftOut("f:1", "an image"), LeftOut("f:2", "a request with messages, got 'None'")] * 2
            + [conversation("c", IMAGE, SAYS, place="f:5")],
            "source: a turn that can be used, got none; 3 times: f:1: an image; correct the source or --format",
        ),
    ],
)
def test_nothing_that_can_be_used_is_an_error(target: Path, found: Any, line: str) -> None:
    assert refused(found, target) == line


def test_hostile_text_is_escaped_in_the_error(target: Path) -> None:
    line = refused([LeftOut("a\nb:1", "a role that is known, got '\x1b[2J'")], target)
    assert line.isprintable()


@pytest.mark.parametrize(
    "messages",
    [
        ({"role": "user", "content": "\ud800"}, SAYS),
        (ASK, {"role": "assistant", "content": "\udfff"}),
        (ASK, calling({"\ud800": 1})),
        (ASK, calling('{"a": "\ud800"}')),
        (ASK, {"role": "assistant", "tool_calls": [{"function": {"name": "\ud800", "arguments": {}}}]}),
    ],
)
def test_half_a_surrogate_pair_is_left_out(target: Path, messages: Any) -> None:
    found = [conversation("\ud800", *messages), conversation("\ud800")]
    done = write_turns(found, target, "faq")
    assert done.left_out == {"text that is no Unicode: half a surrogate pair": 1}
    assert ids(target) == ["conversation-2/t00"]


def test_what_is_too_deep_to_be_loaded_is_left_out(target: Path) -> None:
    deep = '{"a": ' * 99 + "1" + "}" * 99
    done = write_turns([conversation("a", ASK, calling(deep), place="f:9"), conversation("b")], target, "faq")
    assert done.first == {"JSON": "f:9: JSON, got more than 100 levels; correct the line"}
    assert ids(target) == ["b/t00"]


def test_what_is_too_long_to_be_loaded_is_left_out(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert LONGEST_LINE == 32 * 2**20
    monkeypatch.setattr(store, "LONGEST_LINE", 1 << 20)
    long = {"role": "user", "content": "x" * (1 << 20)}
    done = write_turns([conversation("a", ASK, SAYS, long, SAYS)], target, "faq")
    assert done.first == {"lines of at most 1 MiB": "f:1: lines of at most 1 MiB, got a longer one; shorten the turn"}
    assert ids(target) == ["a/t00"]
