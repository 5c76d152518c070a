"""Time and memory of a gate over very many turns, without a model: is everything linear in the number of turns?

``python -m benchmarks.scale [turns ...]`` (12500 25000 50000): each size in a process of its own, on an engine that
costs next to nothing. Seconds by stage, and the peak memory of the gate's process; its children are not counted.
"""

from __future__ import annotations

import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvquant_eval import pipeline
from kvquant_eval.core.records import Measure, ReplayRequest
from kvquant_eval.io import golden, report, tables
from tests.fakes.engine import FakeEngine
from tests.fakes.gate import settings, treatments, write_golden

SIZES = ("12500", "25000", "50000")
STAGES = (
    (golden, "load"),
    (pipeline, "prepare"),
    (pipeline, "plan_replay"),
    (pipeline.Stage, "replay"),
    (pipeline, "judge"),
    (pipeline, "document"),
    (tables, "write"),
    (report, "write"),
)


class QuickEngine(FakeEngine):
    """Log probabilities from one seeded generator a request: as many as a real engine gives, at no cost."""

    def _logprobs(self, request: ReplayRequest, ids: Any) -> tuple[float, ...]:
        if request.measure is Measure.GENERATED:
            return ()
        draw = random.Random(f"{request.turn_id} {self.spec.treatment.dtype}").random
        return tuple(-0.2 - 0.01 * draw() for _ in ids)


def main(*sizes: str) -> None:
    """Run each size in a process of its own."""
    for size in sizes or SIZES:
        subprocess.run([sys.executable, "-m", "benchmarks.scale", "one", size], check=True)


def one(turns: int) -> None:
    """One gate over so many turns."""
    with tempfile.TemporaryDirectory() as name:
        folder, spent = Path(name), dict[str, float]()
        write_golden(folder / "golden", conversations=turns // 4)
        made = settings(folder, treatments("fp8"), block_requests=64)
        engine = made.engine.__class__(**{**vars(made.engine), "engine": "benchmarks.scale:QuickEngine"})
        for owner, stage in STAGES:
            setattr(owner, stage, timed(getattr(owner, stage), f"{getattr(owner, '__name__', owner)}.{stage}", spent))
        began = time.monotonic()
        run = pipeline.gate(made.__class__(**{**vars(made), "engine": engine}))
        total = time.monotonic() - began
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        files = {
            path.name: f"{path.stat().st_size / 2**20:.1f}" for path in run.folder.path.iterdir() if path.is_file()
        }
    stages = ", ".join(f"{stage.rpartition('kvquant_eval.')[2]} {seconds:.1f}" for stage, seconds in spent.items())
    print(
        f"{turns} turns: {total:.1f} s, {memory:.0f} MB, {run.document['decision']}; seconds: {stages}; MB: {files}",
        flush=True,
    )


def timed(function: Callable[..., Any], name: str, spent: dict[str, float]) -> Callable[..., Any]:
    """The function, with its seconds added to ``spent[name]``."""

    def run(*arguments: Any, **named: Any) -> Any:
        began = time.monotonic()
        try:
            return function(*arguments, **named)
        finally:
            spent[name] = spent.get(name, 0.0) + time.monotonic() - began

    return run


if __name__ == "__main__":
    if sys.argv[1:2] == ["one"]:
        one(int(sys.argv[2]))
    else:
        main(*sys.argv[1:])
