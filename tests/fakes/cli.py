"""The command line of a gate on the fake engine."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.fakes.gate import write_golden


def arguments(folder: Path, *overrides: str) -> list[str]:
    """What stands behind ``kvquant-eval``: a gate over ``folder/golden``, made where it is missing, into
    ``folder/runs``. Later overrides win.
    """
    if not (folder / "golden").exists():
        write_golden(folder / "golden")
    common = {
        "engine.engine": "tests.fakes.engine:FakeEngine",
        "engine.preparer": "tests.fakes.engine:prepare",
        "engine.slots": "[{},{}]",
        "engine.retries": "0",
        "golden.path": f"{folder}/golden",
        "runs_dir": f"{folder}/runs",
        "cache_dir": f"{folder}/cache",
        "tracking": "none",
        "workload": "[math_chain,faq]",
        "gate.min_turns": "30",
        "gate.min_headroom": "10",
        "gate.largest_break": "0",
        "block_requests": "16",
    }
    given = dict(item.split("=", 1) for item in overrides)
    return ["gate", *(f"{key}={value}" for key, value in {**common, **given}.items())]


def command(folder: Path, *overrides: str) -> list[str]:
    """The same as a process."""
    return [sys.executable, "-m", "kvquant_eval.cli.main", *arguments(folder, *overrides)]
