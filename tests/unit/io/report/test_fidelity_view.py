"""The section on fidelity: every arm beside the floor of the controls, and what it says of itself."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvquant_eval.io.report.blocks import Figure, Items, Table
from kvquant_eval.io.report.fidelity import fidelity_sections
from kvquant_eval.io.report.svg import draw

MODEL = {"id": "org/model", "revision": "r1"}
BF16 = {"requested": "bfloat16", "effective": "bfloat16", "realisation": "native"}
FP8 = {"requested": "fp8_e4m3", "effective": "fp8_e4m3", "realisation": "native"}
NAME = "org/model@r1 KV fp8_e4m3 (effective fp8_e4m3, native)"


def near(kl: float | None, **changes: Any) -> dict[str, Any]:
    at = {"n_turns": 2, "n_tokens": 2, "kl": kl}
    return {
        "n_turns": 2, "n_left_out": 1, "n_tokens": 6, "kl": kl, "rest_mass": 0.0123, "top1_agreement": 0.9,
        "golden_drop": 1.25, "perplexity_ratio": 1.0321, "never_diverged": 0.5, "median_first_divergence": 1.5,
        "by_position": [{"first": 0, "last": 0, **at}, {"first": 1, "last": 1, **at}, {"first": 2, "last": 3, **at}],
        **changes,
    }  # fmt: skip


NOTHING = {
    **dict.fromkeys(near(None), None), "n_turns": 0, "n_left_out": 3, "n_tokens": 0, "by_position": [],
}  # fmt: skip


def document(**arms: dict[str, Any]) -> dict[str, Any]:
    found = {name: {"baseline": "baseline", "all": one, "classes": {"faq": one}} for name, one in arms.items()}
    kv = {name: FP8 if name.startswith("fp8") else BF16 for name in arms}
    return {
        "model": {**MODEL, "kv": {"baseline": BF16, **kv}},
        "fidelity": found,
        "controls": {name: {} for name in arms if name in ("repeat", "placebo")},
    }


def test_arms_stand_in_their_order_within_all_and_each_class() -> None:
    (section,) = fidelity_sections(document(repeat=near(0.0), placebo=near(0.001), fp8=near(0.0157)))
    said, table, _ = section.blocks
    assert isinstance(said, Items)
    text = " ".join(said.rows)
    assert "Diagnostic, never deciding: no rule of the gate reads any of this" in text
    assert "lower bound" in text
    assert isinstance(table, Table)
    assert len(table.columns) == len(table.align)
    assert [row[:2] for row in table.rows] == [
        (workload, arm) for workload in ("all", "faq") for arm in ("repeat", "placebo", "fp8")
    ]
    assert table.rows[2] == (
        "all", "fp8", "KV fp8_e4m3 (effective fp8_e4m3, native)", "2", "1", "6",
        "0.01570", "1.23%", "90.00%", "+1.250", "1.0321", "50.0%", "1.5",
    )  # fmt: skip


def test_each_candidate_is_drawn_beside_the_floor() -> None:
    arms = {"repeat": near(0.0), "placebo": near(0.001), "fp8": near(0.0157), "fp8_b": near(0.2)}
    (section,) = fidelity_sections(document(**arms))
    figure = section.blocks[2]
    assert isinstance(figure, Figure)
    assert f"fp8: {NAME} against KV bfloat16 (effective bfloat16, native)" in figure.caption
    assert "never deciding" in figure.caption
    assert [panel.title for panel in figure.panels] == ["fp8", "fp8_b"]
    assert [(name, y) for name, _, y in figure.panels[0].series] == [
        ("fp8", (0.0157,) * 3), ("repeat", (0.0,) * 3), ("placebo", (0.001,) * 3),
    ]  # fmt: skip
    assert figure.panels[0].ticks == ("0\n2", "1\n2", "2\n2")
    page = draw(figure.panels[0], figure.caption)
    assert "KL, nats" in page
    assert page == draw(copy.deepcopy(figure.panels[0]), figure.caption)


def test_an_arm_without_a_pair_has_dashes_and_no_line() -> None:
    (section,) = fidelity_sections(document(repeat=NOTHING, fp8=near(0.1)))
    table, figure = section.blocks[1:]
    assert isinstance(table, Table)
    assert table.rows[0][3:] == ("0", "3", "0", *["–"] * 7)
    assert isinstance(figure, Figure)
    assert [name for name, _, _ in figure.panels[0].series] == ["fp8"]
    (section,) = fidelity_sections(document(repeat=near(0.0), fp8=NOTHING))
    assert len(section.blocks) == 2


def test_without_arms_there_is_no_section() -> None:
    assert fidelity_sections(document()) == []


@pytest.mark.parametrize("name", ["report.md", "report.html"])
def test_it_stands_in_the_report_with_model_and_dtype(case: Callable[..., Any], tmp_path: Path, name: str) -> None:
    page = case(3.0).write(tmp_path)[name]
    _, _, section = page.partition("Fidelity</h2>" if name.endswith("html") else "## Fidelity")
    section = section.replace("\\", "")
    assert "acme/tiny@r1 KV fp8_e4m3 (effective fp8_e4m3, native)" in section
    assert "Mean KL by position in the golden reply. fp8_e4m3: acme/tiny@r1 KV fp8_e4m3" in section
    assert "never deciding" in section
