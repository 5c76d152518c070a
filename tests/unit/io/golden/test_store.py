"""Golden sets on disk: pinned, immutable, and errors that say where."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from kvquant_eval.cli.config import data_folder
from kvquant_eval.core.codec import DataError
from kvquant_eval.io.golden import LONGEST_LINE, load, pin, verify
from kvquant_eval.io.golden.manifest import MANIFEST, read_manifest
from tests.bad_input.case import Case
from tests.bad_input.golden import CASES
from tests.fakes.gate import write_golden

BOTH = ("math_chain", "faq")


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    return write_golden(tmp_path / "golden")


def manifest(folder: Path) -> Any:
    return json.loads((folder / MANIFEST).read_text())


def rewrite(folder: Path, lines: list[str], workload: str = "faq") -> None:
    """Other lines, pinned."""
    (folder / workload / "turns.jsonl").write_text("\n".join(lines) + "\n")
    (folder / MANIFEST).write_text(json.dumps(pin(folder, "fake", "v1", {})))


def lines(folder: Path, workload: str = "faq") -> list[str]:
    return (folder / workload / "turns.jsonl").read_text().splitlines()


def test_a_set_is_loaded_in_the_order_of_its_classes(golden: Path) -> None:
    loaded = load(golden, BOTH)
    assert (loaded.name, loaded.version, len(loaded.turns)) == ("fake", "v1", 40)
    assert [turn.workload for turn in loaded.turns] == ["math_chain"] * 20 + ["faq"] * 20
    assert loaded.turns[0].decisive[0].text == "= 111"
    assert [turn.workload for turn in load(golden, ["faq"]).turns] == ["faq"] * 20


def test_the_hash_covers_every_file_of_the_set(golden: Path) -> None:
    before = load(golden, BOTH).sha256
    assert load(golden, ["faq"]).sha256 == before
    rewrite(golden, lines(golden)[:-1])
    assert load(golden, ["math_chain"]).sha256 != before


def test_pinning_counts_and_names(golden: Path) -> None:
    pinned = pin(golden, "fake", "v2", {"licence": "CC0"})
    assert (pinned["name"], pinned["version"], pinned["licence"]) == ("fake", "v2", "CC0")
    assert {name: entry["turns"] for name, entry in pinned["files"].items()} == {
        "faq/turns.jsonl": 20,
        "math_chain/turns.jsonl": 20,
    }
    assert pinned["files"] == manifest(golden)["files"]


@pytest.mark.parametrize("change", [lambda data: data + b"\n", lambda data: data.replace(b"euros", b"EUROS", 1)])
def test_a_changed_file_is_refused(golden: Path, change: Any) -> None:
    file = golden / "faq" / "turns.jsonl"
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(
        DataError, match=r"faq/turns\.jsonl: the pinned sha256 \w{12}, got \w{12}; golden turns are imm"
    ):
        load(golden, BOTH)


def test_a_missing_file_is_named(golden: Path) -> None:
    (golden / "faq" / "turns.jsonl").unlink()
    with pytest.raises(DataError, match=r"faq/turns\.jsonl: a readable file, got No such file"):
        load(golden, BOTH)


def test_a_bad_line_is_named_by_file_and_line(golden: Path) -> None:
    good = lines(golden)
    rewrite(golden, [*good[:6], '{"turn_id": ', *good[7:]])
    with pytest.raises(DataError, match=r"faq/turns\.jsonl:7:13: JSON, got Expecting value; correct the line$"):
        load(golden, BOTH)
    turn = json.loads(good[6])
    del turn["reference"]
    rewrite(golden, [*good[:6], json.dumps(turn), *good[7:]])
    with pytest.raises(DataError, match=r"faq/turns\.jsonl:7: reference: "):
        load(golden, BOTH)


def test_an_empty_line_is_a_bad_line(golden: Path) -> None:
    good = lines(golden)
    rewrite(golden, [good[0], "", *good[1:]])
    with pytest.raises(DataError, match=r"faq/turns\.jsonl:2: "):
        load(golden, BOTH)


def test_line_separators_within_a_text_end_no_line(golden: Path) -> None:
    good = lines(golden)
    turn = json.loads(good[0])
    turn["messages"][0]["content"] = "a\u2028b\x85c\x0bd"
    rewrite(golden, [json.dumps(turn, ensure_ascii=False), *good[1:]])
    assert load(golden, ["faq"]).turns[0].messages[0]["content"] == "a\u2028b\x85c\x0bd"


def test_a_turn_of_another_class_is_refused(golden: Path) -> None:
    rewrite(golden, [*lines(golden), lines(golden, "math_chain")[0]])
    with pytest.raises(DataError, match=r"faq/turns\.jsonl:21: workload 'faq', got 'math_chain'; move the turn"):
        load(golden, BOTH)


def test_ids_are_unique_over_all_files(golden: Path) -> None:
    twice = json.loads(lines(golden)[0]) | {"turn_id": "math_chain-03/1"}
    rewrite(golden, [*lines(golden), json.dumps(twice)])
    places = (
        r"faq/turns\.jsonl:21: turn ids must be unique, got 'math_chain-03/1' 2 times, first in .*_chain/turns\.jsonl:8"
    )
    with pytest.raises(DataError, match=places):
        load(golden, BOTH)


def test_a_class_without_turns_is_refused_and_the_others_are_named(golden: Path) -> None:
    with pytest.raises(DataError, match=r"got none for 'coding' in .*; the set has faq, math_chain"):
        load(golden, [*BOTH, "coding"])


@pytest.mark.parametrize("name", ["../outside.jsonl", "faq/../../outside.jsonl", "{absolute}", "faq/link.jsonl"])
def test_a_file_outside_the_folder_is_refused(golden: Path, name: str) -> None:
    outside = golden.parent / "outside.jsonl"
    outside.write_bytes((golden / "faq" / "turns.jsonl").read_bytes())
    (golden / "faq" / "link.jsonl").symlink_to(outside)
    pinned = manifest(golden)
    entry = pinned["files"].pop("faq/turns.jsonl")
    pinned["files"][name.format(absolute=outside)] = entry
    (golden / MANIFEST).write_text(json.dumps(pinned))
    with pytest.raises(DataError, match="files inside the golden folder, got "):
        load(golden, BOTH)


def test_no_manifest(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^golden\.path: a folder with a MANIFEST\.json, got "):
        load(tmp_path, BOTH)


@pytest.mark.parametrize(("text", "got"), [("{", "got Expecting"), ('{"name": "x"}', "got no version")])
def test_a_broken_manifest(golden: Path, text: str, got: str) -> None:
    (golden / MANIFEST).write_text(text)
    with pytest.raises(DataError, match=rf"MANIFEST\.json: a manifest .*{got}"):
        load(golden, BOTH)


@pytest.mark.parametrize(
    "change",
    [
        lambda pinned: pinned["files"]["faq/turns.jsonl"].pop("sha256"),
        lambda pinned: pinned["files"]["faq/turns.jsonl"].pop("workload"),
        lambda pinned: pinned.update(files=list(pinned["files"])),
        lambda pinned: pinned["files"].update({"faq/turns.jsonl": None}),
    ],
)
def test_an_entry_that_says_nothing_is_named(golden: Path, change: Any) -> None:
    pinned = manifest(golden)
    change(pinned)
    (golden / MANIFEST).write_text(json.dumps(pinned))
    with pytest.raises(DataError, match=r"MANIFEST\.json"):
        load(golden, BOTH)


def test_text_that_is_not_utf8_is_named(golden: Path) -> None:
    (golden / "faq" / "turns.jsonl").write_bytes(b'{"turn_id": "\xff"}\n')
    (golden / MANIFEST).write_text(json.dumps(pin(golden, "fake", "v1", {})))
    with pytest.raises(DataError, match=r"faq/turns\.jsonl:1:14: JSON, got the byte 0xff"):
        load(golden, BOTH)


def test_a_misspelt_key_is_not_dropped(golden: Path) -> None:
    """A turn with ``decisve`` would run without its decisive spans."""
    turn = json.loads(lines(golden)[0])
    turn["decisve"] = turn.pop("decisive")
    rewrite(golden, [json.dumps(turn), *lines(golden)[1:]])
    with pytest.raises(DataError, match="decisve"):
        load(golden, BOTH)


def test_the_shipped_set_is_as_it_was_pinned() -> None:
    folder = data_folder("golden")
    loaded = load(folder, read_manifest(folder).workloads)
    assert len(loaded.turns) == 242
    assert loaded.sha256 == "db2578fb12593a3e80ee09349eca434fcbbc407d793adb91fa7ac97fa224dc07"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.what)
def test_every_broken_set_is_refused_with_its_line(case: Case, tmp_path: Path) -> None:
    case.make(tmp_path)
    with pytest.raises(DataError) as caught:
        load(tmp_path / "golden", BOTH)
    assert str(caught.value) == case.line.replace("{folder}", str(tmp_path))


def test_a_last_line_without_a_line_feed_is_a_turn(golden: Path) -> None:
    file = golden / "faq" / "turns.jsonl"
    file.write_bytes(file.read_bytes().removesuffix(b"\n"))
    pinned = pin(golden, "fake", "v1", {})
    assert pinned["files"]["faq/turns.jsonl"]["turns"] == 20
    assert len(verify(golden, pinned).files) == 2
    (golden / MANIFEST).write_text(json.dumps(pinned))
    assert len(load(golden, ["faq"]).turns) == 20


def test_a_line_may_be_as_long_as_the_limit(golden: Path) -> None:
    turn = json.loads(lines(golden)[0])
    turn["messages"][0]["content"] = ""
    turn["messages"][0]["content"] = "x" * (LONGEST_LINE - len(json.dumps(turn)) - 1)
    rewrite(golden, [json.dumps(turn), *lines(golden)[1:]])
    assert len(load(golden, ["faq"]).turns) == 20
    turn["messages"][0]["content"] += "x"
    rewrite(golden, [json.dumps(turn), *lines(golden)[1:]])
    with pytest.raises(DataError, match=r"faq/turns\.jsonl:1: lines of at most 32 MiB"):
        load(golden, ["faq"])


def test_a_path_for_a_turn_id_is_text(golden: Path) -> None:
    turn = json.loads(lines(golden)[0]) | {"turn_id": "../../x"}
    rewrite(golden, [json.dumps(turn), *lines(golden)[1:]])
    assert load(golden, ["faq"]).turns[0].turn_id == "../../x"


def test_verify_refuses_what_load_refuses_and_writes_nothing(golden: Path) -> None:
    (golden / "faq" / "turns.jsonl").write_bytes(b"{}\n")
    before = (golden / MANIFEST).read_bytes()
    with pytest.raises(DataError, match=r"faq/turns\.jsonl:1: turn_id: Field required"):
        verify(golden, pin(golden, "fake", "v2", {}))
    assert (golden / MANIFEST).read_bytes() == before


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), os.mkfifo])
def test_a_folder_or_a_pipe_for_a_file_keeps_nobody_waiting(golden: Path, make: Any) -> None:
    (golden / "faq" / "turns.jsonl").unlink()
    make(golden / "faq" / "turns.jsonl")
    for read in (lambda: load(golden, BOTH), lambda: pin(golden, "fake", "v1", {})):
        with pytest.raises(DataError, match=r"faq/turns\.jsonl: a readable file, got something else"):
            read()
