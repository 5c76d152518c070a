"""The manifest of a golden set: what it must say, and what it may name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvquant_eval.core.codec import DataError
from kvquant_eval.io.golden.manifest import LARGEST_MANIFEST, MANIFEST, Manifest, PinnedFile, read_manifest

ENTRY = {"workload": "faq", "sha256": "0" * 64, "turns": 3}


def write(folder: Path, **changes: Any) -> Path:
    said = {"name": "n", "version": "v", "licence": "CC0", "files": {"faq/a.jsonl": ENTRY}} | changes
    (folder / MANIFEST).write_text(json.dumps(said))
    return folder


def refusal(folder: Path) -> str:
    with pytest.raises(DataError) as caught:
        read_manifest(folder)
    line = str(caught.value)
    assert line.isprintable()
    assert line.startswith(f"{folder / MANIFEST}: ")
    return line.removeprefix(f"{folder / MANIFEST}: ")


def test_a_manifest_says_what_pins_each_file(tmp_path: Path) -> None:
    files = {"b/x.jsonl": ENTRY, "a/x.jsonl": ENTRY | {"workload": "a", "turns": 0}}
    assert read_manifest(write(tmp_path, files=files)) == Manifest(
        name="n",
        version="v",
        files={
            "b/x.jsonl": PinnedFile(workload="faq", sha256="0" * 64, turns=3),
            "a/x.jsonl": PinnedFile(workload="a", sha256="0" * 64, turns=0),
        },
    )
    assert read_manifest(tmp_path).workloads == ("faq", "a")


@pytest.mark.parametrize("text", ["null", "[]", "3", '"name"'])
def test_another_json_value_is_no_manifest(tmp_path: Path, text: str) -> None:
    (tmp_path / MANIFEST).write_text(text)
    assert refusal(tmp_path).startswith("a manifest with name, version and files, got '")


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"name": 3}, "a manifest with name, version and files, got name '3'; restore it"),
        ({"version": None}, "a manifest with name, version and files, got version 'None'; restore it"),
        ({"files": [ENTRY]}, "a manifest with name, version and files, got files \"[{'workload': 'faq', "),
        ({"name": ""}, "a name of 1 to 200 printable characters, got ''; correct it"),
        ({"version": "\x1b[2J"}, r"a version of 1 to 200 printable characters, got '\x1b[2J'; correct it"),
        ({"files": {"faq/a.jsonl": None}}, "faq/a.jsonl: an object with workload, sha256 and turns, got 'None'; "),
        ({"files": {"faq/a.jsonl": {**ENTRY, "sha256": "A" * 64}}}, "faq/a.jsonl: sha256: 64 hex digits in lower case"),
        ({"files": {"faq/a.jsonl": {**ENTRY, "sha256": "0" * 64 + "\n"}}}, "faq/a.jsonl: sha256: 64 hex digits in "),
        ({"files": {"faq/a.jsonl": {**ENTRY, "workload": 3}}}, "faq/a.jsonl: workload: Input should be a valid string"),
        ({"files": {"faq/a.jsonl": {**ENTRY, "workload": ".."}}}, "faq/a.jsonl: workload: letters, digits, _ . and -"),
        ({"files": {"faq/a.jsonl": {**ENTRY, "turns": "3"}}}, "faq/a.jsonl: turns: Input should be a valid integer"),
        ({"files": {"faq/a.jsonl": {**ENTRY, "turns": -1}}}, "faq/a.jsonl: turns: 0 or more, got -1; restore it"),
        ({"files": {"faq/a.jsonl": {"workload": "faq", "sha256": "0" * 64}}}, "faq/a.jsonl: turns: Field required"),
        ({"files": {"": ENTRY}}, "file names of 1 to 200 printable characters, got ''; rename the file"),
        ({"files": {"a\nb": ENTRY}}, r"file names of 1 to 200 printable characters, got 'a\nb'; rename the file"),
        ({"files": {"\x00": ENTRY}}, r"file names of 1 to 200 printable characters, got '\x00'; rename the file"),
        ({"files": {"faq/../faq/a.jsonl": ENTRY}}, "files inside the golden folder, got 'faq/../faq/a.jsonl'; remove "),
        ({"files": {"/": ENTRY}}, "files inside the golden folder, got '/'; remove the entry"),
        ({"files": {"./faq//a.jsonl": ENTRY}}, "plain file names, got './faq//a.jsonl'; write 'faq/a.jsonl'"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, changes: dict[str, Any], line: str) -> None:
    assert refusal(write(tmp_path, **changes)).startswith(line)


def test_a_link_that_leads_to_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    files = {"loop/a.jsonl": ENTRY}
    assert refusal(write(tmp_path, files=files)).startswith("files inside the golden folder, got 'loop/a.jsonl'")


def test_a_file_named_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text('{"name": "n", "version": "v", "files": {"a": {}, "a": {}}}')
    assert refusal(tmp_path) == "a manifest in JSON, got the key 'a' twice in one object; restore it"


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"", "a manifest in JSON, got Expecting value at line 1, column 1; restore it"),
        (b"\xef\xbb\xbf{}", "a manifest in JSON, got a byte order mark at line 1, column 1; restore it"),
        (
            b'{\n "n": "\xe9"}',
            "a manifest in JSON, got the byte 0xe9, which is no UTF-8 at line 2, column 8; restore it",
        ),
        (b"[" * 1000, "a manifest in JSON, got more than 100 levels; restore it"),
        (b" " * (LARGEST_MANIFEST + 1), "a manifest of at most 16 MiB, got a larger one; restore it"),
    ],
)
def test_text_that_is_no_manifest(tmp_path: Path, data: bytes, line: str) -> None:
    (tmp_path / MANIFEST).write_bytes(data)
    assert refusal(tmp_path) == line


@pytest.mark.parametrize("make", [lambda folder: None, lambda folder: (folder / MANIFEST).mkdir()])
def test_a_folder_without_a_manifest(tmp_path: Path, make: Any) -> None:
    make(tmp_path)
    with pytest.raises(DataError, match=r"^golden\.path: a folder with a MANIFEST\.json, got .*; correct the path$"):
        read_manifest(tmp_path)
