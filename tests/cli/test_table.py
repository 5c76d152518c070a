"""What a terminal gets at the end of a gate: bounded, and no line that its text begins by itself."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kvquant_eval.cli.table import MOST_REASONS, show
from kvquant_eval.core.text import TEXT_CHARS

KV = {"requested": "fp8_e4m3", "effective": "fp8_e4m3", "realisation": "native"}


def score(**changes: Any) -> dict[str, Any]:
    made = {
        "role": "gate", "n_headroom": 40, "n_turns": 41, "baseline_mean": 81.0, "candidate_mean": 80.0,
        "mean_drop": 1.0, "ci_upper": 1.5, "drops_over": 2, "gains_over": 1, "recovery": 98.8,
        "worst_stratum": None,
    }  # fmt: skip
    return {**made, **changes}


def document(*reasons: str, model: str = "acme/tiny", workload: str = "faq", name: str = "gl_reply") -> dict[str, Any]:
    classes = {workload: {"verdict": "FAIL", "tier": "critical", "scores": {name: score()}}}
    return {
        "decision": "HOLD",
        "exit_code": 3,
        "post_hoc": False,
        "policy": {"name": "strict", "sha256": "0123456789abcdef"},
        "reasons": list(reasons),
        "model": {"id": model},
        "controls": {"repeat": {"decision": "PROMOTE"}},
        "candidates": [{"decision": "HOLD", "kv": KV, "classes": classes, "cautions": []}],
        "ranking": [],
    }


def printed(document: dict[str, Any], *, width: int = 100, terminal: bool = True, folder: Path = Path("run")) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=width, color_system=None, legacy_windows=False)
    show(document, folder, console)
    return file.getvalue()


def test_decision_reasons_and_report_are_printed() -> None:
    lines = printed(document("faq: too much", "two\nlines"), terminal=False).splitlines()
    assert lines[0].strip() == "acme/tiny  KV fp8_e4m3 (effective fp8_e4m3, native): HOLD"
    assert [line.rstrip() for line in lines[-7:]] == [
        "control repeat: PROMOTE",
        "",
        "HOLD (exit status 3)",
        "  faq: too much",
        "  two",
        "  lines",
        "report: run/report.md",
    ]
    row = next(line for line in lines if "gl_reply" in line)
    assert row.replace("│", " ").split() == [
        "faq", "gl_reply", "40", "81.0", "80.0", "+1.00", "<+1.50", "2/1", "98.8%", "FAIL"
    ]  # fmt: skip


def test_no_wrapped_reason_begins_a_line_at_the_left_edge() -> None:
    """A model that ends its error with the words of a decision must not print one."""
    for words in range(40):
        said = printed(document("x " * words + "PROMOTE (exit status 0)\nPROMOTE (exit status 0)"), width=40)
        assert not [line for line in said.splitlines() if line.startswith("PROMOTE")]


@pytest.mark.parametrize("text", ["[red]x[/red] [/]", "[link=https://evil.example]x[/link]", ":skull:"])
def test_markup_is_text(text: str) -> None:
    said = printed(document(text, model=text, workload=text, name=text), width=250)
    assert said.count(text) == 4
    assert "\x1b" not in said


@pytest.mark.parametrize("text", ["\x1b]52;c;AAAA\x07", "a\nb", "\x9b31m", "\u202ex", "\r", "\x00", "\ud800", "\b\x7f"])
def test_control_characters_are_shown_as_escapes(text: str) -> None:
    said = printed(document(text, model=text, workload=text, name=text), width=250, folder=Path(text))
    assert not set(text) - {"a", "b", "\n", "x", "A", "C", ";", "c", "5", "2", "]", "3", "1", "m"} & set(said)
    said.encode()


def test_long_names_push_nothing_out_and_many_reasons_are_counted() -> None:
    said = printed(document(*["x" * 1_000_000] * 1000, model="m" * 1_000_000, workload="w" * 1_000_000), width=200)
    assert len(said) < MOST_REASONS * TEXT_CHARS
    flat = " ".join(said.split())
    assert "KV fp8_e4m3 (effective fp8_e4m3, native): HOLD" in flat
    assert f"and {1000 - MOST_REASONS} reasons more, in the report" in flat


def test_the_worst_stratum_the_pooled_direction_and_the_ranking_have_a_line_each() -> None:
    made = document()
    candidate = made["candidates"][0]
    late = {"name": "turn index 7 to 11", "mean_drop": 9.5, "ci_lower": 4.25, "ci_upper": 12.0}
    candidate["classes"]["faq"]["scores"]["gl_reply"] |= {"margin": 2.0, "worst_stratum": late}
    candidate["classes"]["faq"]["tier"] = "supporting"
    candidate["cautions"] = [
        {"about": "pooled", "sentence": "49 of 60 conversations lose"},
        {"about": "trend", "sentence": "drops grow"},
    ]
    made["ranking"] = [{"name": "nvfp4", "bytes_per_token": 1234.5}, {"name": "fp8", "bytes_per_token": None}]
    said = printed(made, terminal=False)
    worst = "worst stratum: faq gl_reply, turn index 7 to 11: mean drop 9.50 points, at least 4.25, margin 2"
    assert worst in said
    assert "49 of 60 conversations lose" in said
    assert "drops grow" not in said
    assert "promoted, the fewest bytes a token first: nvfp4 1,234, fp8 of unknown size" in said
    assert "faq (supporting)" in said


@pytest.mark.parametrize(("mean_drop", "lower"), [(2.0, 1.9), (9.0, None)])
def test_a_stratum_within_the_margin_or_without_a_bound_has_none(mean_drop: float, lower: float | None) -> None:
    made = document()
    part = {"name": "turn index 1", "mean_drop": mean_drop, "ci_lower": lower, "ci_upper": None}
    made["candidates"][0]["classes"]["faq"]["scores"]["gl_reply"] |= {"margin": 2.0, "worst_stratum": part}
    made["ranking"] = [{"name": "fp8", "bytes_per_token": 1.0}]
    said = printed(made)
    assert "worst stratum" not in said
    assert "promoted" not in said


@pytest.mark.parametrize(
    ("rescored", "why"),
    [
        ({}, "policy strict 01234567 came after the run"),
        ({"rescored": True}, "scored again after the run, by policy strict 01234567"),
    ],
)
def test_what_was_decided_afterwards_says_so(rescored: dict[str, Any], why: str) -> None:
    said = printed({**document("faq: too much"), "post_hoc": True, **rescored}, terminal=False)
    line = f"POST HOC: {why}; it stands beside the run's own decision and moves no alias\n"
    assert f"HOLD (exit status 3)\n{line}" in said
    assert "POST HOC" not in printed(document("faq: too much"))
