"""``io.tracking`` on a database file: killed, crowded, locked, on a full disk and on one that cannot be written."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from kvquant_eval.core.codec import DataError
from kvquant_eval.core.settings import TrackingSettings
from kvquant_eval.io import tracking
from kvquant_eval.io.clock import Clock, locked
from kvquant_eval.io.tracking import TrackingError, log
from tests.fakes.disk import full, read_only, small_disk
from tests.fakes.mlstore import Corner, log_and_die
from tests.fuzz.cases import CASES

CALLS = 25
"""Of MLflow's client in one undisturbed log."""
NUMBERS = count(1)
KIB = 1024


@pytest.fixture(scope="module")
def process() -> Any:
    """Processes that have imported MLflow already, and nothing else of this one."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["mlflow", "mlflow.store.tracking.sqlalchemy_store", "tests.fakes.mlstore"])
    return context.Process


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("undisturbed")
    corner = corner_in(folder)
    log(corner.run_folder(folder), corner.settings())
    return corner.holds()


def corner_in(folder: Path) -> Corner:
    return Corner(f"sqlite:///{folder}/mlflow.db", next(NUMBERS))


@pytest.fixture
def corner(tmp_path: Path) -> Corner:
    """One of a database that is not there yet."""
    return corner_in(tmp_path)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a database that is there."""
    folder = tmp_path_factory.mktemp("database")
    corner = corner_in(folder)
    log(corner.run_folder(folder), corner.settings())
    return folder


def refusal(folder: Path, settings: TrackingSettings) -> str:
    """The reason in the one line that a log which cannot be done ends in."""
    with pytest.raises(TrackingError) as caught:
        log(folder, settings)
    line = re.fullmatch(
        re.escape(f"tracking.uri: a store that takes the runs, got {settings.uri} (")
        + "(.*)"
        + re.escape(f"); the decision stands: make the store reachable and run `kvquant-eval relog {folder}`"),
        str(caught.value),
    )
    assert line
    return line[1]


@pytest.mark.parametrize("calls", range(0, CALLS, 1 if CASES >= 10_000 else 3))
def test_a_killed_log_is_completed(process: Any, database: Path, undisturbed: Any, tmp_path: Path, calls: int) -> None:
    corner = corner_in(database)
    folder = corner.run_folder(tmp_path)
    killed = process(target=log_and_die, args=(folder, corner.settings(), calls))
    killed.start()
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    log(folder, corner.settings())
    assert corner.holds() == undisturbed
    assert corner.open_runs() == []


def test_a_log_has_no_more_calls(process: Any, corner: Corner, tmp_path: Path) -> None:
    whole = process(target=log_and_die, args=(corner.run_folder(tmp_path), corner.settings(), CALLS))
    whole.start()
    whole.join()
    assert whole.exitcode == 0


def test_a_database_that_was_half_made_is_made_anew(
    process: Any, corner: Corner, undisturbed: Any, tmp_path: Path
) -> None:
    folder = corner.run_folder(tmp_path)
    killed = process(target=log, args=(folder, corner.settings()))
    killed.start()
    while not any(path.stat().st_size > 100 * KIB for path in tmp_path.glob(f"{tracking.NEW_DATABASE}*/mlflow.db")):
        assert killed.is_alive()
        time.sleep(0.001)
    os.kill(killed.pid, signal.SIGKILL)
    killed.join()
    assert not (tmp_path / "mlflow.db").exists()
    log(folder, corner.settings())
    assert corner.holds() == undisturbed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mlartifacts", "mlflow.db", "run"]


def test_an_empty_file_is_no_database_yet(corner: Corner, undisturbed: Any, tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").touch()
    log(corner.run_folder(tmp_path), corner.settings())
    assert corner.holds() == undisturbed


def test_four_gates_start_one_database(process: Any, corner: Corner, tmp_path: Path) -> None:
    names = [f"run-{n}" for n in range(4)]
    gates = [process(target=log, args=(corner.run_folder(tmp_path, name), corner.settings())) for name in names]
    for gate in gates:
        gate.start()
    for gate in gates:
        gate.join()
    assert [gate.exitcode for gate in gates] == [0] * 4
    found = corner.holds()
    assert len(found["runs"]) == 8
    assert {run[0] for run in found["runs"]} == {"FINISHED"}
    assert [version[0] for version in found["versions"]] == [1, 2, 3, 4]
    assert [list(names) for names in found["aliases"]] == [["kv-fp8-e4m3-approved"]]
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        names = [name for (name,) in connection.execute("SELECT name FROM experiments ORDER BY experiment_id")]
    assert names == ["Default", corner.settings().experiment]


def test_one_folder_is_logged_once(process: Any, database: Path, undisturbed: Any, tmp_path: Path) -> None:
    corner = corner_in(database)
    folder = corner.run_folder(tmp_path)
    both = [process(target=log, args=(folder, corner.settings())) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert [one.exitcode for one in both] == [0, 0]
    assert corner.holds() == undisturbed


def test_a_writer_that_ends_is_waited_for(process: Any, database: Path, undisturbed: Any, tmp_path: Path) -> None:
    corner = corner_in(database)
    waiting = process(target=log, args=(corner.run_folder(tmp_path), corner.settings()))
    with closing(sqlite3.connect(database / "mlflow.db", isolation_level=None)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        waiting.start()
        waiting.join(timeout=2)
        assert waiting.is_alive()
        writer.execute("COMMIT")
    waiting.join()
    assert waiting.exitcode == 0
    assert corner.holds() == undisturbed


def test_a_writer_that_does_not_end_is_not(database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "DATABASE_WAIT_S", 0.1)
    corner = corner_in(database)
    with closing(sqlite3.connect(database / "mlflow.db", isolation_level=None)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        assert refusal(corner.run_folder(tmp_path), corner.settings()) == "database is locked"


def test_another_gate_is_not_waited_for_without_end(database: Path, tmp_path: Path) -> None:
    corner = corner_in(database)
    with locked(database, Clock("nobody", 1)):
        reason = refusal(corner.run_folder(tmp_path), corner.settings(timeout_s=0.2))
    assert reason == "tracking.timeout_s = 0.2 is over"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", 4096 * KIB) as path:
        yield path


def test_no_room_for_the_database(disk: Path, undisturbed: Any, tmp_path: Path) -> None:
    corner = corner_in(disk)
    folder = corner.run_folder(tmp_path)
    with full(disk, 512 * KIB):
        assert "full" in refusal(folder, corner.settings())
        assert [path.name for path in disk.iterdir()] == ["ballast"]
    log(folder, corner.settings())
    assert corner.holds() == undisturbed


@pytest.mark.parametrize("left", [0, 8, 16, 32, 64])
def test_no_room_for_the_runs(disk: Path, undisturbed: Any, tmp_path: Path, left: int) -> None:
    first = corner_in(disk)
    log(first.run_folder(tmp_path, "first"), first.settings())
    corner = corner_in(disk)
    folder = corner.run_folder(tmp_path)
    with full(disk, left * KIB):
        assert re.search("full|No space left on device|disk I/O error", refusal(folder, corner.settings()))
    log(folder, corner.settings())
    assert corner.holds() == undisturbed
    assert corner.open_runs() == []


@pytest.mark.parametrize(("there", "reason"), [(False, "Read-only file system"), (True, "readonly database")])
def test_a_folder_that_cannot_be_written(database: Path, tmp_path: Path, there: bool, reason: str) -> None:
    (tmp_path / "empty").mkdir()
    with read_only(database if there else tmp_path / "empty", tmp_path / "mounted") as mounted:
        corner = corner_in(mounted)
        assert reason in refusal(corner.run_folder(tmp_path), corner.settings())


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan")])
def test_the_time_is_a_number_of_seconds(seconds: float) -> None:
    with pytest.raises(DataError, match=r"^tracking\.timeout_s: above 0 and up to 604800, got "):
        TrackingSettings(uri="", experiment="", timeout_s=seconds)
