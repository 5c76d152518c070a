"""The three files of a report: hostile text, model id beside KV dtype, JUnit outcomes, equal bytes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pandas as pd
import pytest
from markdown_it import MarkdownIt

from kvquant_eval.core.text import LINE_CHARS
from kvquant_eval.core.treatment import KVTreatment, Realisation
from kvquant_eval.io import tables

MakeCase = Callable[..., Any]
MODEL = "acme/<b>tiny</b>_model"
IDENTITY = f"{MODEL}@r1 KV fp8_e4m3 (effective fp8_e4m3, native)"
HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(2)>\n```\n# owned\n````` [a](javascript:alert(3))\n"
    "\x1b[31mred\x1b[0m \u202egnp.exe \x00 \ud800 \uffff \u2028 ]]> &amp; {{ 7*7 }}\r\n</pre></textarea>\n"
    + "A"
    * 1_000_000
)
HIDDEN = "\x1b\u202e\x00\r\ud800\uffff\u2028"


class Page(HTMLParser):
    """Tags, addresses and text of a page as a browser would see them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.ids: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        self.ids += [value or "" for name, value in attrs if name == "id"]

    def handle_data(self, data: str) -> None:
        self.text += data


def rendered(page: str) -> Page:
    """Markdown as a reader that allows raw HTML would show it."""
    return Page(MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(page))


def parse(xml: str) -> ET.Element:
    return ET.fromstring(xml)  # noqa: S314


def test_hostile_text_is_harmless_in_markdown(case: MakeCase, tmp_path: Path) -> None:
    page = case(9.0, model=MODEL, reply=HOSTILE).write(tmp_path)["report.md"]
    assert not set(HIDDEN) & set(page)
    seen = rendered(page)
    assert seen.tags <= {
        "h1",
        "h2",
        "h3",
        "p",
        "ul",
        "li",
        "strong",
        "pre",
        "code",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
    }
    assert not [name for name, _ in seen.attributes if name in ("href", "src") or name.startswith("on")]
    assert "<script>alert(1)</script>" in seen.text
    assert "\\x1b[31mred" in page
    assert "\\u202egnp.exe" in page
    assert "\\x00" in page
    assert f"[… {len(HOSTILE) - 1400:,} characters left out …]" in page
    assert max(map(len, page.split("\n"))) < 4 * LINE_CHARS


def test_hostile_text_is_harmless_in_html(case: MakeCase, tmp_path: Path) -> None:
    page = case(9.0, model=MODEL, reply=HOSTILE).write(tmp_path)["report.html"]
    assert not set(HIDDEN) & set(page)
    seen = Page(page)
    assert not seen.tags & {"script", "img", "b>tiny", "iframe", "object", "link", "textarea", "foreignobject"}
    assert not [name for name, _ in seen.attributes if name.startswith("on")]
    assert "<script>alert(1)</script>" in seen.text
    assert "{{ 7*7 }}" in seen.text
    assert "\\u202egnp.exe" in seen.text
    assert len(page) < 1_000_000


def test_page_loads_nothing_and_repeats_no_id(case: MakeCase, tmp_path: Path) -> None:
    seen = Page(case(9.0, model=MODEL).write(tmp_path)["report.html"])
    addresses = [value for name, value in seen.attributes if name in ("src", "href", "xlink:href", "srcset", "action")]
    assert addresses
    assert all(address.startswith("#") for address in addresses)
    assert len(seen.ids) == len(set(seen.ids))
    assert "svg" in seen.tags


def test_hostile_text_is_harmless_in_junit(case: MakeCase, tmp_path: Path) -> None:
    xml = case(run_candidate=False, error=HOSTILE).write(tmp_path)["junit.xml"]
    assert not set(HIDDEN) & set(xml)
    assert len(xml) < 50_000
    messages = [found.attrib["message"] for found in parse(xml).iter("error")]
    assert all("<script>alert(1)</script>" in message and "\\x1b[31mred" in message for message in messages)


@pytest.mark.parametrize("reference", [False, True])
def test_model_id_never_stands_without_its_kv_dtype(case: MakeCase, tmp_path: Path, reference: bool) -> None:
    ref = KVTreatment(name="fp8_ref", dtype="fp8_e4m3", realisation=Realisation.REFERENCE)
    files = case(9.0, model=MODEL, candidate=ref if reference else None).write(tmp_path)
    kv = "(effective fp8_e4m3 in bfloat16, reference)" if reference else "(effective fp8_e4m3, native)"
    control = r"bfloat16 \(effective bfloat16, native\)|placebo \(effective placebo in bfloat16, reference\)"
    identity = re.compile(rf"{re.escape(MODEL)}(?:@r1)? KV (?:fp8_e4m3 {re.escape(kv)}|{control})")
    page = Page(files["report.html"])
    plain = {
        "report.md": files["report.md"].replace("&lt;", "<").replace("&gt;", ">").replace("\\_", "_"),
        "report.html": page.text,
        "labels": "\n".join(value for _, value in page.attributes),
        "junit.xml": "\n".join(value for part in parse(files["junit.xml"]).iter() for value in part.attrib.values()),
    }
    for name, text in plain.items():
        assert text.count(MODEL) == len(identity.findall(text)) > 0, name


def test_every_plot_and_its_caption_carry_model_and_dtype(case: MakeCase, tmp_path: Path) -> None:
    page = case(9.0, model=MODEL).write(tmp_path)["report.html"]
    labels = [value for name, value in Page(page).attributes if name == "aria-label"]
    assert len(labels) == 9  # four figures of two classes, and KL by position
    assert all(IDENTITY in label for label in labels)
    assert all("&lt;b&gt;tiny" in caption for caption in re.findall(r"<figcaption>.*?</figcaption>", page, re.DOTALL))


def test_an_arm_that_did_not_run_still_renders(case: MakeCase, tmp_path: Path) -> None:
    files = case(run_candidate=False, error="the engine died\nof thirst").write(tmp_path)
    for name in ("report.md", "report.html"):
        assert "not read back" in files[name]
        assert "the engine died" in files[name]
        assert "no turn could be paired" in files[name]


@pytest.mark.parametrize("decision", [{"drop": 0.0001}, {"drop": 9.0}, {"turns": 5}, {"run_candidate": False}])
def test_equal_input_gives_equal_bytes(case: MakeCase, tmp_path: Path, decision: dict[str, Any]) -> None:
    assert case(**decision).write(tmp_path / "a") == case(**decision).write(tmp_path / "b")


def test_signoff_comes_first_in_both_pages(case: MakeCase, tmp_path: Path) -> None:
    files = case(9.0, model=MODEL).write(tmp_path)
    head = files["report.md"].split("\n\n")[:3]
    assert head[0] == "# KV cache sign-off: HOLD"
    assert head[2].startswith(
        "- **HOLD** acme/&lt;b&gt;tiny&lt;/b&gt;\\_model@r1 KV fp8_e4m3 (effective fp8_e4m3, native), "
        "candidate fp8_e4m3: faq turns lose"
    )
    text = Page(files["report.html"]).text
    assert text.index(IDENTITY) < text.index("Controls")


def test_flagged_turns_stand_side_by_side_and_the_rest_is_counted(case: MakeCase, tmp_path: Path) -> None:
    page = case(9.0, model=MODEL).write(tmp_path)["report.md"]
    assert (
        "80 turns drop over the threshold in 80 scores; the first 20 are shown side by side, the first 50 are listed, "
        "30 are left out (deltas.parquet has them all)"
    ) in page
    assert page.count("candidate reply:") == 20
    assert "first differing token: position" not in page  # both replies have the ids 7, 8 and their length, 4
    assert "all 3 tokens are the same" in page
    other = case(9.0, model=MODEL, reply="seventeen").write(tmp_path)["report.md"]
    assert "first differing token: position 2 (from 0; 3 against 3 tokens)" in other
    assert 'tool: [{"type": "text", "text": "2 + 2?"}]' in other
    assert '{"name": "add", "arguments": "{}"}' in other


def test_numbers_of_the_document_are_in_the_table(case: MakeCase, tmp_path: Path) -> None:
    page = case(9.0, model=MODEL).write(tmp_path)["report.md"]
    row = next(line for line in page.split("\n") if line.startswith("| math_chain | gl_reply"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[2:7] == ["gate, 2", "40 of 40 in 40", "81.00", "72.00", "+9.00"]
    assert cells[9:12] == ["40/0", "+0.00 (0/0)", "+0.00 (0/0)"]
    row = next(line for line in page.split("\n") if line.startswith("| math_chain | FAIL | gl_reply"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[3:7] == ["40", "81.0", "72.0", "+9.00"]
    assert cells[8:11] == ["2", "88.9%", "40/0"]


def test_degenerate_replies_are_counted_by_sign_and_class(case: MakeCase, tmp_path: Path) -> None:
    made = case(0.0, reply=" ")
    assert made.document["reasons"][0].startswith("fp8_e4m3: degenerate replies: 80 of 80 against the baseline's 0")
    files = made.write(tmp_path)
    table = files["report.md"].split("## Degenerate replies")[1].split("##")[0]
    rows = {line.split(" | ")[0]: line for line in table.splitlines()}
    assert "| acme/tiny@r1 KV fp8_e4m3 (effective fp8_e4m3, native) | 80 | 80/0 | +80 |" in rows["| fp8_e4m3"]
    assert "faq 40/0 of 40, math_chain 40/0 of 40" in rows["| fp8_e4m3"]
    assert " | 80 | 0/0 | +0 | 1 |" in rows["| placebo"]
    assert "Degenerate replies" in Page(files["report.html"]).text


def test_threshold_is_drawn_and_named_where_it_is_known(case: MakeCase, tmp_path: Path) -> None:
    assert "threshold 2" in case(9.0, model=MODEL).write(tmp_path)["report.html"]
    unknown = case(9.0, model=MODEL, flag_over=None).write(tmp_path)["report.html"]
    assert "threshold 2" not in unknown
    assert "dashed" not in unknown.split("</style>")[1]


def test_a_baseline_that_is_not_bf16_is_not_called_bf16(case: MakeCase, tmp_path: Path) -> None:
    made = case(9.0, model=MODEL)
    made.document["model"]["kv"]["baseline"]["effective"] = "fp8_e4m3"
    page = made.write(tmp_path)["report.md"]
    assert "BF16" not in page
    assert "baseline (fp8_e4m3) reply:" in page


def test_many_scores_and_turns_without_a_pair(case: MakeCase, tmp_path: Path) -> None:
    made = case(9.0, model=MODEL, classes=("faq",))
    deltas = tuple(
        replace(d, drop=None, candidate=None, missing="candidate: infra_error")
        for d in made.judgement.deltas["fp8_e4m3"]
    )
    gone = replace(made.judgement, deltas={**made.judgement.deltas, "fp8_e4m3": deltas})
    page = replace(made, judgement=gone).write(tmp_path)["report.html"]
    assert "no turn could be paired" in page


def test_a_long_model_id_pushes_no_dtype_out_of_sight(case: MakeCase, tmp_path: Path) -> None:
    files = case(9.0, model="m" * 100_000).write(tmp_path)
    for name, text in files.items():
        assert max(text.count("m" * 201), text.count("m" * 200 + "@")) == 0, name
        assert text.count("m" * 200) <= len(
            re.findall(r"KV [^()]* \(effective [^()]*, (?:native|reference)\)", text)
        ), name


def test_only_a_verdict_looks_like_one(case: MakeCase, tmp_path: Path) -> None:
    """A class may be called PROMOTE; that makes nothing green."""
    page = case(9.0, model=MODEL, classes=("PROMOTE", "PASS"), reply="PROMOTE").write(tmp_path)["report.html"]
    assert re.findall(r'<td class="(.)"[^>]*><b class="word (\w+)">', page) == [("v", "fail")] * 2
    assert '<td class="l">PROMOTE</td>' in page


def test_tables_are_written_whatever_a_scorer_says(case: MakeCase, tmp_path: Path) -> None:
    """A scorer that parses JSON may come by a lone surrogate, which UTF-8 cannot carry."""
    made = case(9.0, model=MODEL, reply="\ud800\x00 数")
    tables.write(tmp_path, made.judgement, made.document["model"], made.prepared, made.diagnosis)
    assert "said \\ud800\x00 数" in set(pd.read_parquet(tmp_path / "turns.parquet")["explanation"])
