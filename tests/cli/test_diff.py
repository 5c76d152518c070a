"""`diff` as a command: what it prints, and what it makes of bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvquant_eval.cli.main import main
from tests.fakes.decided import HOSTILE, document, run


@pytest.fixture
def a(tmp_path: Path) -> Path:
    return run("org/model", tmp_path / "run-a", drop=3.0, decision="HOLD")


def other(path: Path, model: str = "org/model", **change: Any) -> Path:
    """A decision in a file of its own."""
    path.write_text(json.dumps(document(model, path.stem, **change)))
    return path


def printed(capsys: pytest.CaptureFixture[str], a: Path, b: Path) -> list[str]:
    assert main(["diff", str(a), str(b)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return [line.rstrip() for line in out.splitlines()]


def test_a_run_and_itself(a: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head = "run-a, 2026-01-01T00:00:00+00:00: HOLD"
    same = "the same decision, the same scores, the same flags"
    assert printed(capsys, a, a / "decision.json") == [f"A: {head}", f"B: {head}", same]


def test_another_revision_that_loses_less(a: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    b = other(tmp_path / "run-b.json", revision="r2", drop=0.5, decision="PROMOTE", post_hoc=True)
    lines = printed(capsys, a, b)
    assert lines[1] == "B: run-b, 2026-01-01T00:00:00+00:00: PROMOTE, post hoc"
    rows = [
        [cell.strip() for cell in line.strip("│┃").replace("┃", "│").split("│")] for line in lines if line[0] in "│┃"
    ]
    changes, scores = rows[:4], rows[4:]
    assert changes == [
        ["what changed", "A", "B"],
        ["decision", "HOLD", "PROMOTE"],
        ["post hoc", "false", "true"],
        ["model.revision", "r1", "r2"],
    ]
    assert "A: fp8: org/model@r1 KV fp8_e4m3 (effective fp8_e4m3, native): HOLD" in lines
    assert "B: fp8: org/model@r2 KV fp8_e4m3 (effective fp8_e4m3, native): PROMOTE" in lines
    span = ["", "gl_span", "2", "80.0", "+3.00", "+2.00 to +4.00", "+0.50", "-0.50 to +1.50", "* -2.50", ""]
    assert scores[2] == span
    assert scores[1][-1] == "FAIL → PASS"
    assert scores[3] == ["faq", "gl_reply", "2", "80.0", "+0.00", "–", "+0.00", "–", "+0.00", "INCONCLUSIVE"]
    assert "flags: 0 only in B, 2 only in A, 0 in both" in lines
    assert "  worst only in A: math-a/t01 gl_reply +7.0, math-a/t01 gl_span +7.0" in lines
    assert lines[-1].startswith("change: drop of B minus drop of A, in points, > 0 is worse; *: ")


def test_other_golden_turns_are_warned_of(a: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads((a / "decision.json").read_text())
    (tmp_path / "b.json").write_text(json.dumps({**data, "golden": {**data["golden"], "sha256": "b" * 64}}))
    lines = printed(capsys, a, tmp_path / "b.json")
    assert any(line.startswith("other golden turns: scores are of other questions") for line in lines)
    assert lines[-1] == "the same verdicts, scores and flags"


def test_text_of_unknown_origin_begins_no_line_and_steers_nothing(
    a: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = document(f"[red]{HOSTILE}\nB: fine", "b", revision="\x1b]0;x\x07", drop=3.0, decision="HOLD")
    (found,) = data["candidates"]
    found["name"] = "[bold]\x1b[1m"
    found["flagged_turns"] = [{**flag, "turn_id": "\u202e\n"} for flag in found["flagged_turns"]]
    found["classes"]["\x1b[2J[/]"] = found["classes"].pop("faq")
    data["engine"]["\x1b[3J"] = ["\x1b[4J"]
    (tmp_path / "b.json").write_text(json.dumps(data))
    lines = printed(capsys, a, tmp_path / "b.json")
    assert all(line.isprintable() for line in lines)
    assert "B: fine" not in lines
    assert any(line.startswith("B: [bold]\\x1b[1m: [red]<script>") for line in lines)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (None, "a decision, got No such file or directory; name the folder of a decided run"),
        (
            "{",
            "a decision in strict JSON, got EOF while parsing an object at line 1 column 1; restore the file",
        ),
        ("[]", "a JSON object, got []; restore the file, or write it again with `kvquant-eval regate`"),
        ('{"schema_version": 2}', "schema version 1, got 2; use the kvquant-eval that wrote it (or regate)"),
        ('{"schema_version": 1}', "run_id: Field required, got "),
    ],
)
def test_what_is_no_decision_is_one_line(
    text: str | None, line: str, a: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "b"
    folder.mkdir()
    if text is not None:
        (folder / "decision.json").write_text(text)
    for given in ([a, folder], [folder, a]):
        assert main(["diff", *map(str, given)]) == 2
        out, err = capsys.readouterr()
        assert (out, len(err.splitlines())) == ("", 1)
        assert err.removeprefix(f"kvquant-eval: {folder}/decision.json").lstrip(": ").startswith(line)
