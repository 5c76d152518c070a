"""``kvquant-golden import``: golden turns, what was left out, and what to do next; or one line and status 2."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvquant_eval.cli import golden_import
from kvquant_eval.cli.golden import main
from kvquant_eval.core.conversation import Conversation, LeftOut
from kvquant_eval.io.golden import load
from kvquant_eval.io.golden.manifest import MANIFEST, read_manifest
from tests.fakes.gate import write_golden

ASK = {"role": "user", "content": "How much is item 3?"}
SAYS = {"role": "assistant", "content": "It is 3.10."}
IMAGE = {"role": "user", "content": [{"type": "image_url"}]}
CHAT = {"messages": [ASK, SAYS, ASK, SAYS]}

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write(tmp_path / "chats.jsonl", CHAT, {"id": "last", "messages": [ASK, SAYS]})


def write(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def command(source: Path | str, out: Path, *more: str, workload: str = "faq", kind: str = "openai") -> list[str]:
    return ["import", str(source), "--format", kind, "--class", workload, "--out", str(out), *more]


def refused(argv: list[str], capsys: Capture) -> str:
    """The line of a command that fails."""
    assert main(argv) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("kvquant-golden: ")
    assert said.err.endswith("\n")
    line = said.err.removeprefix("kvquant-golden: ")[:-1]
    assert line.isprintable()
    return line


def test_a_new_set_is_pinned_and_can_be_gated(source: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "mine"
    assert main(command(source, out)) == 0
    said = capsys.readouterr()
    assert said.out.splitlines() == [
        f"3 turns of 2 conversations in {out}/faq/chats.jsonl",
        f"pinned as mine 1 in {out}/MANIFEST.json",
        f"gate it with: kvquant-eval gate golden.path={out} workload=[faq] gate.hardest=faq",
    ]
    assert said.err == ""
    assert [turn.turn_id for turn in load(out, ["faq"]).turns] == ["chats-1/t00", "chats-1/t01", "last/t00"]
    manifest = json.loads((out / MANIFEST).read_text())
    assert (manifest["licence"], manifest["provenance"]) == ("unspecified", "openai: chats.jsonl")
    assert main(["stats", "--path", str(out)]) == 0


def test_a_source_whose_name_is_no_unicode(tmp_path: Path) -> None:
    source = write(tmp_path / "chats-\udcff.jsonl", CHAT)
    assert main(command(source, tmp_path / "mine", "--name", "chats")) == 0
    assert read_manifest(tmp_path / "mine").name == "mine"
    assert json.loads((tmp_path / "mine" / MANIFEST).read_text())["provenance"] == "openai: chats-\\udcff.jsonl"


def test_a_class_of_ones_own_needs_a_configuration(source: Path, tmp_path: Path, capsys: Capture) -> None:
    assert main(command(source, tmp_path / "mine", workload="support")) == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        "the class needs a workload/support.yaml, in a folder given with --config-dir; see the README"
    )


def test_what_is_left_out_is_told(tmp_path: Path, capsys: Capture) -> None:
    source = write(tmp_path / "chats.jsonl", {"messages": [ASK, SAYS, IMAGE, SAYS, ASK, SAYS]}, {"prompt": "x"}, CHAT)
    assert main(command(source, tmp_path / "mine")) == 0
    assert capsys.readouterr().out.splitlines()[:3] == [
        f"3 turns of 2 conversations in {tmp_path}/mine/faq/chats.jsonl",
        f"  left out: 2 x an image; first {source}:1: an image",
        f"  left out: 1 x a request with messages; first {source}:2: a request with messages, got 'None'",
    ]


def test_a_set_that_was_there_is_left_as_it_is(source: Path, tmp_path: Path, capsys: Capture) -> None:
    out = write_golden(tmp_path / "my sets")
    before = (out / MANIFEST).read_bytes()
    assert main(command(source, out)) == 0
    first, hint = capsys.readouterr().out.splitlines()
    assert first == f"3 turns of 2 conversations in {out}/faq/chats.jsonl"
    known = read_manifest(out)
    begin = f"not part of {known.name} {known.version} yet: "
    assert hint.startswith(begin)
    assert (out / MANIFEST).read_bytes() == before
    program, *arguments = shlex.split(hint.removeprefix(begin))
    assert program == "kvquant-golden"
    assert arguments == ["pin", "--path", str(out), "--name", known.name, "--set-version", "NEW"]
    assert main(arguments) == 0
    assert {turn.turn_id for turn in load(out, ["faq"]).turns} >= {"chats-1/t00", "last/t00"}


def test_only_what_was_imported_is_pinned(source: Path, tmp_path: Path) -> None:
    (tmp_path / "my data").mkdir()
    (tmp_path / "my data" / "other.jsonl").write_text("no golden turn\n")
    assert main(command(source, tmp_path)) == 0
    assert list(read_manifest(tmp_path).files) == ["faq/chats.jsonl"]
    assert main(["stats", "--path", str(tmp_path)]) == 0


def test_a_folder_whose_name_is_none_for_a_set(
    source: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "\x1b[2J it's"
    assert main(command(source, out)) == 0
    said = capsys.readouterr().out
    assert said.replace("\n", "").isprintable()
    assert read_manifest(out).name == "faq"
    monkeypatch.chdir(tmp_path)
    assert main(command(source, Path("two words"))) == 0
    gate = capsys.readouterr().out.splitlines()[2].removeprefix("gate it with: ")
    assert shlex.split(gate) == [
        "kvquant-eval", "gate", "golden.path=two words", "workload=[faq]", "gate.hardest=faq"
    ]  # fmt: skip


@pytest.mark.parametrize(("limit", "line"), [(1, "1 turns of 1 "), (2, "2 turns of 1 "), (9, "3 turns of 2 ")])
def test_at_most_so_many_turns(source: Path, tmp_path: Path, limit: int, line: str, capsys: Capture) -> None:
    assert main(command(source, tmp_path / "mine", "--limit", str(limit))) == 0
    assert capsys.readouterr().out.startswith(line)
    assert len(load(tmp_path / "mine", ["faq"]).turns) == min(limit, 3)


@pytest.mark.parametrize("limit", ["0", "-1", "1.5", "x", "", "9" * 5000])
def test_another_limit_is_refused(source: Path, tmp_path: Path, limit: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as caught:
        main(command(source, tmp_path / "mine", f"--limit={limit}"))
    assert caught.value.code == 2
    assert "argument --limit: " in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["--format", "--class", "--out"])
def test_what_has_to_be_said(source: Path, tmp_path: Path, missing: str, capsys: Capture) -> None:
    argv = command(source, tmp_path / "mine")
    at = argv.index(missing)
    with pytest.raises(SystemExit) as caught:
        main(argv[:at] + argv[at + 2 :])
    assert caught.value.code == 2
    assert f"the following arguments are required: {missing}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "line"),
    [
        (
            {"workload": "my class"},
            "--class: letters, digits, _ . and -, no dot first, got 'my class'; name the class ",
        ),
        ({"workload": "../x"}, "--class: letters, digits, _ . and -, no dot first, got '../x'; "),
        ({"workload": "\x1b[2J"}, "--class: letters, digits, _ . and -, no dot first, got '\\x1b[2J'; "),
        ({"workload": ""}, "--class: letters, digits, _ . and -, no dot first, got ''; "),
        ({"kind": "opnai"}, "--format: a format that can be imported, got 'opnai'; did you mean 'openai'?"),
        ({"kind": "\x1b[2J"}, "--format: a format that can be imported, got '\\x1b[2J'; choose from "),
        ({"kind": "_files"}, "--format: a format that can be imported, got '_files'; choose from "),
    ],
)
def test_what_cannot_be(source: Path, tmp_path: Path, more: dict[str, str], line: str, capsys: Capture) -> None:
    out = tmp_path / "mine"
    assert refused(command(source, out, **more), capsys).startswith(line)
    assert not out.exists()


@pytest.mark.parametrize("name", ["a b", "../x", ".hidden", "\x1b[2J"])
def test_another_name_is_refused(source: Path, tmp_path: Path, name: str, capsys: Capture) -> None:
    line = refused(command(source, tmp_path / "mine", "--name", name), capsys)
    assert line.startswith("--name: letters, digits, _ . and -, no dot first, got '")
    assert line.endswith("'; give the file a --name")


def test_a_name_is_the_files(tmp_path: Path, capsys: Capture) -> None:
    source = write(tmp_path / "my chats (1).jsonl", CHAT)
    out = tmp_path / "mine"
    assert "got 'my chats (1)'; give the file a --name" in refused(command(source, out), capsys)
    assert main(command(source, out, "--name", "chats-1")) == 0
    assert list(read_manifest(out).files) == ["faq/chats-1.jsonl"]
    capsys.readouterr()
    assert "a new file, got one that is there; " in refused(command(source, out, "--name", "chats-1"), capsys)


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("", ".: a readable file, got something else; restore it"),
        (".", ".: a readable file, got something else; restore it"),
        ("/", "/: a readable file, got something else; restore it"),
        ("..", "--name: letters, digits, _ . and -, no dot first, got '..'; give the file a --name"),
        (".jsonl", "--name: letters, digits, _ . and -, no dot first, got '.jsonl'; give the file a --name"),
        ("none.jsonl", "none.jsonl: a readable file, got No such file or directory; restore it"),
        ("x" * 180 + "/" + "y" * 180, f"{'x' * 180}/{'y' * 180}: a readable file, got No such file or directory; "),
    ],
)
def test_a_source_that_is_no_file(
    source: str, line: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert refused(command(source, tmp_path / "mine"), capsys).startswith(line)
    assert not list(tmp_path.rglob("*.jsonl*"))
    assert not list(tmp_path.rglob(MANIFEST))


def test_a_source_without_a_turn(tmp_path: Path, capsys: Capture) -> None:
    source = write(tmp_path / "chats.jsonl", {"messages": [IMAGE, SAYS]})
    line = refused(command(source, tmp_path / "mine"), capsys)
    assert line == (
        f"source: a turn that can be used, got none; 1 times: {source}:1: an image; correct the source or --format"
    )
    assert not list((tmp_path / "mine").rglob("*.*"))


def test_a_broken_manifest_is_met_before_the_import(source: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "mine"
    out.mkdir()
    (out / MANIFEST).write_text("{")
    assert refused(command(source, out), capsys).startswith(f"{out}/{MANIFEST}: a manifest in JSON, got ")
    assert list(out.iterdir()) == [out / MANIFEST]


def test_a_file_in_the_place_of_a_folder(source: Path, tmp_path: Path, capsys: Capture) -> None:
    line = refused(command(source, source), capsys)
    assert line.startswith(f"{source}")
    assert line.endswith("; make room or correct the path")


def test_hostile_text_does_not_reach_the_terminal(tmp_path: Path, capsys: Capture) -> None:
    hostile = "../../x\x1b[2J\n\u202e\u3164'"
    records = [
        {"id": hostile, "messages": [ASK, SAYS]},
        {"id": hostile, "messages": [ASK, {"role": "assistant", "content": hostile}, {"role": hostile}, SAYS]},
        {"id": hostile, "messages": [ASK, SAYS], "tools": hostile},
        {"id": hostile, "messages": [{"role": "user", "content": [{"type": hostile}]}, SAYS]},
        {"id": hostile, "messages": hostile},
        {"id": hostile, "messages": [ASK, {"role": "assistant", "function_call": {"name": "f", "arguments": hostile}}]},
    ]
    assert main(command(write(tmp_path / "chats.jsonl", *records), tmp_path / "mine")) == 0
    said = capsys.readouterr().out
    assert said.startswith("2 turns of 2 conversations in ")
    assert len(said.splitlines()) == 1 + 5 + 2
    assert said.replace("\n", "").isprintable()
    assert "\u3164" not in said
    turns = load(tmp_path / "mine", ["faq"]).turns
    assert [turn.conversation_id for turn in turns] == ["../../x[2J\u3164'", "../../x[2J\u3164'-2"]
    assert {path.name for path in tmp_path.rglob("*")} == {"chats.jsonl", "mine", "faq", MANIFEST}


def test_hostile_text_of_the_command_does_not_reach_the_terminal(tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "\x1b[2J\n\udcff"
    folder.mkdir()
    source = write(folder / "chats.jsonl", CHAT, {"messages": [IMAGE, SAYS]}, 3)
    assert main(command(source, folder / "\x07mine")) == 0
    said = capsys.readouterr().out
    assert len(said.splitlines()) == 5
    assert said.replace("\n", "").isprintable()
    assert "\\x1b[2J\\n\\udcff" in said


def test_a_mapping_is_refused_where_it_says_nothing(source: Path, tmp_path: Path, capsys: Capture) -> None:
    line = refused(command(source, tmp_path / "mine", "--mapping", "m.yaml"), capsys)
    assert line == "--mapping: none for the format openai, got m.yaml; remove it"


@pytest.fixture
def mapped(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The mappings that a format with columns was given; there is such a format for the test."""
    seen: list[Any] = []

    def read(source: str, mapping: dict[str, Any]) -> Iterator[Conversation | LeftOut]:
        seen.append(mapping)
        yield Conversation(conversation_id="c", place=source, messages=[ASK, SAYS])

    monkeypatch.setattr(golden_import, "importer", lambda _: SimpleNamespace(read=read))
    return seen


def test_a_mapping_is_given_to_the_format_that_takes_one(tmp_path: Path, mapped: list[Any]) -> None:
    (tmp_path / "m.yaml").write_text("messages: chat\nanswers: [a, b]\n")
    assert main(command("org/set", tmp_path / "mine", "--mapping", str(tmp_path / "m.yaml"))) == 0
    assert mapped == [{"messages": "chat", "answers": ["a", "b"]}]
    assert list(read_manifest(tmp_path / "mine").files) == ["faq/set.jsonl"]


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (None, "{path}: a YAML file, got No such file or directory; correct --mapping"),
        (b"a: [", '{path}: YAML, got "while parsing a flow node\\n'),
        (b"a: \xff", "{path}: YAML, got \"'utf-8' codec can't decode byte 0xff"),
        (b"[" * 1500, "{path}: YAML, got '"),
        (b"!!python/object:os.system {}", '{path}: YAML, got "could not determine a constructor'),
        (b"", "{path}: columns by name, got 'None'; correct it"),
        (b"- a", "{path}: columns by name, got \"['a']\"; correct it"),
    ],
)
def test_a_broken_mapping(data: bytes | None, line: str, tmp_path: Path, mapped: list[Any], capsys: Capture) -> None:
    path = tmp_path / "m.yaml"
    if data is not None:
        path.write_bytes(data)
    said = refused(command("org/set", tmp_path / "mine", "--mapping", str(path)), capsys)
    assert said.startswith(line.replace("{path}", str(path)))
    assert mapped == []


def test_a_format_with_columns_needs_a_mapping(tmp_path: Path, mapped: list[Any], capsys: Capture) -> None:
    line = refused(command("org/set", tmp_path / "mine"), capsys)
    assert line == "--mapping: a YAML file that says what the columns are, got none; see the README"
    assert mapped == []


def test_help_names_the_formats(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["import", "--help"])
    assert caught.value.code == 0
    assert "openai" in capsys.readouterr().out


def test_a_full_disk_is_one_line_and_leaves_nothing(
    source: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, *_: object) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(Path, "rename", full)
    line = refused(command(source, tmp_path / "mine"), capsys)
    assert line == f"{tmp_path}/mine/faq/.chats.jsonl.part: No space left on device; make room or correct the path"
    assert not list((tmp_path / "mine" / "faq").iterdir())
