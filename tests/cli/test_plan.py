"""``kvquant-eval plan``, and the first lines of a gate."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvquant_eval.cli.main import main
from kvquant_eval.io import report
from tests.fakes.cli import arguments


@pytest.fixture(autouse=True)
def _no_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "write", lambda *_: None)


def plan(folder: Path, *overrides: str) -> int:
    return main(["plan", *arguments(folder, *overrides)[1:]])


def test_a_plan_says_what_could_be_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan(tmp_path) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert "smallest drop held" in said.out
    assert "noise assumed: no control of these turns was run here yet" in said.out
    assert "a candidate that loses nothing: promoted with a chance of 100%, held with one of 0.0%" in said.out
    assert not (tmp_path / "runs").exists()


def test_a_plan_for_too_few_says_what_is_needed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan(tmp_path, "gate.largest_break=100") == 4
    said = " ".join(capsys.readouterr().out.split())
    assert "promoted with a chance of 0%" in said
    assert (
        "faq: 10 conversations; at least 149 are needed before a break in an unseen one can be ruled out to 2 points"
        in said
    )
    assert plan(tmp_path, "gate.min_turns=200") == 4
    assert "golden set: at least 200 turns compared, got 40" in capsys.readouterr().out
    assert not (tmp_path / "runs").exists()


def test_a_gate_begins_with_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(tmp_path)) == 0
    first = capsys.readouterr().out.splitlines()[:3]
    assert first[0].endswith("is promoted with a chance of 100% and held with one of 0.0% (noise: assumed)")
    assert first[1].startswith("smallest mean drop that would be held, in points: math_chain ")
    assert first[2].startswith("20 blocks to run, at most ")


@pytest.mark.parametrize("verb", ["gate", "search"])
@pytest.mark.parametrize("more", [(), ("gate.repair=true", "gate.min_turns=30")])
def test_a_hopeless_policy_is_refused_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str, more: tuple[str, ...]
) -> None:
    assert main([verb, *arguments(tmp_path, "gate.largest_break=100", *more)[1:]]) == 2
    said = capsys.readouterr()
    assert said.err.startswith(
        "kvquant-eval: gate: at least an even chance to promote a candidate that loses nothing, "
    )
    assert "at least 149 are needed before a break" in said.err
    assert (said.err.count("\n"), said.out) == (1, "")
    assert not (tmp_path / "runs").exists()
