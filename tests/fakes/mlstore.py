"""What an MLflow store holds of one model, as plain values that compare."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvquant_eval.core.settings import TrackingSettings
from kvquant_eval.io import tracking
from kvquant_eval.io.clock import Clock
from tests.fakes import decided

OWN = ("mlflow.", "kv.content_sha256")
"""Tags with run ids, paths, or a hash over the model's name."""


@dataclass(frozen=True)
class Corner:
    """One experiment and one model of a store. ``number`` tells corners apart; all names are equally long."""

    uri: str
    number: int

    @property
    def model(self) -> str:
        return f"org/model-{self.number:04}"

    def settings(self, uri: str = "", **change: Any) -> TrackingSettings:
        return TrackingSettings(uri=uri or self.uri, experiment=f"experiment-{self.number:04}", **change)

    def run_folder(self, parent: Path, name: str = "run") -> Path:
        return decided.run(self.model, parent / name)

    def open_runs(self) -> list[str]:
        """Runs that are RUNNING, those in the trash too."""
        return [run.info.run_id for run in self._runs(trash=True) if run.info.status == "RUNNING"]

    def holds(self) -> Any:
        """Active runs with all that they say, versions, aliases; the model's name left out."""
        name = self.model.replace("/", "--")
        active = self._runs()
        arms = {run.info.run_id: run.data.tags["kv.arm"] for run in active}
        versions = self._client.search_model_versions(f"name = '{name}'")
        models = self._client.search_registered_models(f"name = '{name}'")
        found = {
            "runs": sorted((self._run(run) for run in active), key=str),
            "versions": sorted((int(v.version), arms.get(v.run_id), v.source, v.tags) for v in versions),
            "aliases": [{alias: int(version) for alias, version in model.aliases.items()} for model in models],
        }
        return json.loads(json.dumps(found).replace(self.model, "MODEL").replace(name, "MODEL"))

    def _run(self, run: Any) -> Any:
        tags = {key: value for key, value in run.data.tags.items() if not key.startswith(OWN)}
        files = [(entry.path, entry.file_size) for entry in self._client.list_artifacts(run.info.run_id)]
        note = run.data.tags["mlflow.note.content"]
        inputs = [entry.dataset.digest for entry in run.inputs.dataset_inputs]
        return [run.info.status, run.info.run_name, run.data.params, run.data.metrics, tags, note, inputs, files]

    def _runs(self, *, trash: bool = False) -> list[Any]:
        from mlflow.entities import ViewType

        experiment = self._client.get_experiment_by_name(self.settings().experiment)
        if experiment is None:
            return []
        view = ViewType.ALL if trash else ViewType.ACTIVE_ONLY
        return list(self._client.search_runs([experiment.experiment_id], run_view_type=view))

    @property
    def _client(self) -> Any:
        from mlflow import MlflowClient

        return MlflowClient(self.uri, self.uri)


def log_and_die(folder: Path, settings: TrackingSettings, calls: int) -> None:
    """``tracking.log`` in a process that is killed before its client's next call after ``calls`` of them."""
    counted = iter(range(calls))

    def check(_: Clock) -> None:
        if next(counted, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    Clock.check = check  # type: ignore[method-assign]
    tracking.log(folder, settings)
