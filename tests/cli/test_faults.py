"""Engines, disks and folders that fail under a whole gate: outcome, exit status and message (docs/faults.md)."""

from __future__ import annotations

import json
import multiprocessing
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvquant_eval.cli.main import main
from kvquant_eval.io import journal, report
from kvquant_eval.io.runfolder import RunFolder
from tests.fakes.cli import arguments
from tests.fakes.disk import full, read_only, small_disk

Said = tuple[int, str]
"""Exit status, and what stands on standard error."""
MIB = 2**20


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    """Run a gate on the fake engine in this process. Reports are drawn elsewhere."""
    monkeypatch.setattr(report, "write", lambda *_: None)

    def run(folder: Path, *overrides: str) -> Said:
        capsys.readouterr()
        return main(arguments(folder, *overrides)), capsys.readouterr().err

    return run


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Baseline and controls are run once for all candidates."""
    return tmp_path_factory.mktemp("shared")


def runs(folder: Path) -> list[RunFolder]:
    return [RunFolder(path) for path in sorted((folder / "runs").iterdir())]


def candidate(name: str) -> tuple[str, ...]:
    """A native FP8 candidate whose name plants a fault of the fake engine."""
    return ("kv=[]", f"+kv.{name}.dtype=fp8_e4m3")


@pytest.mark.parametrize(
    ("fault", "overrides", "status", "reason"),
    [
        ("does_not_start", (), 5, "engine, during open: RuntimeError: no memory for the KV cache; log "),
        ("dies_in_block_1", (), 5, "engine, during run: its process ended; log "),
        (
            "killed_for_memory",
            (),
            5,
            "engine, during run: its process ended (SIGKILL, by hand or for want of memory); ",
        ),
        ("hangs", ("engine.stall_s=2",), 5, "engine, during run: no token for 2 s; log "),
        ("fewer_replies", (), 5, "engine, during run: block 0: 16 replies asked for, got 14"),
        ("nan_logprobs", (), 4, "20 turns without a pair of scores, such as math_chain-00/0 (candidate: infra_error, "),
        ("preempts", (), 5, "1 preemptions, which change answers; raise engine.args.kv_cache_memory_bytes"),
    ],
)
def test_an_engine_that_fails(
    say: Callable[..., Said], shared: Path, fault: str, overrides: tuple[str, ...], status: int, reason: str
) -> None:
    assert say(shared, *candidate(fault), *overrides) == (status, "")
    (run,) = (run for run in runs(shared) if run.path.name.endswith(f"-{fault}"))  # two may begin in one second
    document = json.loads((run.path / "decision.json").read_text())
    assert document["exit_code"] == status
    assert reason in " | ".join(document["reasons"])
    assert run.finished


def test_a_disk_that_is_full_under_the_journal(say: Callable[..., Said], tmp_path: Path) -> None:
    with small_disk(tmp_path / "runs", 4 * MIB):
        with full(tmp_path / "runs", 64 * 1024):
            status, said = say(tmp_path)
        assert status == 2
        assert re.fullmatch(
            r"kvquant-eval: \S+: No space left on device; make room or correct the path; the same command goes on with "
            r"(\S+), and so does: kvquant-eval gate resume=\1\n",
            said,
        )
        assert not list((tmp_path / "runs").glob("*/decision.json"))
        assert say(tmp_path) == (0, "")
        assert len(runs(tmp_path)) == 1


def test_a_disk_that_is_full_under_the_report(
    say: Callable[..., Said], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All blocks are committed; then there is room for nothing."""
    with small_disk(tmp_path / "runs", 4 * MIB) as disk:

        def fill(path: Path, *_: Any) -> None:
            with full(disk, 0):
                (path / "report.html").write_bytes(bytes(10_000))

        with monkeypatch.context() as patch:
            patch.setattr(report, "write", fill)
            status, said = say(tmp_path)
        assert (status, said.count("\n")) == (2, 1)
        assert "No space left on device; make room or correct the path; the same command goes on with" in said
        assert not list((tmp_path / "runs").glob("*/decision.json"))
        assert say(tmp_path) == (0, "")
        (run,) = runs(tmp_path)
        assert run.arm("baseline").identity()["blocks_reused"] == 5


def test_a_folder_that_cannot_be_written(say: Callable[..., Said], tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    with read_only(tmp_path / "kept", tmp_path / "runs"):
        status, said = say(tmp_path)
    assert status == 2
    assert re.fullmatch(r"kvquant-eval: \S+: Read-only file system; make room or correct the path\n", said)


def test_tracking_that_fails_changes_no_decision(say: Callable[..., Said], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no database at all" * 100)
    status, said = say(tmp_path, "tracking=mlflow", f"tracking.uri=sqlite:///{tmp_path}/file")
    (run,) = runs(tmp_path)
    assert status == 0
    assert said.startswith("kvquant-eval: tracking.uri: a store that takes the runs, got sqlite:///")
    assert f"the decision stands: make the store reachable and run `kvquant-eval relog {run.path}`" in said
    assert said.count("\n") == 1
    assert run.finished
    assert "a store that takes the runs" in json.loads((run.path / "tracking.json").read_text())["error"]


def test_a_gate_that_is_out_of_time(say: Callable[..., Said], tmp_path: Path) -> None:
    status, said = say(tmp_path, "gate.max_minutes=0.0001")
    (run,) = runs(tmp_path)
    assert status == 4
    assert said == (
        f"kvquant-eval: stopped after 0.0001 minutes (gate.max_minutes); the same command goes on with {run.path}, "
        f"and so does: kvquant-eval gate resume={run.path}\n"
    )
    assert main(["relog", str(run.path)]) == 2
    assert main(["gate", f"resume={run.path}"]) == 0
    assert run.finished
    assert main(["relog", str(run.path)]) == 0


def test_a_second_gate_in_one_folder(
    say: Callable[..., Said], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    say(tmp_path, "gate.max_minutes=0.0001")
    (run,) = runs(tmp_path)
    with run.locked():
        capsys.readouterr()
        assert main(["gate", f"resume={run.path}"]) == 2
    assert capsys.readouterr().err == (
        f"kvquant-eval: {run.path}: one process at a time, got another one at work here; wait for it, "
        "or start a new run\n"
    )


def test_gates_that_start_together_get_folders_of_their_own(tmp_path: Path) -> None:
    """Two processes, one command: whoever comes second runs beside the first, and both decide."""
    context = multiprocessing.get_context("spawn")
    arguments(tmp_path)
    both = [context.Process(target=_gate, args=(tmp_path,)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(120)
    assert [process.exitcode for process in both] == [0, 0]
    assert len(runs(tmp_path)) == 2
    assert all(run.finished for run in runs(tmp_path))


def _gate(folder: Path) -> None:
    raise SystemExit(main(arguments(folder)))


def test_resume_takes_the_runs_own_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("pinned: {}\n")
    assert main(["gate", f"resume={tmp_path}/run", "gate=zero_flags"]) == 2
    assert capsys.readouterr().err == (
        "kvquant-eval: resume: a run goes on with its own configuration, got 'gate=zero_flags' beside it; "
        "leave it out\n"
    )


def test_a_damaged_journal_line_is_one_block_to_run_again(say: Callable[..., Said], tmp_path: Path) -> None:
    assert say(tmp_path) == (0, "")
    (run,) = runs(tmp_path)
    path = run.arm("fp8_e4m3").journal.path
    path.write_bytes(path.read_bytes().replace(b'"epoch":0', b'"epoch":1', 1))
    assert path.read_bytes().startswith(journal.HEADER.encode())
    (run.path / "tracking.json").unlink()
    assert say(tmp_path) == (0, "")
    assert run.arm("fp8_e4m3").identity()["blocks_reused"] == 4
    assert len(run.arm("fp8_e4m3").blocks()) == 5
