"""The section on free-running conversations: what stands in it, and how it is drawn."""

from __future__ import annotations

from typing import Any

from kvquant_eval.io.report.blocks import Figure, Items, Table
from kvquant_eval.io.report.compounding import compounding_sections
from kvquant_eval.io.report.svg import draw

NAME = "org/model@r1 KV fp8_e4m3 (effective fp8_e4m3, native)"


def side(own: float, **changes: Any) -> dict[str, Any]:
    return {
        "curve": [
            {"depth": 0, "n": 4, "golden_prefix": 80.0, "free_running": 80.0},
            {"depth": 2, "n": 4, "golden_prefix": 80.0, "free_running": own},
        ],
        "n_conversations": 4,
        "diverged": 1,
        "first_failing": {"0": 1, "2": 2},
        "never_failing": 1,
        "could_recover": 1,
        "recovered": 0,
        **changes,
    }


def document(**arms: Any) -> dict[str, Any]:
    kv = {"requested": "bfloat16", "effective": "bfloat16", "realisation": "native"}
    return {
        "free_running": {arm: {"math_chain": {"math_steps": found}} for arm, found in arms.items()},
        "replay": {"mode": "free_running", "on_divergence": "golden"},
        "arms": dict.fromkeys(arms, kv),
    }


CANDIDATE = {"name": "fp8", "baseline": "baseline"}


def test_both_modes_and_arms_stand_side_by_side() -> None:
    (section,) = compounding_sections(CANDIDATE, NAME, "BF16", document(baseline=side(60.0), fp8=side(20.0)))
    said, curve, figure, failures = section.blocks
    assert section.title == f"Free running: {NAME}"
    assert isinstance(said, Items)
    assert "goes on with the recorded reply" in said.rows[0]
    assert isinstance(curve, Table)
    assert curve.rows == (
        ("math_chain", "math_steps", "0", "4/4", "80.0", "80.0", "80.0", "80.0"),
        ("math_chain", "math_steps", "2", "4/4", "80.0", "60.0", "80.0", "20.0"),
    )
    assert isinstance(figure, Figure)
    assert NAME in figure.caption
    (panel,) = figure.panels
    assert [(name, y) for name, _, y in panel.series] == [
        ("BF16 golden", (80.0, 80.0)),
        ("BF16 own", (80.0, 60.0)),
        ("candidate golden", (80.0, 80.0)),
        ("candidate own", (80.0, 20.0)),
    ]
    assert isinstance(failures, Table)
    assert failures.rows[0][3:] == ("4", "1", "0: 1, 2: 2", "1", "0 of 1")


def test_an_arm_that_did_not_run_leaves_dashes() -> None:
    (section,) = compounding_sections(CANDIDATE, NAME, "BF16", document(baseline=side(60.0)))
    curve = section.blocks[1]
    assert isinstance(curve, Table)
    assert curve.rows[0] == ("math_chain", "math_steps", "0", "4/0", "80.0", "80.0", "–", "–")


def test_without_free_running_there_is_no_section() -> None:
    assert compounding_sections(CANDIDATE, NAME, "BF16", document()) == []


def test_points_are_joined_by_lines_and_drops_are_not() -> None:
    (section,) = compounding_sections(CANDIDATE, NAME, "BF16", document(baseline=side(60.0), fp8=side(20.0)))
    figure = section.blocks[2]
    assert isinstance(figure, Figure)
    page = draw(figure.panels[0], figure.caption)
    assert "points" in page
    assert "drop, points" not in page
    assert page.count("var(--series-3)") > 1
