"""``search.json`` is read with no trust in it: a sound one is shown in a gate's report, all else is one line."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvquant_eval.core.codec import DataError
from kvquant_eval.io.report import html, markdown
from kvquant_eval.io.report.blocks import Items, Report
from kvquant_eval.io.report.search import sections
from kvquant_eval.io.searches import LARGEST_FILE, read_search
from tests.fakes.search import search_document

MODEL = {"weights_sha256": "11" * 32}
HOSTILE: tuple[Any, ...] = (None, [], {}, "<script>", -1, 10**400, 1e308, "9" * 5000)


def lay(folder: Path, document: object) -> Path:
    (folder / "search.json").write_text(json.dumps(document))
    return folder


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value in a document; of a list the first stands for all."""
    inner = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, part in inner:
        yield (*path, key)
        yield from places(part, (*path, key))


def test_a_sound_search_is_shown(tmp_path: Path) -> None:
    found = sections(lay(tmp_path, search_document()), MODEL)
    titles = [section.title.split(":")[0] for section in found]
    assert titles == ["Mixed precision", "Sensitivity", "Trade-off", "How it was found"]


def test_no_search_is_no_section(tmp_path: Path) -> None:
    assert sections(tmp_path, MODEL) == ()


def test_a_search_of_other_weights_is_left_out(tmp_path: Path) -> None:
    (section,) = sections(lay(tmp_path, search_document(weights="22" * 32)), MODEL)
    assert section.blocks == (Items(("left out: search.json: a search of the same weights, got others",)),)


def test_whatever_stands_in_a_field_there_is_a_line_or_a_page(tmp_path: Path) -> None:
    """No traceback, and nothing that is no text; every place of the document with every hostile value."""
    sound, shown = search_document(), 0
    for path in places(sound):
        for value in HOSTILE:
            document = copy.deepcopy(sound)
            place = document
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = value
            found = sections(lay(tmp_path, document), MODEL)
            if len(found) > 1:
                shown += 1
                report = Report("t", "h", found)
                assert "<script>" not in html.render(report) + markdown.render(report), path
    assert shown > 20


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        (b"", "strict JSON"),
        (b"[]", "a JSON object"),
        (b"{}", "schema version 1, got None"),
        (b'{"schema_version": "\\u001b[2J"}', r"schema version 1, got \\x1b[2J"),
        (b'{"schema_version": 1, "minutes": NaN}', "strict JSON"),
        (b" " * (LARGEST_FILE + 1), "a JSON object of at most 4 MiB"),
        (b"\xff", "strict JSON"),
    ],
)
def test_anything_else_is_one_line(tmp_path: Path, data: bytes, rule: str) -> None:
    (tmp_path / "search.json").write_bytes(data)
    with pytest.raises(DataError) as caught:
        read_search(tmp_path / "search.json")
    assert rule.replace("\\\\", "\\") in str(caught.value)
    assert str(caught.value).isprintable()


def test_a_folder_in_its_place_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "search.json").mkdir()
    with pytest.raises(DataError, match="Is a directory; restore it, or remove it"):
        read_search(tmp_path / "search.json")
