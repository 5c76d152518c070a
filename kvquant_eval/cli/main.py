"""``kvquant-eval``: one verb, then its arguments. Errors of the user end in one line and status 2."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, Protocol, TextIO

import yaml

from kvquant_eval import __version__
from kvquant_eval.calibrate import calibrate
from kvquant_eval.cli import config, diff, github, regate, relog, rescore, search, sign, verify
from kvquant_eval.cli.plain import value
from kvquant_eval.cli.table import show_calibration, show_plan, show_search
from kvquant_eval.cli.terminal import complain, conclude, say
from kvquant_eval.core.codec import DataError
from kvquant_eval.core.records import Decision
from kvquant_eval.core.text import masked, one_line, safe
from kvquant_eval.io.child import EngineDied
from kvquant_eval.io.runfolder import RunFolder
from kvquant_eval.pipeline import gate, rehearse

USAGE = """kvquant-eval: may this model run with that KV dtype?

  kvquant-eval plan [key=value ...]   what a gate would take, which drops it could see, and whether it could promote
  kvquant-eval gate [key=value ...]   replay, compare, decide
  kvquant-eval gate resume=RUN_DIR    go on with a run that was broken off
  kvquant-eval search [key=value ...] the cheapest mixed precision that passes, and which layers carry the damage
  kvquant-eval calibrate [key=value ...]   scales for the candidates' format, and a checkpoint that has them
  kvquant-eval regate RUN_DIR [gate=strict ...]   decide a stored run again, by its policy or another; no engine
  kvquant-eval rescore RUN_DIR [key=value ...]    score its replays again with today's scorers, then the same
  kvquant-eval diff RUN_A RUN_B       two decisions side by side: what was gated, scores, flags
  kvquant-eval relog RUN_DIR          log a decided run to MLflow, when the server was down
  kvquant-eval sign RUN_DIR --by NAME put your name to a promoted candidate
  kvquant-eval verify SIGNOFF --model ID@REVISION --kv-dtype D ...   is what is served what was signed?

exit status of plan: 0 a candidate that loses nothing would rather be promoted, 4 it would not
exit status of verify: 0 everything matches, 3 refused, 4 not everything is shown
exit status: 0 PROMOTE, 3 HOLD, 4 INCONCLUSIVE, 5 INVALID, 2 bad input, 130/143 interrupted"""

VERBS = {
    "plan": "say what a gate would take and could see",
    "gate": "replay, compare, decide",
    "search": "find mixed precision for one candidate",
    "calibrate": "scales of what K and V reach",
}
"""Verbs that take a configuration, and what they are for."""


class Verb(Protocol):
    """A module of a verb that works on artifacts."""

    ABOUT: str

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the verb's own to its parser."""
        ...

    def run(self, options: argparse.Namespace) -> int:
        """Do it and return the exit status."""
        ...


ARTIFACT_VERBS: Mapping[str, Verb] = {
    "regate": regate,
    "rescore": rescore,
    "diff": diff,
    "relog": relog,
    "sign": sign,
    "verify": verify,
}
"""Verbs with plain arguments."""
FOR_PROGRAMS = frozenset({"--cfg", "--version"})
"""What programs read: nothing else may stand there, and it has no text of a model."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """SIGINT, SIGTERM or SIGHUP arrived; ``args[0]`` is its number."""


class _Lines(logging.Handler):
    """What the package says, in lines: warnings on standard error, the rest where the decision will stand."""

    def emit(self, record: logging.LogRecord) -> None:
        line = one_line(record.getMessage())
        if record.levelno >= logging.WARNING:
            say(line)
            return
        with contextlib.suppress(OSError):
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb and return the exit status."""
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, _interrupt)
    log = logging.getLogger("kvquant_eval")
    log.handlers = [_Lines()]
    log.setLevel(logging.INFO)  # forgets what was cached of another level
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        with github.commands_stopped() if not FOR_PROGRAMS & {*arguments} else contextlib.nullcontext():
            return _status(arguments)
    finally:
        _settle(sys.stdout)
        _settle(sys.stderr)


def _status(arguments: list[str]) -> int:
    try:
        return _parse(arguments)
    except DataError as error:
        return complain(one_line(str(error)), 2)
    except EngineDied as died:
        return complain(safe(str(died)), Decision.INVALID.exit_code)  # while the model was made ready
    except OSError as error:
        what = f"{error.filename or 'system'}: {error.strerror or error}; make room or correct the path"
        return complain(one_line("; ".join(filter(None, [what, _notes(error)]))), 2)
    except Interrupted as error:
        line = "; ".join(filter(None, [signal.Signals(error.args[0]).name, _notes(error)]))
        return complain(line, 128 + int(error.args[0]))


def _parse(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("kvquant-eval", usage=USAGE, add_help=True)
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(dest="verb", required=True, prog="kvquant-eval")
    for verb, about in VERBS.items():
        composed = verbs.add_parser(verb, help=about)
        composed.add_argument("--config-dir", help="a folder with configuration of your own, searched first")
        composed.add_argument("--cfg", action="store_true", help="print the composed configuration and stop")
        composed.add_argument("overrides", nargs="*", metavar="key=value")
    for verb, module in ARTIFACT_VERBS.items():
        module.arguments(verbs.add_parser(verb, help=module.ABOUT))
    options, more = parser.parse_known_args(arguments)
    if more and ("overrides" not in options or any(each.startswith("-") for each in more)):
        parser.error(f"unrecognized arguments: {' '.join(more)}")
    if more:  # argparse takes no second row of positional arguments, behind an option
        options.overrides += more
    if options.verb in VERBS:
        data = config.compose(options.overrides, options.config_dir)
        if options.cfg:
            sys.stdout.write(yaml.safe_dump(data, sort_keys=False))
            return 0
        return _gate(data, options) if options.verb == "gate" else _other(options.verb, data)
    return ARTIFACT_VERBS[options.verb].run(options)


def _other(verb: str, data: dict[str, Any]) -> int:
    """A plan, a search or a calibration."""
    if data.get("resume", config.AUTO) not in (config.AUTO, config.NEVER):
        raise DataError(f"resume: {config.AUTO} for {verb}, got {data['resume']}; leave it out")
    if verb == "plan":
        return show_plan(rehearse(config.build(data)))
    if verb == "search":
        return _search(data)
    show_calibration(calibrate(config.build(data)))
    return 0


def _gate(data: dict[str, Any], options: argparse.Namespace) -> int:
    resumed = None
    resume = value(str, data.get("resume", config.AUTO), "resume")
    if resume not in (config.AUTO, config.NEVER):
        resumed = RunFolder(Path(resume).resolve())
        data = config.resumed(resumed.config(), data, options.overrides)
    settings = config.build(data)
    if settings.repair and resumed is None:
        search.refuse_hopeless(settings)
    run = gate(settings, resumed, _command(options))
    status = conclude(run)
    if settings.repair:
        held = [each["name"] for each in run.document["candidates"] if each["decision"] == Decision.HOLD]
        for name in held:
            _repair(data, name)
    return status


def _command(options: argparse.Namespace) -> list[str]:
    """What was typed, to be kept and shown: without a run to go on with, and without passwords in addresses."""
    given = [each for each in options.overrides if each.lstrip("+").split("=")[0] != "resume"]
    searched = ["--config-dir", options.config_dir] if options.config_dir else []
    return [masked(each) for each in ("kvquant-eval", "gate", *searched, *given)]


def _repair(data: dict[str, Any], name: str) -> None:
    """Search for a candidate that was held. It stays held, whatever becomes of that: the exit status is the gate's."""
    gate = {**data["gate"], "require": []}
    try:
        _search({**data, "kv": {name: data["kv"][name]}, "gate": gate, "resume": config.AUTO})
    except (DataError, EngineDied) as error:
        say(one_line(f"no mixed precision was searched for {name}: {error}"))


def _search(data: dict[str, Any]) -> int:
    document, folder = search.run(config.build(data))
    with contextlib.suppress(OSError, SystemExit):
        show_search(document, folder)
    return int(document["exit_code"])


def _settle(stream: TextIO) -> None:
    """Write out what is left. Where the reader or the terminal is gone it goes nowhere: the interpreter's own last
    flush would fail, and leave with status 120.
    """
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _notes(error: BaseException) -> str:
    return "; ".join(getattr(error, "__notes__", ()))


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """The first signal ends the gate in order; a second one ends it at once, and its engines go with it."""
    for each in SIGNALS:
        signal.signal(each, signal.SIG_DFL)
    raise Interrupted(number)


if __name__ == "__main__":
    sys.exit(main())
