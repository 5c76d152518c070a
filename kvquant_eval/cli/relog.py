"""``kvquant-eval relog RUN_DIR``: log a decided run to MLflow, when the server was down."""

from __future__ import annotations

import argparse

from kvquant_eval.cli import regate
from kvquant_eval.cli.terminal import complain
from kvquant_eval.core.codec import DataError
from kvquant_eval.core.text import one_line
from kvquant_eval.pipeline import track

ABOUT = "log a decided run to MLflow"
arguments = regate.folder


def run(options: argparse.Namespace) -> int:
    """Log; return 0, or 1 where MLflow could not be told everything."""
    folder, settings = regate.stored(options.run_dir)
    if not folder.finished:
        raise DataError(f"{folder.path}: a run that came to its end, got one that was broken off; go on with it first")
    with folder.locked():
        warnings = track(folder, settings)
    return max((complain(one_line(warning), 1) for warning in warnings), default=0)
