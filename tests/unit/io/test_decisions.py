"""What is read back from a run folder is sound, or refused in one line: ``io.decisions``, ``io.tables``, ``relog``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from kvquant_eval.cli.config import compose
from kvquant_eval.cli.main import main
from kvquant_eval.core.codec import DataError
from kvquant_eval.core.document import SCHEMA_VERSION
from kvquant_eval.io import tables
from kvquant_eval.io.decisions import read_decision
from kvquant_eval.io.runcards import read_cards
from kvquant_eval.pipeline import gate
from tests.fakes import decided
from tests.fakes.gate import reference, settings, treatments, write_golden

REGATE = "restore the file, or write it again with `kvquant-eval regate`"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return decided.run("org/model", tmp_path / "run", decision="HOLD", drop=7.0)


def refused(folder: Path, log_texts: bool = False) -> str:
    """The line that the folder is refused with, without the folder."""
    with pytest.raises(DataError) as caught:
        read_cards(folder, log_texts)
    assert str(caught.value).startswith(f"{folder}/")
    return str(caught.value).removeprefix(f"{folder}/")


def change(folder: Path, *path: Any, to: Any) -> None:
    """Set one value of the decision."""
    document = inner = json.loads((folder / "decision.json").read_text())
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = to
    (folder / "decision.json").write_text(json.dumps(document))


def test_the_decision_of_a_gate_is_read_whole(tmp_path: Path) -> None:
    write_golden(tmp_path / "golden")
    run = gate(settings(tmp_path, {**treatments("good", "dies_at_start"), **reference("ref")}))
    document = read_decision(run.folder.path / "decision.json")
    assert document == run.document
    found = tables.read(run.folder.path)
    assert {name: table.attrs["schema_version"] for name, table in found.items()} == {
        "turns": SCHEMA_VERSION,
        "deltas": SCHEMA_VERSION,
    }


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "a decision in strict JSON, got EOF while parsing a value at line 1 column 0"),
        ("{", "a decision in strict JSON, got EOF while parsing an object at line 1 column 1"),
        ('{"schema_version": NaN}', "a decision in strict JSON, got expected value at line 1 column 20"),
        ("[" * 1000, "a decision in strict JSON, got recursion limit exceeded at line 1 column 202"),
        ("[]", "a JSON object, got []"),
    ],
)
def test_what_is_no_decision_is_one_line(folder: Path, text: str, line: str) -> None:
    (folder / "decision.json").write_text(text)
    assert refused(folder) == f"decision.json: {line}; {REGATE}"


def test_no_decision_at_all(folder: Path) -> None:
    (folder / "decision.json").unlink()
    assert (
        refused(folder) == "decision.json: a decision, got No such file or directory; name the folder of a decided run"
    )


@pytest.mark.parametrize(("version", "shown"), [(2, "2"), ("1", "1"), (None, "none")])
def test_another_schema_version_is_refused(folder: Path, version: Any, shown: str) -> None:
    change(folder, "schema_version", to=version)
    assert refused(folder) == (
        f"decision.json: schema version 1, got {shown}; use the kvquant-eval that wrote it (or regate)"
    )


CANDIDATE = ("candidates", 0)
SCORE = (*CANDIDATE, "classes", "math", "scores", "gl_span")
MATH = "candidates.0.classes.math.scores.gl_span"
WORDS = "Input should be 'PROMOTE', 'HOLD', 'INCONCLUSIVE' or 'INVALID'"
UTC = "Value error, a time in UTC, such as 2026-01-31T12:00:00+00:00"


@pytest.mark.parametrize(
    ("path", "value", "line"),
    [
        (("schema_version",), True, "schema_version: Input should be a valid integer, got 'True'"),
        (("candidates",), {}, "candidates: Input should be a valid list, got '{}'"),
        (("post_hoc",), "false", "post_hoc: Input should be a valid boolean, got 'false'"),
        ((*CANDIDATE, "decision"), "promote", f"candidates.0.decision: {WORDS}, got 'promote'"),
        ((*CANDIDATE, "name"), "../x", "candidates.0.name: Value error, a name that can be a folder's, got '../x'"),
        ((*SCORE, "margin"), 0, f"{MATH}.margin: Input should be greater than 0, got '0'"),
        ((*SCORE, "ci_upper"), "1", f"{MATH}.ci_upper: Input should be a valid number, got '1'"),
        (("created_at",), "2026-01-01 00:00:00", f"created_at: {UTC}, got '2026-01-01 00:00:00'"),
        (("created_at",), "2026-01-01T00:00:00+02:00", f"created_at: {UTC}, got '2026-01-01T00:00:00+02:00'"),
        (("arms", "a\nb\x1b[2J"), 1, "arms.a\\nb\\x1b[2J: Input should be a valid dictionary, got '1'"),
    ],
)  # fmt: skip
def test_a_value_that_readers_cannot_use_is_named(folder: Path, path: tuple[Any, ...], value: Any, line: str) -> None:
    change(folder, *path, to=value)
    assert refused(folder) == f"decision.json: {line}; {REGATE}"


def test_a_missing_key_is_named(folder: Path) -> None:
    change(folder, "golden", to={"name": "agents"})
    assert refused(folder).startswith("decision.json: golden.version: Field required, got ")


def test_an_infinite_number_that_nobody_reads_is_refused_too(folder: Path) -> None:
    text = (folder / "decision.json").read_text()
    (folder / "decision.json").write_text(text.replace('"exit_code": 0', '"exit_code": 1e999'))
    assert "Out of range float values" in refused(folder)


def test_keys_that_nobody_reads_are_free(folder: Path) -> None:
    change(folder, "a_note", to={"by": "another tool"})
    change(folder, "exit_code", to=None)
    assert len(read_cards(folder, log_texts=False)) == 2


Damage = Callable[[Path], Any]


def table(**columns: Any) -> Damage:
    """A table of two rows with these columns changed, None: left out."""
    whole = {
        "arm": "a",
        "turn_id": "t",
        "workload": "w",
        "turn_index": 0,
        "scorer": "s",
        "outcome": "ok",
        "points": 1.0,
    }
    kept = {name: value for name, value in {**whole, **columns}.items() if value is not None}
    return lambda path: tables.save(pd.DataFrame([kept, kept]), path)


def of_version(version: Any) -> Damage:
    def write(path: Path) -> None:
        frame = pd.read_parquet(path)
        frame.attrs["schema_version"] = version
        frame.to_parquet(path)

    return write


def flip(path: Path) -> None:
    """One byte in the middle of the data, which parquet without checksums would not notice."""
    data = bytearray(path.read_bytes())
    data[40] ^= 0x10
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (Path.unlink, "a parquet table, got No such file or directory"),
        (lambda path: path.write_bytes(b""), "a parquet table, got Could not open Parquet input source '<Buffer>'"),
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "a parquet table, got "),
        (flip, "a parquet table, got "),
        (of_version(2), "schema version 1, got 2; "),
        (of_version(None), "schema version 1, got None; "),
        (table(points=None), "a column 'points', got none; "),
        (table(points="many"), "the columns' types, got could not convert string to float: 'many'"),
        (table(turn_index="first"), "the columns' types, got invalid literal for int() with base 10: 'first'"),
        (table(outcome=float("nan")), "a value in every row of column 'outcome', got none; "),
    ],
)
def test_a_damaged_table_is_one_line(folder: Path, damage: Damage, line: str) -> None:
    damage(folder / "turns.parquet")
    found = refused(folder)
    assert found.startswith(f"turns.parquet: {line}")
    assert found.endswith(f"; write it again with `kvquant-eval regate {folder}`")
    assert "\n" not in found


def test_turns_without_any_points_are_a_table(folder: Path) -> None:
    frame = pd.read_parquet(folder / "turns.parquet").assign(points=None)
    tables.save(frame, folder / "turns.parquet")
    assert all(card.scores["score"].isna().all() for card in read_cards(folder, log_texts=False))


@pytest.mark.parametrize(("config", "line"), [
    ({"pinned": {}}, "config.yaml: model: Field required, got "),
    ({"pinned": {}, "model": {"source": 3}}, "config.yaml: model.source: Input should be a valid string, got '3'"),
    ({}, "config.yaml: the configuration of a run, got one without 'pinned'; name a run folder"),
])  # fmt: skip
def test_a_damaged_configuration_is_one_line(folder: Path, config: Any, line: str) -> None:
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    assert refused(folder).startswith(line)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("decision.json", Path.unlink),
        ("decision.json", lambda path: path.write_text("{}")),
        ("turns.parquet", flip),
        ("deltas.parquet", Path.unlink),
        ("config.yaml", Path.unlink),
        ("config.yaml", lambda path: path.write_text("a: [")),
    ],
)
def test_relog_of_a_damaged_folder_is_one_line_and_status_2(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str, damage: Damage
) -> None:
    config = compose([f"tracking.uri=sqlite:///{folder.parent}/mlflow.db"])
    (folder / "config.yaml").write_text(yaml.safe_dump({**config, "pinned": {}}))
    damage(folder / name)
    assert main(["relog", str(folder)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"kvquant-eval: {folder / name}: ")
    assert err.count("\n") == 1
    assert not (folder.parent / "mlflow.db").exists()
