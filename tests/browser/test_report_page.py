"""The sign-off report in a real Chromium: on a desk, on a phone, in the dark, on paper, and without scripts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from kvquant_eval.io import report
from kvquant_eval.pipeline import GateRun, gate
from tests.fakes.browser import Chromium
from tests.fakes.gate import reference, settings, treatments, write_golden
from tests.fakes.pdf import page_texts

pytestmark = pytest.mark.browser

PAPER = {"A4": (703, 1017), "Letter": (725, 951)}
"""Printable width and height of a page in CSS pixels, with the margins that the report asks for."""
SIGNED = {"by": "Ada", "at": "2026-02-03", "expires": "2026-08-03", "candidate": "drops_math_chain"}
CONTRAST = """selector => {
  const light = colour => {
    const [r, g, b] = colour.match(/[\\d.]+/g).map(Number).map(c => c / 255)
      .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = element => {
    for (; element; element = element.parentElement) {
      const colour = getComputedStyle(element).backgroundColor;
      if (!colour.startsWith("rgba(0, 0, 0, 0")) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  return [...document.querySelectorAll(selector)].filter(e => e.getClientRects().length).map(element => {
    const [dark, bright] = [light(getComputedStyle(element).color), light(behind(element))].sort((a, b) => a - b);
    return (bright + 0.05) / (dark + 0.05);
  });
}"""
"""Contrast ratios (1..21) of the text of elements, after WCAG 2.2."""
OUTSIDE = """width => [...document.querySelectorAll("body *")]
  .filter(element => element.getBoundingClientRect().right > width + 1)
  .map(element => element.outerHTML.slice(0, 80))"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> GateRun:
    """A gate of four candidates on the fake engine: promoted, held (and signed all the same), a reference, invalid."""
    folder = tmp_path_factory.mktemp("gate")
    write_golden(folder / "golden")
    candidates = {**treatments("good", "drops_math_chain", "prefix_caching_off"), **reference("ref")}
    done = gate(settings(folder, candidates), command=("kvquant-eval", "gate", "kv=[good]"))
    report.write(
        done.folder.path,
        done.document,
        done.judgement,
        done.golden,
        done.prepared,
        signatures=({**SIGNED, "override": "a demo"},),
    )
    return done


@pytest.fixture(scope="module")
def page_file(run: GateRun) -> Path:
    return run.folder.path / "report.html"


def wide(page: Page) -> int:
    return int(page.evaluate("document.documentElement.scrollWidth"))


def above_the_fold(page: Page, height: int = 900) -> str:
    """The text of what is whole on the first screen."""
    script = """height => [...document.querySelectorAll(".card p, .card li, .card div")]
      .filter(e => e.getBoundingClientRect().bottom <= height).map(e => e.textContent).join("\\n")"""
    return " ".join(str(page.evaluate(script, height)).split())


def test_the_first_screen_has_what_a_person_signs(chromium: Chromium, page_file: Path, run: GateRun) -> None:
    page = chromium.open(page_file)
    seen = above_the_fold(page)
    for candidate in run.document["candidates"]:
        kv = candidate["kv"]
        called = f"org/fake-model@r1 KV {kv['requested']} (effective {kv['effective']}, {kv['realisation']})"
        assert f"{candidate['decision']} {candidate['name']} {called}" in seen
    assert {candidate["decision"] for candidate in run.document["candidates"]} == {"PROMOTE", "HOLD", "INVALID"}
    assert seen.count("void as soon as one of these changes: model revision r1") == 4
    assert seen.count("decided: 2") == 4
    assert "OVERRIDE: a demo" in seen
    assert "signed by Ada on 2026-02-03 (expires 2026-08-03)" in seen


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 768, 1280])
def test_the_page_never_scrolls_sideways(chromium: Chromium, page_file: Path, width: int, scheme: str) -> None:
    page = chromium.open(page_file, width=width, color_scheme=scheme)
    assert wide(page) == width
    boxes = page.evaluate("[...document.querySelectorAll('.stacks')].map(e => [e.scrollWidth, e.clientWidth])")
    assert boxes
    if width == 390:
        assert all(inside <= box for inside, box in boxes), "class tables need no scrolling on a phone"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out_from_what_is_behind_them(chromium: Chromium, page_file: Path, scheme: str) -> None:
    page = chromium.open(page_file, color_scheme=scheme)
    for selector in (
        ".word",
        ".card span",
        ".card dt",
        ".card .override",
        "mark",
        "dt",
        "th",
        "td",
        "p",
        "li",
        "a",
        "pre",
    ):
        ratios = page.evaluate(CONTRAST, selector)
        assert ratios, selector
        assert min(ratios) >= 4.5, selector


def test_dark_is_dark_and_paper_is_white(chromium: Chromium, page_file: Path) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    light, dark = (chromium.open(page_file, color_scheme=scheme).evaluate(colour) for scheme in ("light", "dark"))
    printed = chromium.open(page_file, color_scheme="dark", media="print").evaluate(colour)
    assert light == printed == "rgb(255, 255, 255)"
    assert dark != light


def test_every_word_has_a_shape_beside_it(chromium: Chromium, page_file: Path) -> None:
    page = chromium.open(page_file)
    script = """[...document.querySelectorAll(".word")].map(e =>
      [e.textContent, e.querySelector("use").getAttribute("href"), e.querySelector("svg").getBBox().width > 0])"""
    shapes: dict[str, set[str]] = {}
    for word, shape, drawn in page.evaluate(script):
        assert drawn
        shapes.setdefault(word, set()).add(shape)
    assert all(len(found) == 1 for found in shapes.values())
    assert len({next(iter(shapes[word])) for word in ("PROMOTE", "HOLD", "INVALID")}) == 3


@pytest.mark.parametrize("paper", PAPER)
def test_print_has_the_decision_on_its_first_page(
    chromium: Chromium, page_file: Path, run: GateRun, paper: str
) -> None:
    width, height = PAPER[paper]
    page = chromium.open(page_file, width=width, height=height)
    first, second, *_ = page_texts(page.pdf(format=paper))
    for candidate in run.document["candidates"]:
        assert f"{candidate['decision']}{candidate['name']}org/fake-model@r1KV" in first
    assert first.count("voidassoonasoneofthesechanges") == 4
    assert "OVERRIDE:ademo" in first
    assert "void" not in second
    page.emulate_media(media="print")
    assert wide(page) == width
    assert page.evaluate(OUTSIDE, width) == []
    cut = "[...document.querySelectorAll('.wide, pre')].filter(e => e.scrollWidth > e.clientWidth + 1).length"
    assert page.evaluate(cut) == 0


def test_it_runs_no_script_and_asks_for_nothing(chromium: Chromium, page_file: Path) -> None:
    page = chromium.open(page_file)
    assert page.evaluate("document.scripts.length") == 0
    assert chromium.requests == [page_file.as_uri()]


def test_the_keyboard_reaches_sections_and_tables_and_shows_where_it_is(chromium: Chromium, page_file: Path) -> None:
    page = chromium.open(page_file)
    page.keyboard.press("Tab")
    focus: dict[str, Any] = page.evaluate(
        "(s => ({tag: document.activeElement.tagName, style: s.outlineStyle, width: s.outlineWidth}))"
        "(getComputedStyle(document.activeElement))"
    )
    assert focus == {"tag": "A", "style": "solid", "width": "3px"}
    targets = page.evaluate("[...document.querySelectorAll('nav a')].map(a => document.querySelector(a.hash)?.tagName)")
    assert targets
    assert set(targets) == {"H2"}


def test_the_command_is_kept_and_shown(run: GateRun) -> None:
    assert json.loads((run.folder.path / "decision.json").read_text())["command"] == [
        "kvquant-eval",
        "gate",
        "kv=[good]",
    ]
    assert "kvquant-eval gate 'kv=[good]' resume=never" in (run.folder.path / "report.md").read_text()
