"""The section on the range of K and V: words first, then a plot with the range in it, then numbers."""

from __future__ import annotations

import copy
from typing import Any

from kvquant_eval.io.report.blocks import Figure, Items, Table
from kvquant_eval.io.report.ranges import range_sections
from kvquant_eval.io.report.svg import draw

BF16 = {"requested": "bfloat16", "effective": "bfloat16", "realisation": "native"}
NAME = "org/model@r1 KV bfloat16 (effective bfloat16, native)"


def fit(largest: float | None, layer: int | None, head: int | None) -> dict[str, Any]:
    formats = {
        "fp8_e4m3": {"limit": 448.0, "beyond": 0.00125, "sqnr_db": 31.52},
        "int8": {"limit": None, "beyond": None, "sqnr_db": 40.0},
    }
    return {"largest": largest, "layer": layer, "head": head, "values": 10, "formats": formats}


def document(**changes: Any) -> dict[str, Any]:
    found = {
        "arm": "baseline", "formats": ["fp8_e4m3", "int8"], "sentences": ["It clips.", "One stands out."],
        "k": fit(512.0, 1, 2), "v": fit(4.5, 0, 0),
        "layers": [
            {"layer": 0, "k": fit(20.0, 0, 1), "v": fit(4.5, 0, 0)},
            {"layer": 1, "k": fit(512.0, 1, 2), "v": fit(4.0, 1, 1)},
        ],
        **changes,
    }  # fmt: skip
    return {"model": {"id": "org/model", "revision": "r1", "kv": {"baseline": BF16}}, "ranges": found}


def test_words_plot_and_table() -> None:
    (section,) = range_sections(document())
    assert section.title == f"Range of K and V: {NAME}"
    said, figure, table, explained = section.blocks
    assert said == Items(("It clips.", "One stands out."))
    assert isinstance(table, Table)
    assert len(table.columns) == len(table.align) == len(table.rows[0])
    assert table.rows[0] == ("all", "K", "512", "1, 2", "31.5", "0.125%", "40.0")
    assert table.columns[4:] == ("fp8_e4m3: SQNR, dB", "fp8_e4m3: beyond", "int8: SQNR, dB")
    assert [row[:2] for row in table.rows] == [(n, half) for n in ("all", "0", "1") for half in "KV"]
    assert isinstance(explained, Items)
    assert explained.rows[-1] == "Diagnostic, never deciding."
    assert isinstance(figure, Figure)
    assert NAME in figure.caption
    (panel,) = figure.panels
    assert panel.series == (("|K|", (0.0, 1.0), (20.0, 512.0)), ("|V|", (0.0, 1.0), (4.5, 4.0)))
    assert (panel.limits, panel.log) == ((("fp8_e4m3 448", 448.0),), True)


def test_the_plot_has_the_line_of_the_range_and_the_same_bytes_each_time() -> None:
    (section,) = range_sections(document())
    figure = section.blocks[1]
    assert isinstance(figure, Figure)
    page = draw(figure.panels[0], figure.caption)
    assert "fp8_e4m3 448" in page
    assert "var(--limit)" in page
    assert ">100</text>" in page, "ticks are numbers, no formulas"
    assert page == draw(copy.deepcopy(figure.panels[0]), figure.caption)


def test_without_a_fixed_range_there_is_no_line() -> None:
    none = {"int8": {"limit": None, "beyond": None, "sqnr_db": 40.0}}
    halves = {half: {**fit(5.0, 0, 0), "formats": none} for half in "kv"}
    (section,) = range_sections(document(**halves, formats=["int8"], layers=[{"layer": 0, **halves}]))
    figure = section.blocks[1]
    assert isinstance(figure, Figure)
    assert figure.panels[0].limits == ()
    assert "Dashed" not in figure.caption


def test_nothing_seen_is_a_sentence_and_no_plot() -> None:
    nothing = {"largest": None, "layer": None, "head": None, "values": 0, "formats": {}}
    (section,) = range_sections(
        document(k=nothing, v=nothing, layers=[], formats=[], sentences=["No K and V were seen."])
    )
    said, table, _ = section.blocks
    assert said == Items(("No K and V were seen.",))
    assert isinstance(table, Table)
    assert table.rows == (("all", "K", "–", "–"), ("all", "V", "–", "–"))


def test_not_asked_for_is_no_section() -> None:
    asked = document()
    del asked["ranges"]
    assert range_sections(asked) == []
