"""``kvquant-eval rescore RUN_DIR [key=value ...]``: score a stored run again, with today's scorers."""

from __future__ import annotations

import argparse
import sys

from kvquant_eval.cli import regate
from kvquant_eval.cli.terminal import conclude
from kvquant_eval.rescore import rescore

ABOUT = "score a stored run again, asking anew what scorers ask"
arguments = regate.arguments


def run(options: argparse.Namespace) -> int:
    """Score, decide, show, and return the decision's exit status."""
    folder, own = regate.stored(options.run_dir)
    done, same = rescore(folder, regate.other(folder, own, options, scoring=True))
    status = conclude(done)
    if same:
        sys.stdout.write("the same answers, scores and decision as the run's own: nothing is written\n")
    return status
