"""Flagged turns as MLflow evaluations: a run an arm over the same rows, which MLflow's page compares. No MLflow here.

``mlflow.genai.evaluate`` works on global state (tracking URI, active run, threads), so it has a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from kvquant_eval.io.clock import Clock
from kvquant_eval.io.runcards import RunCard

CHILD = "kvquant_eval.io.evaluation_child"
EXPERIMENT = " flagged turns"
"""Behind the name of the runs' experiment: its charts stay those of the decision."""
ENVIRONMENT = {
    "MLFLOW_ENABLE_ASYNC_TRACE_LOGGING": "false",  # a trace that does not arrive would be a log line
    "MLFLOW_GENAI_EVAL_MAX_WORKERS": "1",  # ten of them, by default, wait for each other on SQLite's connections
    "MLFLOW_GENAI_EVAL_MAX_SCORER_WORKERS": "1",
}


def log(client: Any, uri: str, experiment: str, cards: Sequence[RunCard], clock: Clock) -> None:
    """Write an evaluation for each card with rows, unless a finished one says the same; ``client`` is MLflow's.

    Raises TimeoutError when the time is up, RuntimeError for evaluations that did not come to their end.
    """
    clock.check()
    new = [card for card in cards if card.rows and not _is_there(client, experiment, card)]
    if not new:
        return
    runs = [client.create_run(experiment, tags=dict(card.tags), run_name=card.name).info.run_id for card in new]
    todo = [{"run": run, "rows": card.rows} for run, card in zip(runs, new, strict=True)]
    status = "FAILED"
    try:
        _evaluate({"uri": uri, "experiment": experiment, "todo": todo}, clock)
        status = "FINISHED"
    finally:
        for run in runs:
            client.set_terminated(run, status)


def _is_there(client: Any, experiment: str, card: RunCard) -> bool:
    """Whether a finished evaluation says the same. Others of the same arm go, with their traces."""
    keys = ("kv.signoff_id", "kv.arm", "kv.policy_sha256")
    found = client.search_runs([experiment], " and ".join(f"tags.`{key}` = '{card.tags[key]}'" for key in keys))
    there = False
    for run in found:
        same = run.data.tags.get("kv.content_sha256") == card.tags["kv.content_sha256"]
        if same and run.info.status == "FINISHED" and not there:
            there = True
            continue
        traces = client.search_traces([experiment], f"metadata.`mlflow.sourceRun` = '{run.info.run_id}'")
        if traces:
            client.delete_traces(experiment, trace_ids=[trace.info.trace_id for trace in traces])
        client.delete_run(run.info.run_id)
    return there


def _evaluate(task: Mapping[str, Any], clock: Clock) -> None:
    try:
        done = subprocess.run(
            [sys.executable, "-m", CHILD],
            input=json.dumps(task),
            env={**os.environ, **ENVIRONMENT},
            capture_output=True,
            text=True,
            timeout=clock.left(),
            check=False,
        )
    except subprocess.TimeoutExpired:
        clock.check()
        raise
    if done.returncode:
        raise RuntimeError(f"the evaluation of flagged turns: {(done.stderr.strip() or 'no message').splitlines()[-1]}")
