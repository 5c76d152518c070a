"""``python -m kvquant_eval.io.evaluation_child``: evaluations of stored scores, as JSON on standard input says."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any


def evaluate(uri: str, experiment: str, todo: Sequence[Mapping[str, Any]]) -> None:
    """Log the ``rows`` (``runtables.evaluation_rows``) of each ``run``, all of them open ones of the experiment.

    Raises RuntimeError where a row did not arrive: MLflow itself only logs that.
    """
    import mlflow

    mlflow.set_tracking_uri(uri)
    mlflow.set_experiment(experiment_id=experiment)
    client = mlflow.MlflowClient()
    for each in todo:
        run, rows = each["run"], each["rows"]
        with mlflow.start_run(run_id=run):
            mlflow.genai.evaluate(data=[_shown(row) for row in rows], scorers=[_stored(rows)])
        found = client.search_traces([experiment], f"metadata.`mlflow.sourceRun` = '{run}'", max_results=500)
        if len(found) != len(rows):
            raise RuntimeError(f"{len(rows)} rows, got {len(found)} of them in the store")


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: row[key] for key in ("inputs", "outputs", "expectations")}


def _stored(rows: Sequence[Mapping[str, Any]]) -> Any:
    """A scorer that gives every row the points it has already."""
    from mlflow.entities import Feedback
    from mlflow.genai import scorer

    points = {row["inputs"]["turn_id"]: row["scores"] for row in rows}

    @scorer
    def stored(inputs: dict[str, Any]) -> list[Feedback]:
        return [Feedback(name=name, value=value) for name, value in points[inputs["turn_id"]].items()]

    return stored


if __name__ == "__main__":
    evaluate(**json.load(sys.stdin))
