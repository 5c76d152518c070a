"""``./run.sh ui``: where in MLflow's pages the newest run is, and a browser there where there is a desktop."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
import urllib.request
import webbrowser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from kvquant_eval.core.codec import DataError
from kvquant_eval.core.text import masked, one_line
from kvquant_eval.io.runfolder import RunFolder, latest
from kvquant_eval.io.tracking import TrackingError, experiment_of

PATIENCE_S = 120.0
"""For a server that is just being started."""


def main(argv: Sequence[str] | None = None) -> int:
    """Say where the newest tracked run is, once the server answers; return 0 whatever comes of it."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--runs-dir", type=Path, default=Path("reports/runs"))
    parser.add_argument("--backend-store-uri", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=5000)
    options, _ = parser.parse_known_args(argv)  # the rest is MLflow's
    base = f"http://{options.host}:{options.port}"
    with contextlib.suppress(KeyboardInterrupt):
        address, line = find(options.runs_dir, options.backend_store_uri, base)
        if not address:
            _say(line)
        elif _answers(base):
            _say(line)
            if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
                webbrowser.open(address)
    return 0


def find(runs_dir: Path, store: str, base: str) -> tuple[str, str]:
    """The address of the newest tracked run's comparison (empty: not on this server), and a line that says so."""
    for run in latest(runs_dir, ""):
        tracked = run.tracked()
        if tracked.get("runs"):
            return _place(run, tracked, store, base)
    return "", f"no run in {runs_dir} was logged to MLflow yet"


def _place(run: RunFolder, tracked: Mapping[str, Any], store: str, base: str) -> tuple[str, str]:
    try:
        uri = str(run.config()["tracking"]["uri"])
        if uri != store:
            return "", f"the newest run, {run.run_id}, is in another store: {masked(uri)}"
        experiment = experiment_of(uri, str(tracked["runs"][0]))
    except (DataError, KeyError, TypeError, TrackingError) as error:
        return "", f"the newest run, {run.run_id}, is not found: {error}"
    address = comparison(base, experiment, run.run_id)
    return address, f"{run.run_id}, all its dtypes side by side:\n{address}"


def comparison(base: str, experiment: str, signoff: str) -> str:
    """MLflow's charts of one sign-off's runs: a section a class, a bar a dtype; tables are a click away."""
    chosen = quote(f"tags.`kv.signoff_id` = '{signoff}'", safe="")
    view = "workflowType=machine_learning&compareRunsMode=CHART"
    return f"{base}/#/experiments/{experiment}/runs?{view}&searchFilter={chosen}"


def _answers(base: str) -> bool:
    """Whether the server is there, at the latest after ``PATIENCE_S`` and while what started this program runs."""
    end, parent = time.monotonic() + PATIENCE_S, os.getppid()
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # it is on this machine
    while time.monotonic() < end and os.getppid() == parent:
        with contextlib.suppress(OSError), direct.open(f"{base}/health", timeout=5):
            return True
        time.sleep(0.5)
    return False


def _say(text: str) -> None:
    sys.stderr.write("".join(f"kvquant-eval: {one_line(line)}\n" for line in text.split("\n")))


if __name__ == "__main__":
    sys.exit(main())
