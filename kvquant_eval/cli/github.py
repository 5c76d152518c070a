"""GitHub Actions: what a job's page shows of a decision, and no workflow command that a model wrote.

The runner takes every line of output that begins with ``::`` or has ``##[`` in it for a command. So it is told to take
none while a verb runs, but for the few lines written here.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from kvquant_eval.core.records import Decision
from kvquant_eval.core.text import safe
from kvquant_eval.io.report import summary
from kvquant_eval.io.report.names import candidate_mark, identity, why

MOST = 10
"""Annotations of a kind that GitHub shows of one step."""
LEVELS = {Decision.PROMOTE: "notice", Decision.INCONCLUSIVE: "warning"}
"""Of an annotation, by decision; any other is an error."""
_TOKEN: ContextVar[str] = ContextVar("stop_token", default="")
"""What lets commands be executed again; empty outside a job, and where they are not stopped."""


@contextlib.contextmanager
def commands_stopped() -> Iterator[None]:
    """Inside a job, no line of output is a workflow command until the end; outside nothing happens."""
    if os.environ.get("GITHUB_ACTIONS") != "true":
        yield
        return
    _write(_stop())
    try:
        yield
    finally:
        _write(_resume())


def annotate(level: str, title: str, message: str) -> None:
    """One annotation on the job's page. ``level``: notice, warning or error. Nothing where commands are not stopped."""
    if _TOKEN.get():
        command = f"::{level} title={_property(safe(title))}::{_data(safe(message))}\n"
        _write(_resume() + command + _stop())


def tell(document: Mapping[str, Any], folder: Path) -> list[str]:
    """Annotations, the step's summary and its outputs, as far as the job asks for them; ``document`` is
    ``decision.json``'s. Return a line for each file that could not be written: the decision stands.
    """
    for candidate in document["candidates"][:MOST]:
        decision = candidate["decision"]
        title = f"{decision}: {identity(document['model'], candidate['kv'])}{candidate_mark(candidate)}"
        annotate(LEVELS.get(decision, "error"), title, why(candidate["reasons"]))
    folder = folder.absolute()  # the steps behind this one may run elsewhere
    outputs = {
        "decision": document["decision"],
        "exit-code": str(document["exit_code"]),
        "run-dir": str(folder),
        "report": str(folder / "report.html"),
        "summary": str(folder / summary.FILE),
        "junit": str(folder / "junit.xml"),
    }
    lines = [
        _append("GITHUB_STEP_SUMMARY", lambda: (folder / summary.FILE).read_text(encoding="utf-8") + "\n"),
        _append("GITHUB_OUTPUT", lambda: "".join(_output(name, value) for name, value in outputs.items())),
    ]
    return [line for line in lines if line]


def _append(variable: str, text: Callable[[], str]) -> str:
    """Append what ``text`` gives to the file that ``variable`` names; what went wrong, or nothing."""
    path = os.environ.get(variable)
    if not path:
        return ""
    try:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(text())
    except OSError as error:
        return f"{variable}: a file to append to, got {error.filename} ({error.strerror}); the decision stands"
    return ""


def _output(name: str, value: str) -> str:
    """A value of any number of lines, between two marks that it cannot hold."""
    mark = f"end-{secrets.token_hex(16)}"
    return f"{name}<<{mark}\n{value}\n{mark}\n"


def _stop() -> str:
    _TOKEN.set(secrets.token_hex(16))
    return f"::stop-commands::{_TOKEN.get()}\n"


def _resume() -> str:
    token = _TOKEN.get()
    _TOKEN.set("")
    return f"::{token}::\n"


def _write(text: str) -> None:
    """Standard output has nearly all that is not our own text, and only within one stream the order is sure."""
    with contextlib.suppress(OSError):  # nobody is there to read it
        sys.stdout.write(text)
        sys.stdout.flush()


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
