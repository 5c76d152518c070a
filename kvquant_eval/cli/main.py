"""``kvquant-eval``: one verb, then its arguments. Errors of the user end in one line and status 2."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

import yaml

from kvquant_eval import __version__
from kvquant_eval.cli import config
from kvquant_eval.cli.table import show
from kvquant_eval.core.codec import DataError
from kvquant_eval.core.records import Decision
from kvquant_eval.core.settings import Settings
from kvquant_eval.io.child import EngineDied
from kvquant_eval.io.runfolder import RunFolder
from kvquant_eval.pipeline import GateRun, gate, regate, track

USAGE = """kvquant-eval: may this model run with that KV dtype?

  kvquant-eval gate [key=value ...]   replay, compare, decide
  kvquant-eval regate RUN_DIR         decide a stored run again, without an engine
  kvquant-eval relog RUN_DIR          log a decided run to MLflow, when the server was down

exit status: 0 PROMOTE, 3 HOLD, 4 INCONCLUSIVE, 5 INVALID, 2 bad input, 130/143 interrupted"""


class Interrupted(BaseException):
    """SIGTERM or SIGHUP arrived; ``args[0]`` is its number."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb and return the exit status."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _parse(arguments)
    except DataError as error:
        return _complain(str(error), 2)
    except EngineDied as died:
        return _complain(str(died), Decision.INVALID.exit_code)
    except OSError as error:
        return _complain(f"{error.filename or 'system'}: {error.strerror or error}; make room or correct the path", 2)
    except KeyboardInterrupt:
        return _complain("interrupted; the same command takes up the finished blocks again", 130)
    except Interrupted as error:
        return _complain("terminated; the same command takes up the finished blocks again", 128 + int(error.args[0]))


def _parse(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("kvquant-eval", usage=USAGE, add_help=True)
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    gating = verbs.add_parser("gate", help="replay, compare, decide")
    gating.add_argument("--config-dir", help="a folder with configuration of your own, searched first")
    gating.add_argument("--cfg", action="store_true", help="print the composed configuration and stop")
    gating.add_argument("overrides", nargs="*", metavar="key=value")
    for verb, about in (("regate", "decide a stored run again"), ("relog", "log a decided run to MLflow")):
        verbs.add_parser(verb, help=about).add_argument("run_dir", type=Path)
    options = parser.parse_args(arguments)
    if options.verb != "gate":
        run = RunFolder(options.run_dir.resolve())
        settings = config.build(run.config())
        return _conclude(regate(run, settings), settings) if options.verb == "regate" else _relog(run, settings)
    data = config.compose(options.overrides, options.config_dir)
    if options.cfg:
        sys.stdout.write(yaml.safe_dump(data, sort_keys=False))
        return 0
    settings = config.build(data)
    return _conclude(gate(settings), settings)


def _conclude(run: GateRun, settings: Settings) -> int:
    """Tracking comes last: whatever becomes of it, the decision is on disk and stands."""
    warnings = track(run.folder, settings)
    show(run.document, run.folder.path)
    for warning in warnings:
        _complain(warning, 0)
    return run.judgement.decision.exit_code


def _relog(run: RunFolder, settings: Settings) -> int:
    for warning in track(run, settings):
        return _complain(warning, 1)
    return 0


def _complain(line: str, status: int) -> int:
    sys.stderr.write(f"kvquant-eval: {line}\n")
    return status


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise Interrupted(number)


if __name__ == "__main__":
    sys.exit(main())
