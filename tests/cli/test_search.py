"""``kvquant-eval search`` and ``gate.repair``: what is printed, written, and the exit status."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest

from kvquant_eval.cli.main import Interrupted, main
from kvquant_eval.io.runcards import read_cards
from tests.fakes.cli import arguments
from tests.fakes.nursery import forked_children

ONE = "engine.slots=[{}]"  # the nursery forks one engine after the other
FRAGILE = "engine.args.fragile=[[1,6.0]]"


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    """A search starts dozens of engines."""
    with forked_children():
        yield


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, str]:
    """A search whose layer 1 is fragile: its folder, exit status, and what it printed."""
    folder, printed = tmp_path_factory.mktemp("search"), StringIO()
    with contextlib.redirect_stdout(printed):
        status = search(folder, "kv=[fp8_e4m3]", FRAGILE)
    return folder, status, printed.getvalue()


def search(folder: Path, *overrides: str) -> int:
    """Five conversations a class on half of the folds, all worse, have a chance of 1/32, which is to hold here."""
    return main(["search", *arguments(folder, ONE, "gate.hold_level=0.2", *overrides)[1:]])


def written(folder: Path) -> tuple[dict[str, object], Path]:
    (found,) = folder.glob("runs/*-choose/search.json")
    return json.loads(found.read_text()), found.parent


def test_what_is_found_is_confirmed_and_can_be_pasted(found: tuple[Path, int, str]) -> None:
    home, status, printed = found
    assert status == 0
    document, folder = written(home)
    flags = "--kv-cache-dtype fp8_e4m3 --kv-cache-dtype-skip-layers 1"
    assert document["decision"] == "PROMOTE"
    assert document["flags"] == flags
    assert document["passes"] == {"sensitivity": 12, "choose": document["passes"]["choose"], "confirm": 7}  # type: ignore[index]
    assert f"vLLM: {flags}" in printed
    assert "The policy asks for 30 and 10; here for 15 turns" in printed
    assert "PROMOTE (exit status 0)" in printed
    assert (folder / "search.md").read_text().count(flags) == 1
    assert "<svg" in (folder / "search.html").read_text()


def test_the_confirming_gate_is_a_run_of_its_own_and_can_be_decided_again(found: tuple[Path, int, str]) -> None:
    document, _ = written(found[0])
    run = found[0] / "runs" / document["confirm"]["run_id"]  # type: ignore[index]
    decided = json.loads((run / "decision.json").read_text())
    mixed = {each["name"]: each for each in decided["candidates"]}
    assert mixed["fp8_e4m3_mixed"]["kv"]["layers_skipped"] == [1]
    assert decided["golden"]["folds"] == [1, 3, 5, 7]
    assert mixed["fp8_e4m3_last"]["decision"] == "HOLD"  # as many bytes, in the wrong place
    assert decided["decision"] == mixed["fp8_e4m3_mixed"]["decision"] == "PROMOTE"
    before = {key: value for key, value in decided.items() if key != "created_at"}
    assert main(["regate", str(run)]) == 0
    again = json.loads((run / "decision.json").read_text())
    assert {key: value for key, value in again.items() if key != "created_at"} == before


def test_the_report_of_the_confirming_gate_shows_the_search_and_comes_out_the_same_again(
    found: tuple[Path, int, str], capsys: pytest.CaptureFixture[str]
) -> None:
    document, _ = written(found[0])
    run = found[0] / "runs" / document["confirm"]["run_id"]  # type: ignore[index]
    assert json.loads((run / "search.json").read_text()) == document
    pages = [(run / name).read_text() for name in ("report.md", "report.html")]
    for page in pages:
        assert "What each byte buys." in page
        assert "Harm of each layer" in page
        assert "--kv-cache-dtype fp8_e4m3 --kv-cache-dtype-skip-layers 1" in page
    decided = json.loads((run / "decision.json").read_text())["created_at"]
    assert main(["regate", str(run)]) == 0
    assert "not a file of this run" not in capsys.readouterr().err
    again = json.loads((run / "decision.json").read_text())["created_at"]
    assert [(run / name).read_text().replace(again, decided) for name in ("report.md", "report.html")] == pages


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "strict JSON"),
        ('{"schema_version": 9}', "schema version 1, got 9"),
        ('{"schema_version": 1}', "Field required"),
        ("[" * 500, "strict JSON"),
        ("\x00\x1b[31m", "strict JSON"),
    ],
)
def test_a_damaged_search_is_named_in_the_report_and_decides_nothing(
    found: tuple[Path, int, str], tmp_path: Path, text: str, reason: str
) -> None:
    document, _ = written(found[0])
    run = found[0] / "runs" / document["confirm"]["run_id"]  # type: ignore[index]
    copy = tmp_path / run.name
    shutil.copytree(run, copy)
    (copy / "search.json").write_text(text)
    assert main(["regate", str(copy)]) == 0
    page = (copy / "report.html").read_text()
    assert "<p>left out: search.json: " in page
    assert reason in page
    assert str(tmp_path) not in page
    assert "What each byte buys." not in page


def test_a_reference_is_confirmed_natively_where_an_engine_can(tmp_path: Path) -> None:
    assert search(tmp_path, "kv=[fp8_e4m3_ref]", FRAGILE) == 0
    document, _ = written(tmp_path)
    run = tmp_path / "runs" / document["confirm"]["run_id"]  # type: ignore[index]
    decided = json.loads((run / "decision.json").read_text())
    native = next(each for each in decided["candidates"] if each["name"] == "fp8_e4m3_ref_mixed_native")
    assert native["kv"]["effective"] == "bfloat16+fp8_e4m3"
    assert decided["policy"]["require"] == ["fp8_e4m3_ref_mixed_native"]


def test_a_format_that_no_engine_here_has_is_confirmed_as_reference(tmp_path: Path) -> None:
    assert search(tmp_path, "kv=[int4_ref]", FRAGILE) == 0
    document, folder = written(tmp_path)
    assert document["flags"] == ""
    assert document["confirm"]["notes"][0] == "Not confirmed natively: no engine dtype stores K and V so."  # type: ignore[index]
    assert "no engine dtype stores K and V so" in (folder / "search.md").read_text()


def test_nothing_that_passes_is_a_hold_and_no_gate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    everywhere = "engine.args.fragile=[[0,6.0],[1,6.0],[2,6.0],[3,6.0]]"
    assert search(tmp_path, "kv=[fp8_e4m3]", everywhere) == 3
    document, folder = written(tmp_path)
    assert document["confirm"] is None
    assert document["chosen"] is None
    (reason,) = document["reasons"]  # type: ignore[misc]
    assert str(reason).startswith("no mixed precision tried passes: with 3 of 4 units in BF16 ")
    assert "HOLD (exit status 3)" in capsys.readouterr().out
    assert (folder / "search.md").exists()


def test_a_held_gate_is_repaired_where_that_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(tmp_path, ONE, "kv=[fp8_e4m3]", FRAGILE, "gate.repair=true")) == 3  # what was held stays held
    printed = capsys.readouterr().out
    assert "HOLD (exit status 3)" in printed
    assert "--kv-cache-dtype-skip-layers 1" in printed


def test_a_gate_that_promotes_needs_no_repair(tmp_path: Path) -> None:
    assert main(arguments(tmp_path, ONE, "kv=[fp8_e4m3]", "gate.repair=true")) == 0
    assert not list(tmp_path.glob("runs/*-choose"))


def test_a_repair_that_cannot_be_leaves_the_status_of_the_gate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(tmp_path, ONE, "kv=[fp8_e4m3]", FRAGILE, "gate.repair=true", "search.max_passes=9")) == 3
    assert "kvquant-eval: no mixed precision was searched for fp8_e4m3: search.max_passes: at least 20" in (
        capsys.readouterr().err
    )


def test_what_is_confirmed_on_a_part_of_the_set_moves_no_alias_and_says_what_it_asked_for(
    found: tuple[Path, int, str],
) -> None:
    document, _ = written(found[0])
    run = found[0] / "runs" / document["confirm"]["run_id"]  # type: ignore[index]
    (note,) = document["confirm"]["notes"]  # type: ignore[index]
    assert note.startswith("The policy asks for 30 and 10; here for 15 turns and 5 with headroom a class")
    versions = [card.version for card in read_cards(run, log_texts=False) if card.version]
    assert "PROMOTE" in [version.decision for version in versions]
    assert [version.alias for version in versions] == [""] * len(versions)


def test_a_search_has_folds_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert search(tmp_path, "kv=[fp8_e4m3]", "golden.folds=[1]") == 2
    assert "golden.folds: all for a search, which has folds of its own, got [1]; set search." in capsys.readouterr().err


def test_an_interrupted_search_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: object) -> None:
        raise Interrupted(signal.SIGTERM)

    monkeypatch.setattr("kvquant_eval.cli.search.search", interrupted)
    assert search(tmp_path, "kv=[fp8_e4m3]") == 143
    assert capsys.readouterr().err == "kvquant-eval: SIGTERM; the same command uses again what was replayed\n"


def test_bad_input_is_one_line_and_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert search(tmp_path, "kv=[fp8_e4m3,fp8_e5m2]") == 2
    assert capsys.readouterr().err.splitlines() == [
        "kvquant-eval: kv: one candidate for a search, got fp8_e4m3, fp8_e5m2; such as kv=[fp8_e4m3]"
    ]
