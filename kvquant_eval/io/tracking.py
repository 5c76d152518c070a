"""MLflow: runs, tables and registry, from a finished run folder. ``mlflow`` is imported late."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import shutil
import sqlite3
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvquant_eval.core.settings import TrackingSettings
from kvquant_eval.core.signoff import Signature
from kvquant_eval.core.text import masked, safe
from kvquant_eval.io import evaluation
from kvquant_eval.io.clock import Clock, Timed, locked
from kvquant_eval.io.registry import register, versions
from kvquant_eval.io.runcards import RunCard, read_cards, registered_name

ARTIFACTS = ("decision.json", "summary.md", "junit.xml")
WITH_TEXTS = ("report.md", "report.html")
SCORES_TABLE = "turn_scores.json"
REPLIES_TABLE = "flagged_replies.json"
NEW_DATABASE = ".kvquant-eval-new-"
FOLLOWS = "signoff_after_"
"""Begins a tag of a version; behind it the sha256 of the signature before, which may be of another run."""
DATABASE_WAIT_S = 20.0
"""For another writer; MLflow waits as long."""
_DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER": "false",  # a server may ask for hours
}


class TrackingError(Exception):
    """MLflow could not be told everything; in one line, with the remedy. The decision in the run folder stands."""


def log(folder: Path, settings: TrackingSettings) -> list[str]:
    """Log a finished run folder: the baseline's run, then one a candidate, then the registry; return the run ids.

    Called last, when ``decision.json``, the tables and the reports are on disk. A second call finds the runs of the
    first and changes nothing; it completes what was broken off, even by ``kill -9``. Raises DataError for a damaged
    folder, TrackingError after MLflow's bounded retries or ``settings.timeout_s``.
    """
    if not settings.uri:
        return []
    cards = read_cards(folder, settings.log_texts, settings.evaluation)
    clock = Clock("tracking.timeout_s", settings.timeout_s)
    with quiet():
        try:
            with locked(folder / "decision.json", clock):
                return _log(folder, settings, cards, clock)
        except Exception as error:
            raise TrackingError(
                f"tracking.uri: a store that takes the runs, got {masked(settings.uri)} ({reason(error)}); "
                f"the decision stands: make the store reachable and run `kvquant-eval relog {folder}`"
            ) from error


def anchor(settings: TrackingSettings, signature: Signature) -> None:
    """Tag the registered version of a signed decision with the hash of its signature. Raises TrackingError where there
    is none, or the store cannot be told within ``settings.timeout_s``.
    """
    tags = {"signoff_sha256": signature.sha256, "signed_by": signature.by}
    if signature.previous is not None:
        tags[f"{FOLLOWS}{signature.previous}"] = signature.sha256
    with _registry(settings) as client:
        found = _versions_of(client, signature)
        if not found:
            raise TrackingError(f"a registered version of run {signature.run_id}, got none")
        for key, value in tags.items():
            client.set_model_version_tag(found[-1].name, found[-1].version, key, value)


def anchored(settings: TrackingSettings, signature: Signature) -> Mapping[str, str] | None:
    """The tags of the registered version of a signed decision; None where there is none. ``signoff_followed_by`` is
    among them where any version of the model was told of a later signature. Raises TrackingError.
    """
    with _registry(settings) as client:
        found = _versions_of(client, signature)
        told = [each for each in found if "signoff_sha256" in each.tags]  # a later log may have added one
        if not found:
            return None
        after = f"{FOLLOWS}{signature.sha256}"
        later = [each.tags[after] for each in _versions(client, signature) if after in each.tags]
        tags = dict((told or found)[-1].tags)
        return {**tags, "signoff_followed_by": later[-1]} if later else tags


@contextlib.contextmanager
def _registry(settings: TrackingSettings) -> Iterator[Any]:
    """A client of a store that is there. Raises TrackingError, in one line, for whatever goes wrong with it."""
    with quiet():
        try:
            database = database_file(settings.uri)
            if database is not None and not database.exists():  # MLflow would make it
                raise FileNotFoundError("no such database")
            from mlflow import MlflowClient

            yield Timed(MlflowClient(settings.uri, settings.uri), Clock("the time", settings.timeout_s))
        except TrackingError:
            raise
        except Exception as error:
            raise TrackingError(f"a store that answers, got {masked(settings.uri)} ({reason(error)})") from error


def _versions_of(client: Any, signature: Signature) -> list[Any]:
    """The registered versions of the decision that was signed: of its run, and of its candidate; the oldest first."""
    of_run = [each for each in _versions(client, signature) if each.tags.get("signoff_id") == signature.run_id]
    return [each for each in of_run if client.get_run(each.run_id).data.tags.get("kv.arm") == signature.candidate]


def _versions(client: Any, signature: Signature) -> list[Any]:
    return versions(client, registered_name(signature.terms.model))


def _log(folder: Path, settings: TrackingSettings, cards: Sequence[RunCard], clock: Clock) -> list[str]:
    database = database_file(settings.uri)
    if database is None:
        return _write_all(folder, settings, cards, clock)
    database.parent.mkdir(parents=True, exist_ok=True)
    with locked(database.parent, clock):
        _create(database)
        return _write_all(folder, settings, cards, clock)


def _write_all(folder: Path, settings: TrackingSettings, cards: Sequence[RunCard], clock: Clock) -> list[str]:
    from mlflow import MlflowClient

    bare = MlflowClient(settings.uri, settings.uri)
    client = Timed(bare, clock)
    experiment = _experiment(client, settings, settings.experiment)
    mine = f"tags.`kv.signoff_id` = '{cards[0].tags['kv.signoff_id']}'"
    running = f"{mine} and attributes.status = 'RUNNING'"
    try:
        earlier = client.search_runs([experiment], mine)
        finished = [run for run in earlier if run.info.status == "FINISHED"]
        _discard(client, [run for run in earlier if run not in finished])
        runs = [_write(client, experiment, card, folder, finished) for card in cards]
        _discard(client, client.search_runs([experiment], running))  # a create_run whose answer was lost came twice
    except BaseException:  # an interrupt too must leave no run RUNNING
        os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"
        with contextlib.suppress(Exception):
            for run in bare.search_runs([experiment], running):
                bare.set_terminated(run.info.run_id, "FAILED")
        raise
    for card, run_id in zip(cards, runs, strict=True):
        if card.version is not None:
            register(client, card.version, run_id)
    if settings.evaluation:
        table = _experiment(client, settings, f"{settings.experiment}{evaluation.EXPERIMENT}")
        evaluation.log(bare, settings.uri, table, cards, clock)
    return runs


def _experiment(client: Any, settings: TrackingSettings, name: str) -> str:
    """The id of the experiment of that name. The artifacts of a database file lie beside it."""
    from mlflow.exceptions import MlflowException

    database = database_file(settings.uri)
    location = (database.parent / "mlartifacts").as_uri() if database else None
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        try:
            return str(client.create_experiment(name, artifact_location=location))
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":  # by another gate, or by a request whose answer was lost
                raise
        experiment = client.get_experiment_by_name(name)
    return str(experiment.experiment_id)


def experiment_of(uri: str, run_id: str) -> str:
    """The id of the experiment that has a run. Raises TrackingError where the store does not tell."""
    from mlflow import MlflowClient

    with quiet():
        try:
            return str(MlflowClient(uri, uri).get_run(run_id).info.experiment_id)
        except Exception as error:
            raise TrackingError(f"{masked(uri)} ({reason(error)})") from error


def database_file(uri: str) -> Path | None:
    """The file behind ``sqlite:///<path>``, absolute; None for a server."""
    path = uri.removeprefix("sqlite:///")
    return None if path == uri else Path(path).absolute()


def _create(database: Path) -> None:
    """Make a database that is not there in a folder of its own and move it in: a half-made one cannot be repaired.

    What cannot be a database fails here at once (MLflow retries for 100 s).
    """
    from mlflow import MlflowClient

    if not database.exists() or database.stat().st_size == 0:
        for left in database.parent.glob(f"{NEW_DATABASE}*"):
            shutil.rmtree(left)
        with tempfile.TemporaryDirectory(prefix=NEW_DATABASE, dir=database.parent) as folder:
            new = Path(folder) / database.name
            MlflowClient(f"sqlite:///{new}", f"sqlite:///{new}").search_experiments(max_results=1)
            new.replace(database)
    with contextlib.closing(sqlite3.connect(database, timeout=DATABASE_WAIT_S)) as probe:
        probe.execute("PRAGMA schema_version")


def _discard(client: Any, runs: Sequence[Any]) -> None:
    """End runs and move them to MLflow's trash."""
    for run in runs:
        if run.info.status != "FINISHED":
            client.set_terminated(run.info.run_id, "FAILED")
        client.delete_run(run.info.run_id)


def _write(client: Any, experiment: str, card: RunCard, folder: Path, finished: Sequence[Any]) -> str:
    """Write one run, or return the finished one that says the same. Outdated ones go to MLflow's trash."""
    from mlflow.entities import DatasetInput, InputTag, Metric, Param

    same = [r for r in finished if all(r.data.tags.get(k) == card.tags[k] for k in ("kv.arm", "kv.policy_sha256"))]
    for run in same:
        if run.data.tags.get("kv.content_sha256") == card.tags["kv.content_sha256"]:
            return str(run.info.run_id)
    _discard(client, same)
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


@contextlib.contextmanager
def quiet() -> Iterator[None]:
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


def reason(error: Exception) -> str:
    """An error in one line: no SQL, and both ends of what is long, as the cause may stand at either."""
    text = masked(" ".join(str(error).split()).split(" [SQL:")[0]) or type(error).__name__
    return safe(text if len(text) <= 300 else f"{text[:145]} … {text[-145:]}")
