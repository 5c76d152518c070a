"""Reports full of payloads in a real browser: no script runs, nothing is asked of the network, the layout stands.

Once as they are, and once without their Content-Security-Policy: escaping alone must hold.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from kvquant_eval.io import report
from kvquant_eval.io.report import search
from kvquant_eval.io.runfolder import write_json
from tests.fakes.browser import Chromium
from tests.fakes.search import search_document
from tests.hostile.gate import decided
from tests.hostile.payloads import HTML, KINDS, names

pytestmark = pytest.mark.browser

BROWSERS_OWN = (".google.com", ".googleapis.com", ".gvt1.com")
"""Hosts that Chromium asks by itself, whatever it shows."""
PAGES = ("report.html", "search.html")
CSP = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
SPY = """
window.ran = [];
for (const name of ['alert', 'confirm', 'prompt', 'open', 'fetch'])
    window[name] = (...said) => { window.ran.push([name, ...said.map(String)]); };
"""
SHAPE = """() => ({
    headings: [...document.querySelectorAll('h1, h2, h3, h4, h5')].map(each => each.tagName),
    cells: [...document.querySelectorAll('table')].map(each => each.querySelectorAll('th, td').length),
    tags: [...new Set([...document.querySelectorAll('*')].map(each => each.localName))].sort(),
    plots: document.querySelectorAll('.panel > svg').length,
    depth: Math.max(...[...document.querySelectorAll('body *')].map(each => {
        let depth = 0;
        for (let up = each; up !== document.body; up = up.parentNode) depth++;
        return depth;
    })),
})"""
ATTRIBUTES = """() => [...document.querySelectorAll('*')].flatMap(each =>
    [...each.attributes].map(attribute => [attribute.name, attribute.value]))"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The run folders of a hostile gate and of its harmless twin, both with a search whose gate they are."""
    found = {}
    for kind in KINDS:
        run = decided(tmp_path_factory.mktemp(kind), kind)
        folder, searched = run.folder.path, search_document(names(kind))
        write_json(folder / "search.json", searched)
        report.write(folder, run.document, run.judgement, run.golden, run.prepared)
        search.write(folder, searched)
        found[kind] = folder
    return found


@pytest.fixture(params=[True, False], ids=["policy", "no-policy"])
def pages(
    request: pytest.FixtureRequest, folders: dict[str, Path], tmp_path: Path
) -> Iterator[dict[tuple[str, str], Path]]:
    """(Kind, page) to a file of its own, with or without the page's Content-Security-Policy."""
    found = {}
    for kind, folder in folders.items():
        for name in PAGES:
            text = (folder / name).read_text(encoding="utf-8")
            assert len(CSP.findall(text)) == 1
            path = tmp_path / f"{kind}-{name}"
            path.write_text(text if request.param else CSP.sub("", text), encoding="utf-8")
            found[kind, name] = path
    return found


def test_a_script_would_run_where_nothing_holds_it(chromium: Chromium, tmp_path: Path) -> None:
    """What the tests below look for is there to be seen: the payloads as they are do run and ask."""
    chromium.context.add_init_script(SPY)
    ran = []
    for number, text in enumerate(HTML):
        path = tmp_path / f"{number}.html"
        path.write_text(f"<!doctype html><body><p>{text}", encoding="utf-8")
        page = chromium.open(path)
        page.wait_for_timeout(100)
        ran += page.evaluate("window.ran")
        page.close()
    assert {tuple(said) for said in ran} >= {("alert", number) for number in ("1", "2", "3", "9")}
    assert {f"https://evil.example/{name}" for name in "abcde"} <= {*chromium.requests}


@pytest.mark.parametrize("name", PAGES)
def test_no_script_runs_and_nothing_is_asked(chromium: Chromium, pages: dict[tuple[str, str], Path], name: str) -> None:
    said: list[str] = []
    chromium.context.add_init_script(SPY)
    chromium.context.on("console", lambda message: said.append(message.text))
    chromium.context.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
    page = chromium.open(pages["hostile", name])
    page.mouse.move(400, 300)
    page.mouse.wheel(0, 20_000)
    for _ in range(20):
        page.keyboard.press("Tab")  # what would gain the focus runs nothing either
    page.wait_for_timeout(300)
    assert page.evaluate("window.ran") == []
    assert said == []
    assert page.url == pages["hostile", name].as_uri()
    assert page.title().startswith(("INVALID: ", "PROMOTE: mixed precision for "))
    assert chromium.requests == [pages["hostile", name].as_uri()]
    assert len(chromium.context.pages) <= 2  # the browser's own empty one beside it
    asked = {urlsplit(address).hostname or "" for address in chromium.logged() if address.startswith(("http", "ws"))}
    assert {host for host in asked if not host.endswith(BROWSERS_OWN)} == set()


@pytest.mark.parametrize("name", PAGES)
def test_it_is_built_as_its_harmless_twin(chromium: Chromium, pages: dict[tuple[str, str], Path], name: str) -> None:
    hostile, harmless = (chromium.open(pages[kind, name]) for kind in KINDS)
    assert hostile.evaluate(SHAPE) == harmless.evaluate(SHAPE)
    assert hostile.evaluate(SHAPE)["plots"] > 0
    attributes = hostile.evaluate(ATTRIBUTES)
    assert not [name for name, _ in attributes if name.startswith("on")]
    assert all(value.startswith("#") for name, value in attributes if name in ("href", "src", "action", "data"))
    assert "<script>alert(1)</script>" in hostile.inner_text("body")


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_no_wider_than_its_window(
    chromium: Chromium, folders: dict[str, Path], name: str, width: int
) -> None:
    page = chromium.open(folders["hostile"] / name, width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    beyond = page.evaluate(
        """width => [...document.querySelectorAll('h1, h2, h3, p, li, dl, pre, .wide, figure, svg')]
            .filter(each => !each.parentElement.closest('.wide'))  // what is in there scrolls
            .filter(each => each.getBoundingClientRect().right > width + 1)
            .map(each => each.textContent.slice(0, 80))""",
        width,
    )
    assert beyond == []
