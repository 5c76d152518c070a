"""How often the gate errs: simulated golden sets with planted drops, decided by its rules and by those of others.

``python -m benchmarks.operating_characteristics [runs]`` (2000 a cell) writes docs/operating-characteristics.md, in two
processes, within 20 minutes on two cores. Every generator is seeded by the name of what it simulates: the same text
each time.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.characteristics import cells, confirmation, document, published
from benchmarks.characteristics.measure import measure
from tests.fakes.published import CASES

RUNS = 2000
PROCESSES = 2
PAGE = Path(__file__).parents[1] / "docs" / "operating-characteristics.md"


def main(runs: int) -> None:
    """Simulate everything, and write the page."""
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")  # of the processes, which start anew
    with ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool:
        grid = {name: [pool.submit(measure, cell, runs) for cell in group] for name, group in cells.grid().items()}
        stages = [pool.submit(confirmation.trial, stage) for stage in confirmation.STAGES]
        studies = [pool.submit(published.study, name) for name in CASES]
        measured = {name: _all(group) for name, group in grid.items()}
        PAGE.write_text(document.write(measured, _all(stages), _all(studies)))


def _all(waited: list[Future[Any]]) -> list[Any]:
    return [each.result() for each in waited]


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else RUNS)
