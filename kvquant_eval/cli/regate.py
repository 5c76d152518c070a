"""``kvquant-eval regate RUN_DIR``: decide a stored run again, without an engine."""

from __future__ import annotations

import argparse
from pathlib import Path

from kvquant_eval.cli import config
from kvquant_eval.cli.terminal import conclude
from kvquant_eval.core.codec import DataError
from kvquant_eval.core.settings import Settings
from kvquant_eval.io.runfolder import RunFolder
from kvquant_eval.pipeline import regate

ABOUT = "decide a stored run again"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The run's folder."""
    parser.add_argument("run_dir", type=Path)


def run(options: argparse.Namespace) -> int:
    """Decide, show, and return the decision's exit status."""
    return conclude(regate(*stored(options.run_dir)))


def stored(run_dir: Path) -> tuple[RunFolder, Settings]:
    """A gate's run folder and its settings. Raises DataError for any other folder."""
    folder = RunFolder(run_dir.resolve())
    if folder.config()["pinned"].get("verb") == "calibrate":
        raise DataError(f"{folder.path}: the run of a gate, got a calibration; gate with its scales")
    return folder, config.build(folder.config())
