"""Signals, terminals that close, pipes that nobody reads: one line, the right status, nothing left running."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvquant_eval.io.runfolder import RunFolder
from tests.fakes.cli import command
from tests.fakes.kills import comparable, marked, wait_until

SLOW = "++engine.args.slow=0.5"
MARK = "KVQUANT_TEST_MARK"
PACE = ("++engine.args.slow=0.2", "engine.retries=2")
ARMS = ("baseline", "repeat", "placebo", "fp8_e4m3")


def committed(folder: Path) -> bool:
    return any('"commit"' in path.read_text() for path in folder.glob("runs/*/arms/*/replays.jsonl"))


def run_of(folder: Path) -> RunFolder:
    (path,) = (folder / "runs").iterdir()
    return RunFolder(path)


@pytest.fixture
def begun(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """A slow gate with its first block committed, in a session of its own."""

    def start(before: Callable[[], object] = lambda: None, **options: object) -> subprocess.Popen[str]:
        def prepare() -> None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background job ignores it
            before()

        process = subprocess.Popen(
            command(tmp_path, SLOW),
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},  # type: ignore[call-overload]
            text=True,
            start_new_session=True,
            preexec_fn=prepare,
            env={**os.environ, MARK: str(tmp_path)},
        )
        assert wait_until(lambda: committed(tmp_path) or process.poll() is not None, 60)
        assert process.poll() is None, process.communicate()
        return process

    return start


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_is_one_line_that_says_how_to_go_on(
    begun: Callable[..., subprocess.Popen[str]], tmp_path: Path, number: signal.Signals
) -> None:
    process = begun()
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=30)
    run = run_of(tmp_path)
    assert process.returncode == 128 + number
    assert [line.split()[0] for line in stdout.splitlines()] == ["under", "smallest", "20"], "what a gate begins with"
    assert stderr == (
        f"kvquant-eval: {number.name}; the same command goes on with {run.path}, and so does: "
        f"kvquant-eval gate resume={run.path}\n"
    )
    assert wait_until(lambda: marked(MARK, str(tmp_path)) == [], 10)
    assert not (run.path / "decision.json").exists()
    resume = [sys.executable, "-m", "kvquant_eval.cli.main", "gate", f"resume={run.path}"]
    done = subprocess.run(resume, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert sum(run.arm(name).identity()["blocks_reused"] for name in ARMS) >= 1
    assert run.finished


def test_a_second_signal_ends_it_at_once(begun: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    process = begun()
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode in (130, 143, -signal.SIGTERM)
    assert wait_until(lambda: marked(MARK, str(tmp_path)) == [], 10)


def test_a_terminal_that_closes(begun: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    """Its own session, with a terminal that goes away: nobody is left to read a line."""
    ours, theirs = pty.openpty()
    process = begun(stdin=theirs, stdout=theirs, stderr=theirs, before=take_terminal)
    os.close(theirs)
    os.close(ours)
    assert process.wait(30) == 128 + signal.SIGHUP
    assert wait_until(lambda: marked(MARK, str(tmp_path)) == [], 10)


def take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_nohup_is_heeded(begun: Callable[..., subprocess.Popen[str]]) -> None:
    process = begun(before=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    process.send_signal(signal.SIGHUP)
    time.sleep(1)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 143


def test_a_reader_that_is_gone_changes_no_decision(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command(tmp_path), stdout=writing, stderr=subprocess.PIPE, text=True, timeout=120)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")
    assert run_of(tmp_path).finished


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("whole")
    done = subprocess.run(command(folder, *PACE), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return decision(folder)


def decision(folder: Path) -> Any:
    return comparable(json.loads((run_of(folder).path / "decision.json").read_text()))


def start(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command(folder, *PACE), stdout=subprocess.DEVNULL, env={**os.environ, MARK: str(folder)})


def wait_for_blocks(process: subprocess.Popen[bytes], folder: Path, blocks: int) -> None:
    def count() -> int:
        return sum(path.read_text().count('"commit"') for path in folder.glob("runs/*/arms/*/replays.jsonl"))

    assert wait_until(lambda: count() >= blocks or process.poll() is not None, 60)
    assert process.poll() is None


def test_a_gate_killed_twice(tmp_path: Path, undisturbed: Any) -> None:
    for blocks in (1, 6):
        process = start(tmp_path)
        wait_for_blocks(process, tmp_path, blocks)
        process.kill()
        assert process.wait(30) == -signal.SIGKILL
        assert wait_until(lambda: marked(MARK, str(tmp_path)) == [], 10)
    assert start(tmp_path).wait(120) == 0
    assert decision(tmp_path) == undisturbed


def test_engines_killed_twice(tmp_path: Path, undisturbed: Any) -> None:
    process = start(tmp_path)
    for blocks in (1, 6):
        wait_for_blocks(process, tmp_path, blocks)
        engines = [pid for pid in marked(MARK, str(tmp_path)) if pid != process.pid]
        assert engines
        for pid in engines:
            os.kill(pid, signal.SIGKILL)
    assert process.wait(120) == 0
    assert decision(tmp_path) == undisturbed
