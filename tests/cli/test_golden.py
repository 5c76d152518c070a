"""``kvquant-golden`` on good and broken sets: an answer and status 0, or one line and status 2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvquant_eval.cli.golden import main
from kvquant_eval.io.golden.manifest import MANIFEST
from tests.bad_input.case import Case
from tests.bad_input.golden import CASES, FILES, TURNS
from tests.fakes.gate import write_golden

SAID_OTHERWISE = ("a class without turns", "a turn id twice")
"""A gate asks for classes, in an order of its own; ``stats`` and ``show`` take what there is."""
WRONG_BY_MANIFEST = ("a file that is gone", "a file changed after it was pinned")
"""Another manifest can be right: here without the file, or of a file that is no JSON."""

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    return write_golden(tmp_path / "golden")


def pin(folder: Path, version: str = "v2") -> list[str]:
    return ["pin", "--path", str(folder), "--name", "fake", "--set-version", version]


def test_stats_counts(golden: Path, capsys: Capture) -> None:
    assert main(["stats", "--path", str(golden)]) == 0
    rows = [line.split("│")[1:-1] for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    assert [[cell.strip() for cell in row] for row in rows] == [
        ["faq", "20", "10", "10", "1", "0"],
        ["math_chain", "20", "10", "10", "1", "20"],
    ]


def test_show_prints_one_turn_in_ascii(golden: Path, capsys: Capture) -> None:
    file = golden / "faq" / "turns.jsonl"
    file.write_text(file.read_text().replace("euros", "\\u20ac \\u001b[2J"))
    assert main(pin(golden)) == 0
    capsys.readouterr()
    assert main(["show", "--path", str(golden), "faq-03/1"]) == 0
    out = capsys.readouterr().out
    assert json.loads(out)["reference"]["content"] == "It costs 13.10 \u20ac \x1b[2J."
    assert out.replace("\n", "").isprintable()
    assert out.isascii()


def test_an_unknown_turn_is_told_the_nearest(golden: Path, capsys: Capture) -> None:
    assert main(["show", "--path", str(golden), "faq-3/1"]) == 2
    assert capsys.readouterr().err == (
        "kvquant-golden: turn_id: a turn of the set, got 'faq-3/1'; did you mean 'faq-03/1'?\n"
    )


@pytest.mark.parametrize("verb", [["stats"], ["show", "faq-03/0"]])
@pytest.mark.parametrize(
    "case", [case for case in CASES if case.what not in SAID_OTHERWISE], ids=lambda case: case.what
)
def test_a_broken_set_is_refused_with_the_gates_line(
    verb: list[str], case: Case, tmp_path: Path, capsys: Capture
) -> None:
    case.make(tmp_path)
    assert main([*verb, "--path", str(tmp_path / "golden")]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"kvquant-golden: {case.line.replace('{folder}', str(tmp_path))}\n")


@pytest.mark.parametrize(
    "case", [case for case in (*FILES, *TURNS) if case.what not in WRONG_BY_MANIFEST], ids=lambda case: case.what
)
def test_what_cannot_be_loaded_is_not_pinned(case: Case, tmp_path: Path, capsys: Capture) -> None:
    case.make(tmp_path)
    manifest = tmp_path / "golden" / MANIFEST
    before = manifest.read_bytes()
    manifest.unlink()
    assert main(pin(tmp_path / "golden")) == 2
    assert not manifest.exists()
    manifest.write_bytes(before)
    assert main(pin(tmp_path / "golden")) == 2
    assert manifest.read_bytes() == before
    first, second = capsys.readouterr().err.splitlines()
    assert first == second


def test_a_broken_manifest_is_not_written_over(golden: Path, capsys: Capture) -> None:
    (golden / MANIFEST).write_text("{")
    assert main(pin(golden)) == 2
    assert (golden / MANIFEST).read_text() == "{"
    assert capsys.readouterr().err.startswith(f"kvquant-golden: {golden / MANIFEST}: a manifest in JSON, got ")


def test_a_class_folder_whose_name_cannot_be_a_class_is_not_pinned(golden: Path, capsys: Capture) -> None:
    (golden / "faq").rename(golden / "my faq")
    assert main(pin(golden)) == 2
    assert "workload: letters, digits, _ . and -, no dot first, got 'my faq'" in capsys.readouterr().err


def test_a_changed_set_needs_a_new_version(golden: Path, capsys: Capture) -> None:
    file = golden / "faq" / "turns.jsonl"
    file.write_text(file.read_text().replace("euros", "crowns"))
    assert main(pin(golden, "v1")) == 2
    assert capsys.readouterr().err.endswith("a new version for a changed set, got v1 again; raise --set-version\n")
    assert main(pin(golden, "v2")) == 0
    assert capsys.readouterr().out == f"pinned 40 turns in {golden / MANIFEST}\n"
    assert main(pin(golden, "v2")) == 0


@pytest.mark.parametrize("name", ["", "\x1b[2J", "x" * 201])
def test_a_name_that_does_not_print_is_not_pinned(golden: Path, name: str, capsys: Capture) -> None:
    assert main(["pin", "--path", str(golden), "--name", name, "--set-version", "v2"]) == 2
    assert "a name of 1 to 200 printable characters, got '" in capsys.readouterr().err


def test_an_empty_folder_has_nothing_to_pin(tmp_path: Path, capsys: Capture) -> None:
    assert main(pin(tmp_path)) == 2
    assert capsys.readouterr().err == (
        f"kvquant-golden: {tmp_path}: <class>/*.jsonl files to pin, got none; correct --path\n"
    )


def test_a_manifest_that_cannot_be_written_is_one_line(
    golden: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device", str(golden / MANIFEST))

    monkeypatch.setattr(Path, "write_text", full)
    assert main(pin(golden)) == 2
    assert capsys.readouterr().err == (
        f"kvquant-golden: {golden / MANIFEST}: No space left on device; make room or correct the path\n"
    )
