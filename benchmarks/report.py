"""The report of 200 and of 10,000 turns: seconds, bytes, and the same bytes when the run is decided again.

``python -m benchmarks.report [turns ...]`` (200 10000): a gate of two candidates on an engine that costs next to
nothing, then ``regate``: CPU seconds of ``report.write``, seconds of the whole, bytes of the files, and whether the
report and the decision came out the same. Only what is a run's own may differ: id, times, attempts.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvquant_eval import pipeline
from kvquant_eval.core.records import Measure, ReplayRequest
from kvquant_eval.io import report
from tests.fakes.engine import FakeEngine
from tests.fakes.gate import settings, treatments, write_golden

SIZES = (200, 10_000)
PAGES = ("report.html", "report.md", "junit.xml")
OWN = ("run_id", "created_at", "attempts")


class DriftingEngine(FakeEngine):
    """Golden likelihood of 20 to 90 points by turn; candidates lose up to 20 of it, the placebo nearly nothing."""

    def _logprobs(self, request: ReplayRequest, ids: Any) -> tuple[float, ...]:
        if request.measure is Measure.GENERATED:
            return ()
        level = random.Random(request.turn_id).uniform(-1.6, -0.1)
        draw = random.Random(f"{request.turn_id} {self.spec.treatment.name} {self.spec.treatment.dtype}")
        spread = {"e4m3": 0.05, "e5m2": 0.3}.get(self.spec.treatment.name, 0.001)
        return tuple(min(0.0, level - spread * draw.gauss(0.3, 1.0)) for _ in ids)


def main(*sizes: str) -> None:
    """Print a line a size."""
    for size in map(int, sizes or SIZES):
        with tempfile.TemporaryDirectory() as folder:
            print(measure(Path(folder), size), flush=True)


def measure(folder: Path, turns: int) -> str:
    """A gate over so many turns and the same again, in words."""
    write_golden(folder / "golden", conversations=turns // 4)
    made = settings(folder, treatments("e4m3", "e5m2"), block_requests=64)
    made = replace(made, engine=replace(made.engine, engine="benchmarks.report:DriftingEngine"))
    spent: list[float] = []
    write = report.write

    def timed(*arguments: Any) -> None:
        began = time.process_time()
        write(*arguments)
        spent.append(time.process_time() - began)

    report.write = timed  # type: ignore[assignment]
    try:
        run = pipeline.gate(made)
        first = {name: (run.folder.path / name).read_bytes() for name in PAGES}
        began = time.monotonic()
        again = pipeline.regate(run.folder, made)
        seconds = time.monotonic() - began
    finally:
        report.write = write
    second = {name: (run.folder.path / name).read_bytes() for name in PAGES}
    then, now = (each["created_at"].encode() for each in (run.document, again.document))
    same = all(first[name].replace(then, now) == second[name] for name in PAGES)
    decided = [json.dumps({k: v for k, v in each.document.items() if k not in OWN}) for each in (run, again)]
    sizes = ", ".join(f"{name} {len(data) / 2**20:.2f} MiB" for name, data in first.items())
    return (
        f"{turns:,} turns, {run.document['decision']}, {len(run.document['candidates'])} candidates: report in "
        f"{spent[0]:.1f} s of CPU, regate in {seconds:.1f} s; {sizes}; regate: report "
        f"{'byte-identical' if same else 'DIFFERS'}, decision {'identical' if decided[0] == decided[1] else 'DIFFERS'}"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
