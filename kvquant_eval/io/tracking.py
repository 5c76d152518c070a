"""MLflow: runs, tables and registry, from a finished run folder. The only user of ``mlflow``, which it imports late."""

from __future__ import annotations

import contextlib
import fcntl
import io
import logging
import os
import re
import sqlite3
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kvquant_eval.core.records import Decision
from kvquant_eval.core.settings import TrackingSettings
from kvquant_eval.io.runcards import RunCard, VersionCard, read_cards

ARTIFACTS = ("decision.json", "junit.xml")
WITH_TEXTS = ("report.md", "report.html")
SCORES_TABLE = "turn_scores.json"
REPLIES_TABLE = "flagged_replies.json"
_DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}


class TrackingError(Exception):
    """MLflow could not be told everything; in one line, with the remedy. The decision in the run folder stands."""


def log(folder: Path, settings: TrackingSettings) -> list[str]:
    """Log a finished run folder: the baseline's run, then one a candidate, then the registry; return the run ids.

    Called last, when ``decision.json``, the tables and the reports are on disk. A second call finds the runs of the
    first and changes nothing; it completes what was broken off. Raises TrackingError after MLflow's bounded retries.
    """
    if not settings.uri:
        return []
    cards = read_cards(folder, settings.log_texts)
    with _quiet():
        try:
            return _log(folder, settings, cards)
        except Exception as error:
            reason = _masked(" ".join(str(error).split()) or type(error).__name__)[:300]
            raise TrackingError(
                f"tracking.uri: a store that takes the runs, got {_masked(settings.uri)} ({reason}); "
                f"the decision stands: make the store reachable and run `kvquant-eval relog {folder}`"
            ) from error


def _log(folder: Path, settings: TrackingSettings, cards: Sequence[RunCard]) -> list[str]:
    client, experiment = _open(settings)
    mine = f"tags.`kv.signoff_id` = '{cards[0].tags['kv.signoff_id']}'"
    try:
        earlier = client.search_runs([experiment], mine)
        runs = [_write(client, experiment, card, folder, earlier) for card in cards]
    except BaseException:  # an interrupt too must leave no run RUNNING
        with contextlib.suppress(Exception):
            for run in client.search_runs([experiment], f"{mine} and attributes.status = 'RUNNING'"):
                client.set_terminated(run.info.run_id, "FAILED")
        raise
    for card, run_id in zip(cards, runs, strict=True):
        if card.version is not None:
            _register(client, card.version, run_id)
    return runs


def _open(settings: TrackingSettings) -> tuple[Any, str]:
    """The client and the experiment's id. A database file is created once, under a lock, its artifacts beside it."""
    from mlflow import MlflowClient

    database = _database(settings.uri)
    with _locked(database):
        client = MlflowClient(settings.uri, settings.uri)
        experiment = client.get_experiment_by_name(settings.experiment)
        if experiment is not None:
            return client, experiment.experiment_id
        location = (database.parent / "mlartifacts").as_uri() if database else None
        return client, client.create_experiment(settings.experiment, artifact_location=location)


def _database(uri: str) -> Path | None:
    """The file behind ``sqlite:///<path>``, absolute; None for a server."""
    path = uri.removeprefix("sqlite:///")
    return None if path == uri else Path(path).resolve()


@contextlib.contextmanager
def _locked(database: Path | None) -> Iterator[None]:
    """Creating a database races with itself; what cannot be one fails here at once (MLflow retries for 100 s)."""
    if database is None:
        yield
        return
    database.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(database.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        with contextlib.closing(sqlite3.connect(database)) as probe:
            probe.execute("PRAGMA schema_version")
        yield
    finally:
        os.close(folder)


def _write(client: Any, experiment: str, card: RunCard, folder: Path, earlier: Sequence[Any]) -> str:
    """Write one run, or return the finished one that says the same. Broken and outdated ones go to MLflow's trash."""
    from mlflow.entities import DatasetInput, InputTag, Metric, Param

    same = [r for r in earlier if all(r.data.tags.get(k) == card.tags[k] for k in ("kv.arm", "kv.policy_sha256"))]
    for run in same:
        if run.info.status == "FINISHED" and run.data.tags.get("kv.content_sha256") == card.tags["kv.content_sha256"]:
            return str(run.info.run_id)
    for run in same:
        client.delete_run(run.info.run_id)
    run_id: str = client.create_run(experiment, tags=dict(card.tags), run_name=card.name).info.run_id
    client.log_batch(
        run_id,
        metrics=[Metric(name, value, card.logged_at, 0) for name, value in card.metrics.items()],
        params=[Param(name, value) for name, value in card.params.items()],
    )
    context = [InputTag("mlflow.data.context", "evaluation")]
    client.log_inputs(run_id, [DatasetInput(_dataset(card), context)])
    for name, table in ((SCORES_TABLE, card.scores), (REPLIES_TABLE, card.replies)):
        if table is not None and not table.empty:
            client.log_table(run_id, table, name)
    for name in ARTIFACTS if card.replies is None else (*ARTIFACTS, *WITH_TEXTS):
        if (folder / name).exists():
            client.log_artifact(run_id, str(folder / name))
    client.set_terminated(run_id, "FINISHED")
    return run_id


def _dataset(card: RunCard) -> Any:
    """The golden set by name, version and hash; no turn of it. MLflow takes 36 characters of digest."""
    from mlflow.data.code_dataset_source import CodeDatasetSource
    from mlflow.data.meta_dataset import MetaDataset

    golden = card.golden
    name = f"{golden['name']} {golden['version']}"
    source, sha256 = CodeDatasetSource(dict(golden)), golden["sha256"][:36]
    dataset = MetaDataset(source, name=name, digest=sha256)  # type: ignore[abstract]
    return dataset._to_mlflow_entity()


def _register(client: Any, card: VersionCard, run_id: str) -> None:
    """One version a decision. PROMOTE moves the alias here, HOLD takes it from a version of the same weights; one that
    a later decision has overtaken moves nothing."""
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(card.model, description="KV cache decisions; the dtype is in the versions' tags")
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    versions = list(client.search_model_versions(f"name = '{card.model}'"))
    mine = next((version for version in versions if version.run_id == run_id), None)
    if mine is None:
        mine = client.create_model_version(
            card.model,
            card.source,
            run_id,
            tags=dict(card.tags),
            description=card.description,
            await_creation_for=0,
        )
    if not card.alias or any(_overtakes(version, card) for version in versions):
        return
    if card.decision is Decision.PROMOTE:
        client.set_registered_model_alias(card.model, card.alias, mine.version)
    elif card.decision is Decision.HOLD:
        number = client.get_registered_model(card.model).aliases.get(card.alias)
        if number is not None and _same_weights(client.get_model_version(card.model, str(number)), card):
            client.delete_registered_model_alias(card.model, card.alias)


def _overtakes(version: Any, card: VersionCard) -> bool:
    """Whether a version has decided the alias after ``card`` did."""
    if version.tags.get("alias") != card.alias or version.tags.get("decided_at", "") <= card.decided_at:
        return False
    decision = version.tags.get("kv_decision")
    return decision == Decision.PROMOTE or (decision == Decision.HOLD and _same_weights(version, card))


def _same_weights(version: Any, card: VersionCard) -> bool:
    return bool(version.source == card.source and version.tags.get("weights_sha256") == card.tags["weights_sha256"])


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """MLflow without prints, log lines, telemetry and long retries; all is put back afterwards.

    Every call names its store, experiment and run, so ``MLFLOW_RUN_ID`` and its like change nothing.
    """
    before = {name: os.environ.get(name) for name in _DEFAULTS}
    silenced = logging.root.manager.disable
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(silenced)
        for name, old in before.items():
            os.environ.pop(name, None)
            if old is not None:
                os.environ[name] = old


def _masked(text: str) -> str:
    """``text`` with the credentials in its URIs masked."""
    return re.sub(r"//[^/@\s]*@", "//***@", text)
