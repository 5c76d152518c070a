"""JSON files of a source: one, or all of a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvquant_eval.core.chat import Unusable
from kvquant_eval.core.codec import DataError
from kvquant_eval.core.conversation import LeftOut
from kvquant_eval.io.golden.importers import _files
from kvquant_eval.io.golden.importers._files import expect, json_files


def test_one_file_or_all_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name, text in (("b.json", '{"b": 1}'), ("deep/a.json", "[2]"), ("c.txt", "3"), ("d.json", "\ufeff4")):
        (tmp_path / name).write_text(text)
    names = [str(tmp_path / name) for name in ("b.json", "d.json", "deep/a.json")]
    assert list(json_files(tmp_path)) == list(zip(names, ({"b": 1}, 4, [2]), strict=True))
    assert list(json_files(tmp_path / "c.txt")) == [(str(tmp_path / "c.txt"), 3)]
    assert list(json_files(tmp_path, "*.txt")) == [(str(tmp_path / "c.txt"), 3)]


def test_a_folder_without_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        list(json_files(tmp_path))
    assert str(caught.value) == f"{tmp_path}: a folder with *.json files, got none; correct the path"


def test_a_broken_file_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_files, "LONGEST_RECORD", 1 << 20)
    (tmp_path / "a.json").write_text("{")
    (tmp_path / "b.json").write_bytes(b'"' + b"x" * (1 << 20) + b'"')
    (tmp_path / "c.json").write_text("3")
    broken, longer, good = json_files(tmp_path)
    assert isinstance(broken, LeftOut)
    assert broken.reason.startswith("JSON that cannot be read, got Expecting property name")
    assert longer == LeftOut(str(tmp_path / "b.json"), "a file of more than 1 MiB")
    assert good == (str(tmp_path / "c.json"), 3)


def test_what_is_expected_is_given_back(tmp_path: Path) -> None:
    assert expect([1], list, "a list of steps") == [1]
    with pytest.raises(Unusable, match=r"^a list of steps, got '3'$"):
        expect(3, list, "a list of steps")
