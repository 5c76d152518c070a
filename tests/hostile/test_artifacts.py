"""A whole gate whose every text is hostile: what it writes and prints has the shape of a harmless one."""

from __future__ import annotations

import io
import json
import re
import unicodedata
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NoReturn
from xml.etree import ElementTree as ET

import pandas as pd
import pytest
import yaml
from markdown_it import MarkdownIt
from rich.console import Console

from kvquant_eval.cli.table import show
from kvquant_eval.core.text import TEXT_CHARS, safe
from kvquant_eval.io import golden as golden_io
from kvquant_eval.io.report.marks import excerpt
from kvquant_eval.pipeline import GateRun, gate
from tests.hostile.engine import CANDIDATES, TURNS
from tests.hostile.gate import read, settings, turn_id, write_golden
from tests.hostile.payloads import KINDS, MILLION, SHORT, name, text

SHOWN = (*range(20), *range(TURNS - 20, TURNS))
"""Numbers of the turns that the report shows: the worst of ``first`` and of ``last``."""
URL_ATTRIBUTES = {"href", "xlink:href", "src", "srcset", "action", "data", "poster", "background", "formaction"}
MARKS = (("mark",), "/mark")
DIFFERS = "differs in: "
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class Page(HTMLParser):
    """The shape of a page (tags, their attributes' names, comments, declarations), its attributes and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.shape: list[object] = []
        self.attributes: list[tuple[str, str]] = []
        self.pieces: list[str] = []
        self.feed(page)
        self.close()

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.shape.append((tag, *(name for name, _ in attrs)))
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        self.shape.append(f"/{tag}")

    def handle_comment(self, data: str) -> None:
        self.shape.append("comment")

    def handle_decl(self, decl: str) -> None:
        self.shape.append(decl)

    def handle_pi(self, data: str) -> None:
        self.shape.append("pi")

    def unknown_decl(self, data: str) -> None:
        self.shape.append("unknown")

    def handle_data(self, data: str) -> None:
        self.pieces.append(data)


def rendered(page: str) -> Page:
    """Markdown as a reader that lets raw HTML through shows it."""
    return Page(MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(page))


def paths(folder: Path) -> set[Path]:
    return {path.relative_to(folder) for path in folder.rglob("*")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile")


@pytest.fixture(scope="module", autouse=True)
def _elsewhere(folder: Path) -> Iterator[None]:
    """What is written beside the folder that was meant would lie here."""
    with pytest.MonkeyPatch.context() as patch:
        (folder / "here").mkdir()
        patch.chdir(folder / "here")
        patch.setattr(golden_io, "load", read)
        patch.setattr("kvquant_eval.core.policy.check_name", lambda *_: None)
        yield


@pytest.fixture(scope="module")
def runs(folder: Path, _elsewhere: None) -> dict[str, GateRun]:
    """The hostile gate and its harmless twin."""
    return {kind: gate(settings(write_golden(folder / kind / "golden", kind).parent, kind)) for kind in KINDS}


@pytest.fixture(scope="module")
def files(runs: dict[str, GateRun]) -> dict[tuple[str, str], str]:
    """(Kind, file name) to what the file says."""
    wanted = ("report.html", "report.md", "summary.md", "junit.xml", "decision.json", "config.yaml")
    return {(k, f): (run.folder.path / f).read_text(encoding="utf-8") for k, run in runs.items() for f in wanted}


def test_both_decide_alike(runs: dict[str, GateRun]) -> None:
    """What keeps the comparisons below honest: the twins differ in nothing but text."""
    hostile, harmless = (runs[kind].document for kind in KINDS)
    for key in ("decision", "exit_code", "attempts"):
        assert hostile[key] == harmless[key]
    for one, other in zip(hostile["candidates"], harmless["candidates"], strict=True):
        assert one["decision"] == other["decision"]
        assert [(f["drop"], f["turn_index"]) for f in one["flagged_turns"]] == [
            (f["drop"], f["turn_index"]) for f in other["flagged_turns"]
        ]
    assert [c["decision"] for c in hostile["candidates"]] == ["HOLD", "HOLD", "INVALID", "INVALID", "INVALID"]


def test_the_page_has_the_shape_of_a_harmless_one(files: dict[tuple[str, str], str]) -> None:
    """But for what is marked in replies: how much of them differs is the text's own."""
    hostile, harmless = (Page(files[kind, "report.html"]) for kind in KINDS)
    shapes = [[tag for tag in page.shape if tag not in MARKS] for page in (hostile, harmless)]
    assert shapes[0] == shapes[1]
    assert hostile.shape.count(("mark",)) == hostile.shape.count("/mark") > 0
    for attribute, value in hostile.attributes:
        assert not attribute.startswith("on")
        assert attribute not in URL_ATTRIBUTES or value.startswith("#")
        assert attribute != "style" or "url(" not in value
    assert not {"script", "img", "iframe", "link", "base", "object", "form"} & {str(tag[0]) for tag in hostile.shape}


@pytest.mark.parametrize("number", range(len(KINDS["hostile"])))
def test_the_page_shows_every_reply_as_text(files: dict[tuple[str, str], str], number: int, page_text: str) -> None:
    assert safe(excerpt(text("hostile", number))) in page_text


@pytest.fixture(scope="module")
def page_text(files: dict[tuple[str, str], str]) -> str:
    return Page(files["hostile", "report.html"]).text


def test_nothing_hidden_is_in_any_page(files: dict[tuple[str, str], str]) -> None:
    for page in ("report.html", "report.md", "summary.md", "junit.xml"):
        found = {c for c in files["hostile", page] if unicodedata.category(c)[0] == "C" or c in "\u2028\u2029\ufe0f"}
        assert found == {"\n"}, page


def test_markdown_has_the_shape_of_a_harmless_one(files: dict[tuple[str, str], str]) -> None:
    """But for the lines that name differing words: how many differ is the text's own."""
    pages = {kind: files[kind, "report.md"].split("\n") for kind in KINDS}
    hostile, harmless = (
        rendered("\n".join(line for line in page if not line.startswith(DIFFERS))) for page in pages.values()
    )
    for line in pages["hostile"]:
        if line.startswith(DIFFERS):
            assert {str(tag[0]) for tag in rendered(line).shape if isinstance(tag, tuple)} == {"p", "code"}
    assert hostile.shape == harmless.shape
    assert not {name for name, _ in hostile.attributes} & URL_ATTRIBUTES
    for number in SHOWN:
        assert safe(excerpt(text("hostile", number))) in hostile.text


def test_the_summary_has_the_shape_of_a_harmless_one(files: dict[tuple[str, str], str]) -> None:
    hostile, harmless = (rendered(files[kind, "summary.md"]) for kind in KINDS)
    assert hostile.shape == harmless.shape
    assert not {name for name, _ in hostile.attributes} & URL_ATTRIBUTES


def test_junit_has_the_shape_of_a_harmless_one(files: dict[tuple[str, str], str]) -> None:
    hostile, harmless = (ET.fromstring(files[kind, "junit.xml"]) for kind in KINDS)  # noqa: S314
    assert [(e.tag, list(e.attrib)) for e in hostile.iter()] == [(e.tag, list(e.attrib)) for e in harmless.iter()]
    said = [value for element in hostile.iter() for value in element.attrib.values()]
    assert any("<script>alert(1)</script>" in value for value in said)


def test_plots_are_xml_and_show_the_names(files: dict[tuple[str, str], str]) -> None:
    plots = re.findall(r'<div class="panel">.*?</div>', files["hostile", "report.html"], re.DOTALL)
    assert len(plots) == files["harmless", "report.html"].count('<div class="panel">') > 0
    for plot in plots:
        root = ET.fromstring(plot)  # noqa: S314
        said = " ".join(root.itertext())
        assert "<script>alert(1)</script>" in said + root[1].attrib["aria-label"]
        assert "{http://www.w3.org/2000/svg}a" not in {element.tag for element in root.iter()}


def test_a_report_of_long_texts_stays_small(files: dict[tuple[str, str], str]) -> None:
    """Ten times the harmless one at most, though millions of characters went in."""
    for page in ("report.html", "report.md", "summary.md", "junit.xml"):
        assert len(files["hostile", page]) < 10 * len(files["harmless", page]) < 10 * MILLION


def test_the_decision_is_strict_json_and_keeps_the_text(files: dict[tuple[str, str], str]) -> None:
    def refuse(constant: str) -> NoReturn:
        raise AssertionError(constant)

    document = json.loads(files["hostile", "decision.json"], parse_constant=refuse)
    flagged = {flag["turn_id"] for candidate in document["candidates"] for flag in candidate["flagged_turns"]}
    assert flagged == {turn_id("hostile", number) for number in range(TURNS)}
    assert document["model"]["id"] == settings(Path(), "hostile").model.id


def test_tables_keep_the_text(runs: dict[str, GateRun]) -> None:
    turns = pd.read_parquet(runs["hostile"].folder.path / "turns.parquet")
    assert set(turns["turn_id"]) == {turn_id("hostile", number) for number in range(TURNS)}
    errors = turns[turns["outcome"] == "infra_error"]
    numbers = {turn_id("hostile", number): number for number in range(TURNS)}
    assert len(errors) > 0
    assert all(text("hostile", numbers[row.turn_id]) == row.explanation for row in errors.itertuples())
    assert set(turns["model"]) == {settings(Path(), "hostile").model.id}


def test_the_configuration_comes_back(runs: dict[str, GateRun], files: dict[tuple[str, str], str]) -> None:
    loaded = yaml.safe_load(files["hostile", "config.yaml"])
    written: dict[str, Any] = dict(settings(Path(), "hostile").config)
    assert {key: loaded[key] for key in written} == written


def test_nothing_is_written_elsewhere_and_names_are_plain(folder: Path, runs: dict[str, GateRun]) -> None:
    assert {path.name for path in folder.iterdir()} == {"hostile", "harmless", "here"}
    assert list((folder / "here").iterdir()) == []
    assert {path.name for path in (folder / "hostile").iterdir()} == {"cache", "golden", "runs"}
    assert list((folder / "hostile" / "cache").iterdir()) == []
    (run,) = (folder / "hostile" / "runs").iterdir()
    assert run == runs["hostile"].folder.path
    assert all(re.fullmatch(r"[\w.+-]+", part) for path in paths(folder) for part in path.parts)
    assert paths(run) == paths(runs["harmless"].folder.path)
    assert {path.name for path in (run / "arms").iterdir()} == {"baseline", "repeat", "placebo", *CANDIDATES}


def printed(run: GateRun) -> str:
    """What a terminal of 120 columns gets."""
    console = Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=120)
    show(run.document, run.folder.path, console)
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def test_the_terminal_gets_colours_and_nothing_else(runs: dict[str, GateRun]) -> None:
    said = printed(runs["hostile"])
    assert COLOURS.search(said)
    plain = COLOURS.sub("", said)
    assert {c for c in plain if unicodedata.category(c)[0] == "C" or c in "\u2028\u2029"} == {"\n"}
    assert "\x1b[31mred" not in said
    assert "\\x1b[31mred" in plain.replace("\n", "")
    assert len(said) < 20 * TEXT_CHARS
    assert [line for line in plain.splitlines() if re.match(r"\S+ \(exit status", line)] == ["INVALID (exit status 5)"]


def test_the_plan_comes_back_as_it_was_rendered(runs: dict[str, GateRun]) -> None:
    """Scores are computed from the journals on disk anyway; the plan is read again by ``regate`` only."""
    assert runs["hostile"].folder.plan() == runs["hostile"].prepared


def test_every_short_payload_is_somebodys_id() -> None:
    ids = " ".join(turn_id("hostile", number) for number in range(1, TURNS))
    assert all(name("hostile", number) in ids for number in range(len(SHORT)))
