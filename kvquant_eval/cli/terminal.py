"""What a verb says at its end, and what it says when something is wrong."""

from __future__ import annotations

import contextlib
import sys

from kvquant_eval.cli import github
from kvquant_eval.cli.table import show
from kvquant_eval.core.text import one_line
from kvquant_eval.pipeline import GateRun


def conclude(run: GateRun) -> int:
    """Show a decision and return its exit status. It is on disk: a reader who is gone does not change it."""
    with contextlib.suppress(OSError, SystemExit):  # rich would leave with status 1
        show(run.document, run.folder.path)
    for warning in (*run.warnings, *github.tell(run.document, run.folder.path)):
        say(one_line(warning))
        github.annotate("warning", "kvquant-eval", warning)
    return run.judgement.decision.exit_code


def complain(line: str, status: int) -> int:
    """Say ``line`` on standard error and return ``status``."""
    say(line)
    github.annotate("error", "kvquant-eval", line)
    return status


def say(line: str) -> None:
    """One line on standard error, in which GitHub's runner finds no command (``cli.github``)."""
    with contextlib.suppress(OSError):  # nobody is there to read it
        sys.stderr.write(f"kvquant-eval: {line.replace('##[', '## [')}\n")
        sys.stderr.flush()
