"""Real vLLM on a small cut of the golden set: a few conversations of each class, the smallest that show something."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kvquant_eval.cli.config import data_folder, home
from kvquant_eval.io.golden import MANIFEST, pin
from tests.fakes.fp8 import E4M3, E5M2, NATIVE

CONVERSATIONS = 2
"""Conversations a class: bounds need two."""
MOST_TOKENS = 64
"""Of a reply that the model writes: what is shown here does not need longer ones."""
FOUR = f"kv=[{E4M3},{E5M2},int8_ref,nvfp4_ref]"
needs_native_fp8 = pytest.mark.skipif(not NATIVE, reason="the attention of this CPU stores no FP8: no AVX-512")
SMALL = (
    "gate=custom",
    "gate.min_turns=5",
    "gate.min_headroom=1",
    "gate.hold_level=0.5",
    "gate.allow_underpowered=true",
    f"engine.args.kv_cache_memory_bytes={2**30}",
)
"""Half of the default's cache: two gates at a time have four engines."""


@dataclass(frozen=True)
class Run:
    """A finished ``kvquant-eval gate``."""

    status: int
    output: str
    folder: Path

    @property
    def decision(self) -> dict[str, Any]:
        return json.loads((self.folder / "decision.json").read_text())


@pytest.fixture(scope="session")
def small_golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first conversations of each class, pinned as a set of their own."""
    source, target = data_folder("golden"), tmp_path_factory.mktemp("golden")
    for workload in ("faq", "coding", "tool_calling", "long_context", "math_chain"):
        lines = (source / workload / "agents-v2.jsonl").read_text(encoding="utf-8").splitlines()
        kept = list(dict.fromkeys(json.loads(line)["conversation_id"] for line in lines))[:CONVERSATIONS]
        (target / workload).mkdir()
        chosen = [turn for turn in map(json.loads, lines) if turn["conversation_id"] in kept]
        short = [{**turn, "max_tokens": min(turn["max_tokens"], MOST_TOKENS)} for turn in chosen]
        (target / workload / "small.jsonl").write_text("".join(f"{json.dumps(t)}\n" for t in short), encoding="utf-8")
    (target / MANIFEST).write_text(json.dumps(pin(target, "small", "1", {})))
    return target


@pytest.fixture(scope="session")
def command(small_golden: Path) -> Callable[..., list[str]]:
    """The command line of a gate on the small set, with its runs in ``folder``."""

    def build(folder: Path, *overrides: str, verb: str = "gate") -> list[str]:
        common = [
            f"golden.path={small_golden}",
            f"runs_dir={folder}/runs",
            f"tracking.uri=sqlite:///{folder}/mlflow.db",
        ]
        common += [f"cache_dir={home()}/.cache", *SMALL]
        return [sys.executable, "-m", "kvquant_eval.cli.main", verb, *common, *overrides]

    return build


@pytest.fixture(scope="session")
def gate(command: Callable[..., list[str]]) -> Callable[..., Run]:
    """Run a gate to its end in a process of its own."""

    def run(folder: Path, *overrides: str, verb: str = "gate") -> Run:
        before = set((folder / "runs").glob("*"))
        done = subprocess.run(
            command(folder, *overrides, verb=verb), capture_output=True, text=True, timeout=1200, env=quiet()
        )
        made = sorted(set((folder / "runs").glob("*")) - before)
        return Run(done.returncode, done.stdout + done.stderr, made[-1] if made else folder)

    return run


def quiet() -> dict[str, str]:
    """The environment without what would leak a caller's MLflow run into ours."""
    return {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_")}


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of this folder reuse each other's baseline and controls."""
    return tmp_path_factory.mktemp("gates")


@pytest.fixture(scope="session")
def four(gate: Callable[..., Run], shared_folder: Path) -> Run:
    """One gate over two FP8 candidates, native where the machine has them, and two reference candidates."""
    return gate(shared_folder, FOUR)
