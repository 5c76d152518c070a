"""The section that tells format and engine apart."""

from __future__ import annotations

from typing import Any

from kvquant_eval.io.report.attribution import WORST, attribution_sections
from kvquant_eval.io.report.blocks import Items, Table


def half(identical: float | None = 0.54, values: int = 100) -> dict[str, Any]:
    return {
        "values": values, "identical": identical, "bias": -0.46, "worst": 1, "shrinkage": -0.041,
        "shrinkage_right": -0.001, "saturated": 0.0, "saturated_right": 0.001, "flushed": 0.002, "flushed_right": 0.0,
        "ulps": 0.46,
    }  # fmt: skip


NOTHING = {**dict.fromkeys(half(), None), "values": 0}
LAYERS = [{"layer": index, "k": half(0.5 + index / 100), "v": half(0.9 - index / 100)} for index in range(10)]


def document(**one: Any) -> dict[str, Any]:
    kv = {"requested": "fp8_e4m3", "effective": "fp8_e4m3", "realisation": "native"}
    found = {
        "reference": "ref",
        "k": half(),
        "v": half(),
        "layers": LAYERS,
        "gl": {},
        "sentences": ["Codes.", "Engine."],
    }
    return {
        "model": {"id": "org/model", "revision": "r1", "kv": {"fp8": kv}},
        "attribution": {"fp8": {**found, **one}},
    }


def test_words_first_then_the_layers_with_the_fewest_right_codes() -> None:
    head, one = attribution_sections(document())
    assert "Diagnostic, never deciding" in str(head.blocks)
    assert one.title == "fp8: org/model@r1 KV fp8_e4m3 (effective fp8_e4m3, native)"
    words, table = one.blocks
    assert words == Items(("Codes.", "Engine."))
    assert isinstance(table, Table)
    assert [row[:2] for row in table.rows] == [
        ("all", "K"), ("all", "V"), ("0", "K"), ("1", "K"), ("2", "K"), ("9", "V"), ("8", "V"), ("7", "V"),
    ]  # fmt: skip
    assert len(table.rows) == 2 + 2 * WORST
    assert table.rows[0][2:] == (
        "100", "54.00%", "-0.460", "1", "-4.10% (-0.10%)", "0.000% (0.100%)", "0.200% (0.000%)",
    )  # fmt: skip


def test_a_native_loss_smaller_than_the_references_is_no_gain() -> None:
    gl = {"faq": {"gl_reply": (0.2, 0.5), "gl_span": (3.0, 1.0)}, "coding": {"gl_reply": (None, 0.5)}}
    _, one = attribution_sections(document(gl=gl))
    table = one.blocks[-1]
    assert isinstance(table, Table)
    assert table.columns == ("class", "score", "drop of fp8", "drop of ref")
    assert table.rows == (
        ("faq", "gl_reply", "+0.20 (compensation)", "+0.50"),
        ("faq", "gl_span", "+3.00", "+1.00"),
        ("coding", "gl_reply", "–", "+0.50"),
    )


def test_codes_that_were_not_read_back() -> None:
    _, one = attribution_sections(document(k=NOTHING, v=NOTHING, layers=[]))
    assert one.blocks == (Items(("Codes.", "Engine.")),)
    _, one = attribution_sections(document(layers=[{"layer": 0, "k": NOTHING, "v": half()}]))
    table = one.blocks[1]
    assert isinstance(table, Table)
    assert [row[:2] for row in table.rows] == [("all", "K"), ("all", "V"), ("0", "V")]


def test_without_native_candidates_there_is_no_section() -> None:
    assert attribution_sections({**document(), "attribution": {}}) == []
