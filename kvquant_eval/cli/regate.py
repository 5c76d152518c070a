"""``kvquant-eval regate RUN_DIR [gate=strict ...]``: decide a stored run again, without an engine."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from kvquant_eval.cli import config
from kvquant_eval.cli.restate import restated
from kvquant_eval.cli.terminal import conclude
from kvquant_eval.core.codec import DataError
from kvquant_eval.core.document import policy_sha256
from kvquant_eval.core.settings import Settings
from kvquant_eval.io.runfolder import POST_HOC, RunFolder
from kvquant_eval.pipeline import regate

ABOUT = "decide a stored run again, by its own policy or another"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The run's folder, and what is said otherwise."""
    folder(parser)
    overrides(parser)


def folder(parser: argparse.ArgumentParser) -> None:
    """The run's folder."""
    parser.add_argument("run_dir", type=Path)


def overrides(parser: argparse.ArgumentParser) -> None:
    """What is said otherwise than in the run."""
    parser.add_argument("--config-dir", help="a folder with configuration of your own, searched first")
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value")


def run(options: argparse.Namespace) -> int:
    """Decide, show, and return the decision's exit status."""
    folder, own = stored(options.run_dir)
    asked = other(folder, own, options, scoring=False)
    same = policy_sha256(asked.policy) == policy_sha256(own.policy)
    return conclude(regate(folder, own if same else asked))


def stored(run_dir: Path) -> tuple[RunFolder, Settings]:
    """A gate's run folder and its settings. Raises DataError for any other folder."""
    folder = RunFolder(run_dir.resolve())
    if folder.path.parent.name == POST_HOC:
        run = folder.path.parents[1]
        raise DataError(f"{folder.path}: the folder of a run, got one of what was decided afterwards; name {run}")
    if folder.config()["pinned"].get("verb") == "calibrate":
        raise DataError(f"{folder.path}: the run of a gate, got a calibration; gate with its scales")
    return folder, config.build(folder.config())


def other(folder: RunFolder, own: Settings, options: argparse.Namespace, *, scoring: bool) -> Settings:
    """The settings of a run with the overrides that were given. Raises DataError as ``restated``."""
    if not options.overrides:
        return own
    data: dict[str, Any] = folder.config()
    return config.build(restated(data, options.overrides, options.config_dir, scoring))
