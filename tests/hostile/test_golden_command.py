"""``kvquant-golden`` on a golden set of payloads: nothing of them reaches the terminal but printable text."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest

from kvquant_eval.cli.golden import main
from kvquant_eval.core.codec import from_json
from kvquant_eval.core.records import GoldenTurn
from tests.hostile.gate import read, turn_id, write_golden


@pytest.fixture
def golden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """As if the loader had let it through."""
    monkeypatch.setattr("kvquant_eval.cli.golden._turns", lambda path: read(path).turns)
    return str(write_golden(tmp_path / "golden", "hostile"))


def test_the_loader_refuses_it_in_one_harmless_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", "--path", str(write_golden(tmp_path / "golden", "hostile"))]) == 2
    said = capsys.readouterr().err
    assert hidden(said) == set()
    assert said.count("\n") == 1
    assert len(said) < 2000


def hidden(text: str) -> set[str]:
    return {c for c in text if (unicodedata.category(c)[0] == "C" or c in "\u2028\u2029") and c != "\n"}


def test_stats_shows_classes_as_text(golden: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", "--path", golden]) == 0
    said = capsys.readouterr().out
    assert hidden(said) == set()
    assert "<script>" in said
    assert len(said) < 20_000


@pytest.mark.parametrize("number", range(11, 23))
def test_show_prints_printable_ascii_that_is_the_turn(
    golden: str, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    assert main(["show", turn_id("hostile", number), "--path", golden]) == 0
    said = capsys.readouterr().out
    assert said.isascii()
    assert hidden(said) == set()
    stored = Path(golden, "a", "turns.jsonl").read_text().splitlines()[number]
    assert from_json(GoldenTurn, said, "said") == from_json(GoldenTurn, stored, "stored")


def test_an_error_is_one_harmless_line(golden: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "\x1b[2J\nno such turn", "--path", golden]) == 2
    said = capsys.readouterr().err
    assert hidden(said) == set()
    assert said.count("\n") == 1
    assert len(said) < 20_000
