"""A gate that was broken off, however: it goes on in its folder and decides as if nothing had been."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvquant_eval.core.codec import DataError
from kvquant_eval.core.settings import Settings
from kvquant_eval.io import report
from kvquant_eval.io.runfolder import RunFolder
from kvquant_eval.pipeline import gate, regate, rehearse
from tests.fakes.gate import policy, settings, treatments, write_golden
from tests.fakes.kills import comparable

ARMS = ("baseline", "repeat", "placebo", "good")


@pytest.fixture(autouse=True)
def _decisions_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "write", lambda *_: None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, with its golden set beside it."""
    folder = tmp_path_factory.mktemp("whole")
    write_golden(folder / "golden")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "write", lambda *_: None)
        gate(settings(folder, treatments("good")))
    return folder


@pytest.fixture
def broken(whole: Path, tmp_path: Path) -> Callable[..., RunFolder]:
    """The run as it is when its process was killed with so many blocks of each arm committed."""
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)

    def cut(blocks: int = 2, arms: tuple[str, ...] = ARMS) -> RunFolder:
        (path,) = (tmp_path / "runs").iterdir()
        for name in ("tracking.json", "decision.json", "turns.parquet", "deltas.parquet", "fidelity.parquet"):
            (path / name).unlink()
        for name in arms:
            journal = RunFolder(path).arm(name).journal.path
            lines = journal.read_text().splitlines(keepends=True)
            ends = [i for i, line in enumerate(lines) if line.startswith('{"commit"')]
            journal.write_text("".join(lines[: ends[blocks - 1] + 1]))
        config = (path / "config.yaml").read_text()
        (path / "config.yaml").write_text(config.replace(str(whole), str(tmp_path)))
        return RunFolder(path)

    return cut


def made(tmp_path: Path, **changes: Any) -> Settings:
    return settings(tmp_path, treatments("good"), **changes)


def commits(run: RunFolder) -> dict[str, list[str]]:
    return {name: [line for line in run.arm(name).journal.path.open() if line.startswith('{"commit"')] for name in ARMS}


def decision(run: RunFolder) -> Any:
    return json.loads((run.path / "decision.json").read_text())


def test_the_same_command_goes_on_in_the_same_folder(
    broken: Callable[..., RunFolder], whole: Path, tmp_path: Path
) -> None:
    run = broken(2)
    before = commits(run)
    done = gate(made(tmp_path))
    assert done.folder.path == run.path
    assert len(list((tmp_path / "runs").iterdir())) == 1
    after = commits(run)
    assert all(after[name][: len(lines)] == lines for name, lines in before.items()), "committed blocks ran again"
    assert all(len(lines) == 5 for lines in after.values())
    (undisturbed,) = (whole / "runs").iterdir()
    assert comparable(decision(run)) == comparable(decision(RunFolder(undisturbed)))
    assert decision(run)["attempts"] == 1


def test_a_finished_run_is_not_gone_on_with(broken: Callable[..., RunFolder], tmp_path: Path) -> None:
    first = gate(made(tmp_path))  # of a finished one
    assert len(list((tmp_path / "runs").iterdir())) == 2
    assert first.document["attempts"] == 2


def test_a_run_killed_before_its_tracking_was_done_is_gone_on_with(
    broken: Callable[..., RunFolder], tmp_path: Path
) -> None:
    (path,) = (tmp_path / "runs").iterdir()
    (path / "tracking.json").unlink()
    done = gate(made(tmp_path))
    assert (done.folder.path, done.folder.finished, done.document["attempts"]) == (path, True, 1)


def test_a_run_folder_is_gone_on_with_by_name(broken: Callable[..., RunFolder], tmp_path: Path) -> None:
    run = broken(1)
    assert gate(made(tmp_path, reuse=False), run).folder.path == run.path
    with pytest.raises(DataError, match="a run that was broken off, got "):
        gate(made(tmp_path), run)


def test_never_begins_anew(broken: Callable[..., RunFolder], tmp_path: Path) -> None:
    run = broken(3)
    done = gate(made(tmp_path, reuse=False))
    assert done.folder.path != run.path
    assert all(done.folder.arm(name).identity()["blocks_reused"] == 0 for name in ARMS)


def test_another_engine_version_is_named_and_never_mixed_in(
    broken: Callable[..., RunFolder], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = broken(3)
    before = commits(run)
    newer = made(tmp_path, preparer="tests.fakes.engine:prepare_newer")
    with pytest.raises(
        DataError, match=r"the run that was begun, got versions\.vllm: none, now newer; restore that, or"
    ):
        gate(newer, run)
    done = gate(newer)
    assert f"{run.path} was broken off and is not taken up again: versions.vllm: none, now newer" in caplog.text
    assert done.folder.path != run.path
    assert commits(run) == before
    assert all(done.folder.arm(name).identity()["blocks_reused"] == 0 for name in ARMS)


def test_other_golden_turns_are_named_and_never_mixed_in(broken: Callable[..., RunFolder], tmp_path: Path) -> None:
    run = broken(3)
    other = write_golden(tmp_path / "other", prices=20)
    with pytest.raises(DataError, match=r"the run that was begun, got golden: \w{12}, now \w{12}; restore that, or"):
        gate(made(tmp_path, golden_path=str(other)), run)


def test_another_policy_is_another_run(broken: Callable[..., RunFolder], tmp_path: Path) -> None:
    run = broken(3)
    with pytest.raises(DataError, match="the run that was begun, got policy_sha256: "):
        gate(made(tmp_path, policy=policy(min_turns=20)), run)


def test_a_journal_of_another_arm_is_named_and_never_mixed_in(broken: Callable[..., RunFolder], tmp_path: Path) -> None:
    run = broken(3)
    shutil.copy(run.arm("baseline").journal.path, run.arm("good").journal.path)
    with pytest.raises(DataError, match=r"arms/good/replays\.jsonl: replays of the arm \w{12}, got block 0 of the arm"):
        gate(made(tmp_path))
    assert not (run.path / "decision.json").exists()


def test_a_plan_of_another_run_decides_nothing(broken: Callable[..., RunFolder], tmp_path: Path) -> None:
    (path,) = (tmp_path / "runs").iterdir()
    lines = (path / "plan.jsonl").read_text().splitlines(keepends=True)
    (path / "plan.jsonl").write_text("".join(lines[1:]))
    with pytest.raises(DataError, match=r"plan\.jsonl: the plan that was run, \w{12}, got \w{12}; restore it"):
        regate(RunFolder(path), made(tmp_path))


def test_files_of_others_are_named_and_not_read(
    broken: Callable[..., RunFolder], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = broken(3)
    (run.path / "notes.txt").write_text("mine")
    shutil.copytree(run.path / "arms" / "good", run.path / "arms" / "good (copy)")
    done = gate(made(tmp_path))
    for name in ("notes.txt", "arms/good (copy)"):
        assert f"{run.path / name}: not a file of this run; it is not read" in caplog.text
    assert set(done.document["arms"]) == set(ARMS)


def test_two_gates_never_share_a_folder(broken: Callable[..., RunFolder], tmp_path: Path) -> None:
    run = broken(3)
    with run.locked():
        with pytest.raises(DataError, match="one process at a time"):
            gate(made(tmp_path), run)
        with pytest.raises(DataError, match="one process at a time"):
            regate(run, made(tmp_path))
        assert gate(made(tmp_path)).folder.path != run.path


def test_a_gate_that_is_out_of_time_stops_and_goes_on(
    broken: Callable[..., RunFolder], whole: Path, tmp_path: Path
) -> None:
    run = broken(1, ("baseline", "good"))
    slow = made(tmp_path, args={"slow": 0.0})
    assert slow.max_minutes is None
    stopped = gate(made(tmp_path, max_minutes=1e-4))
    assert (stopped.document["decision"], stopped.document["exit_code"]) == ("INCONCLUSIVE", 4)
    reasons = " | ".join(stopped.document["reasons"])
    assert "good: baseline: 1 of 5 blocks are replayed" in reasons
    assert "good: good: 1 of 5 blocks are replayed" in reasons
    assert "stopped after 0.0001 minutes (gate.max_minutes); the same command goes on with" in stopped.warnings[0]
    assert f"kvquant-eval gate resume={run.path}" in stopped.warnings[0]
    assert not stopped.folder.finished
    again = gate(made(tmp_path))
    assert again.folder.path == stopped.folder.path == run.path
    (undisturbed,) = (whole / "runs").iterdir()
    assert comparable(decision(run)) == comparable(decision(RunFolder(undisturbed)))


def test_a_gate_out_of_time_ends_engines_at_work(tmp_path: Path) -> None:
    write_golden(tmp_path / "golden")
    stopped = gate(made(tmp_path, args={"faults": {"baseline": "hangs"}}, max_minutes=0.1))
    assert stopped.document["decision"] == "INCONCLUSIVE"
    assert stopped.document["arms"]["baseline"]["error"] == ""


def test_a_plan_says_what_there_is_to_do(broken: Callable[..., RunFolder], tmp_path: Path) -> None:
    broken(2, ("baseline", "good"))
    (tmp_path / "cache").mkdir(exist_ok=True)
    before = sorted(tmp_path.rglob("*"))
    plan = rehearse(made(tmp_path))
    assert sorted(tmp_path.rglob("*")) == before
    assert plan.todo == {"baseline": 3, "repeat": 0, "placebo": 0, "good": 3}
    assert (plan.blocks, plan.context) == (5, 4096)
    assert {name: (c.n_turns, c.n_conversations, c.n_skipped) for name, c in plan.classes.items()} == {
        "math_chain": (20, 10, 0),
        "faq": (20, 10, 0),
    }
    assert plan.minutes is not None
    assert 0 < plan.minutes < 1
    assert (plan.power.chance, plan.power.held, plan.power.source) == (1.0, 0.0, "measured")


def test_a_plan_says_why_a_gate_could_not_promote(tmp_path: Path) -> None:
    write_golden(tmp_path / "golden")
    short = rehearse(made(tmp_path, args={"max_model_len": 150}))
    assert (short.power.chance, short.classes["math_chain"].n_skipped) == (0.0, 10)
    assert short.power.advice[0] == "math_chain: 10 turns skipped in the hardest class"
    few = rehearse(made(tmp_path, policy=policy(min_turns=200)))
    assert few.power.advice == ("golden set: at least 200 turns compared, got 40",)
    assert few.minutes is None
    assert few.todo == dict.fromkeys(ARMS, 5)


def test_an_engine_that_makes_headway_is_started_again_and_again(tmp_path: Path) -> None:
    """Dead after every block, with one retry: five blocks, five deaths."""
    write_golden(tmp_path / "golden")
    run = gate(settings(tmp_path, treatments("dies_in_every_block"), retries=1))
    assert run.document["decision"] == "PROMOTE"
    assert run.document["arms"]["dies_in_every_block"]["replays"] == 80


def test_slow_is_not_dead(tmp_path: Path) -> None:
    write_golden(tmp_path / "golden")
    run = gate(settings(tmp_path, treatments("plods"), stall_s=2.0, block_requests=80))
    assert run.document["decision"] == "PROMOTE"


def test_nothing_is_left_of_a_gate_whose_input_was_bad(tmp_path: Path) -> None:
    write_golden(tmp_path / "golden")
    with pytest.raises(DataError, match="no such model"):
        gate(made(tmp_path, preparer="tests.fakes.engine:refuse"))
    assert not (tmp_path / "runs").exists()
    assert list((tmp_path / "cache").iterdir()) == []
