"""Gates on real vLLM, killed with -9 at random moments: every one must decide as an undisturbed gate does.

``python -m benchmarks.soak [kills [seed]]``: first one gate over the whole golden set to its end. Then for each kill a
copy of it that is broken off with some blocks left, run until it is killed (the gate itself, an arm's process, or an
engine core; every third time again in the next start), and run to its end. Checked each time: the decision, but for
ids, times and attempts; that every committed block still stands as it was written; no process left; no MLflow run
RUNNING. Exits with the number of gates that failed.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from kvquant_eval.cli.config import home
from kvquant_eval.io.runfolder import RunFolder
from tests.fakes.kills import comparable, marked, wait_until

MARK = "KVQUANT_SOAK"
LAST_FILES = (
    "tracking.json",
    "decision.json",
    "turns.parquet",
    "deltas.parquet",
    "fidelity.parquet",
    "report.md",
    "report.html",
    "summary.md",
    "junit.xml",
)
FIRST_GUESS_S = 30.0
Command = Callable[[Path], Sequence[str]]
"""The command line of a gate with its runs in ``folder/runs`` and its MLflow in ``folder/mlflow.db``."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """``kills`` says what was killed and when (seconds after its start); ``wrong`` what was not as it must be;
    ``last_run`` is how long the run took that came to its end (seconds).
    """

    kills: tuple[str, ...]
    seconds: float
    last_run: float
    committed: int
    wrong: tuple[str, ...]


def main(kills: str = "30", seed: str = "0") -> int:
    """Print a line a trial, then the count."""
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        done = []
        for trial in soak(whole_set, Path(folder), int(kills), int(seed)):
            done.append(trial)
            verdict = "; ".join(trial.wrong) or "equal"
            killed = ", then ".join(trial.kills)
            print(
                f"{len(done)}: {killed}; {trial.committed} blocks stood; {trial.seconds:.0f} s: {verdict}", flush=True
            )
        failed = sum(bool(trial.wrong) for trial in done)
        print(f"{len(done) - failed} of {len(done)} decisions equal, {sum(len(t.kills) for t in done)} kills")
        return failed


def whole_set(folder: Path) -> list[str]:
    """The default gate on all 242 turns, in small blocks so that there are many commits."""
    return gate(folder, "block_requests=16", "gate.allow_underpowered=true")


def gate(folder: Path, *overrides: str) -> list[str]:
    """A gate whose runs and MLflow are in ``folder``."""
    own = [f"runs_dir={folder}/runs", f"tracking.uri=sqlite:///{folder}/mlflow.db", f"cache_dir={home()}/.cache"]
    return [sys.executable, "-m", "kvquant_eval.cli.main", "gate", *own, *overrides]


def soak(command: Command, folder: Path, kills: int, seed: int = 0, left: int = 2) -> Iterator[Trial]:
    """One trial a kill; ``left`` blocks of each of two arms are to be run in each."""
    start(command, folder / "whole").wait()
    yield from trials(command, folder / "whole", folder, kills, seed, left)


def trials(command: Command, whole: Path, folder: Path, kills: int, seed: int, left: int) -> Iterator[Trial]:
    """Break the whole run off again and again. The moment of a kill is drawn from as long as the last run took that
    was not killed: the machine is not always equally fast.
    """
    chance, expected, duration = random.Random(seed), decision(whole), FIRST_GUESS_S
    for index in range(kills):
        trial = Soak(command, whole, expected, chance, left, duration).trial(folder / "trial", 1 + (index % 3 == 2))
        if trial.kills and trial.kills[-1].startswith("gate"):  # else all was done before the last run
            duration = trial.last_run
        yield trial


@dataclass(frozen=True)
class Soak:
    """A finished gate to break off; ``duration`` is how long the rest takes undisturbed (seconds)."""

    command: Command
    whole: Path
    expected: dict[str, Any]
    chance: random.Random
    left: int
    duration: float

    def trial(self, folder: Path, kills: int) -> Trial:
        """Kill a gate so often, let it come to its end, and look at what it left."""
        began = time.monotonic()
        broken(self.whole, folder, self.chance, self.left)
        done, wrong, stood = [], [], set[str]()
        for _ in range(kills):
            process = start(self.command, folder)
            done.append(kill(process, folder, self.chance.uniform(0, 0.9 * self.duration), self.chance))
            stood |= commits(folder)
            process.wait()
            wrong += [] if wait_until(lambda: not marked(MARK, str(folder)), 10) else ["processes are left"]
        last = time.monotonic()
        start(self.command, folder).wait()
        last_run = time.monotonic() - last
        found = decision(folder)
        wrong += [f"the decision differs in {key}" for key in self.expected if self.expected[key] != found.get(key)]
        wrong += [] if stood <= commits(folder) else ["a committed block ran again"]
        wrong += [f"MLflow run {name} is left RUNNING" for name in running(folder)]
        wrong += ["processes are left"] if marked(MARK, str(folder)) else []
        shutil.rmtree(folder)
        return Trial(
            kills=tuple(filter(None, done)),
            seconds=time.monotonic() - began,
            last_run=last_run,
            committed=len(stood),
            wrong=tuple(wrong),
        )


def start(command: Command, folder: Path) -> subprocess.Popen[bytes]:
    """The gate, and whatever it starts, with a mark in the environment; what it prints is in ``output.txt``."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_")}
    with (folder / "output.txt").open("ab") as output:
        return subprocess.Popen(
            command(folder),
            stdout=output,
            stderr=output,
            env={**environment, MARK: str(folder)},
            start_new_session=True,
        )


def broken(whole: Path, folder: Path, chance: random.Random, left: int) -> None:
    """The whole run as a kill leaves it when ``left`` blocks of each of two arms were still to be run."""
    (source,) = (whole / "runs").iterdir()
    target = folder / "runs" / source.name
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(*LAST_FILES))
    config = (target / "config.yaml").read_text(encoding="utf-8")
    (target / "config.yaml").write_text(config.replace(str(whole), str(folder)), encoding="utf-8")
    for path in chance.sample(sorted((target / "arms").iterdir()), 2):
        lines = (path / "replays.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
        ends = [number for number, line in enumerate(lines) if line.startswith('{"commit"')]
        torn = lines[ends[-left - 1] + 1 :][: chance.randrange(2)]
        (path / "replays.jsonl").write_text("".join([*lines[: ends[-left - 1] + 1], *torn]), encoding="utf-8")


def kill(process: subprocess.Popen[bytes], folder: Path, after: float, chance: random.Random) -> str:
    """Kill -9 the gate or something that it started; say what and when (empty: it had ended by then)."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(after)
        return ""
    others = [pid for pid in marked(MARK, str(folder)) if pid != process.pid]
    victim = chance.choice(others) if others and chance.random() < 0.5 else process.pid
    name = "gate" if victim == process.pid else _name(victim)
    with contextlib.suppress(ProcessLookupError):
        os.kill(victim, signal.SIGKILL)
    return f"{name} at {after:.1f} s"


def _name(pid: int) -> str:
    try:
        command = " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return "process"
    return "arm" if "kvquant_eval.worker" in command else f"child of an arm ({command[:40]})"


def commits(folder: Path) -> set[str]:
    """Every commit line: it has the seconds that its block took, so that of a block that ran again differs."""
    return {
        f"{path.parent.name}: {line}"
        for path in folder.glob("runs/*/arms/*/replays.jsonl")
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
        if line.startswith('{"commit"') and line.endswith("\n")
    }


def decision(folder: Path) -> dict[str, Any]:
    """The decision of the first run; empty where there is none."""
    (path, *_) = sorted((folder / "runs").iterdir())
    try:
        return comparable(json.loads((RunFolder(path).path / "decision.json").read_text(encoding="utf-8")))
    except OSError:
        return {}


def running(folder: Path) -> list[str]:
    """MLflow runs that nobody ended, deleted ones too."""
    from mlflow import MlflowClient
    from mlflow.entities import ViewType

    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    found = client.search_runs(experiments, "attributes.status = 'RUNNING'", run_view_type=ViewType.ALL)
    return [run.info.run_name for run in found]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
