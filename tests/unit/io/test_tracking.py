"""``io.tracking`` on a real MLflow: one SQLite store for the module, one experiment and one model a test."""

from __future__ import annotations

import json
import math
import os
import sqlite3
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from kvquant_eval.core.settings import TrackingSettings
from kvquant_eval.io import evaluation, tables, tracking
from kvquant_eval.io.tracking import TrackingError, log
from tests.fakes import decided
from tests.fakes.decided import TURNS


@dataclass(frozen=True)
class Store:
    """One test's corner of the shared database."""

    settings: TrackingSettings
    client: Any
    model: str

    def runs(self) -> list[Any]:
        """The experiment's runs, the baseline first."""
        experiment = self.client.get_experiment_by_name(self.settings.experiment)
        runs = self.client.search_runs([experiment.experiment_id])
        return sorted(runs, key=lambda run: run.data.tags["kv.role"])

    def table(self, run: Any, name: str, folder: Path) -> pd.DataFrame:
        folder.mkdir(exist_ok=True)
        path = self.client.download_artifacts(run.info.run_id, name, str(folder))
        return pd.DataFrame(**json.loads(Path(path).read_text(encoding="utf-8")))

    def aliases(self) -> dict[str, int]:
        found = self.client.get_registered_model(self.model.replace("/", "--")).aliases
        return {alias: int(version) for alias, version in found.items()}

    def versions(self) -> list[Any]:
        found = self.client.search_model_versions(f"name = '{self.model.replace('/', '--')}'")
        return sorted(found, key=lambda version: int(version.version))


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store") / "home" / "mlflow.db"


@pytest.fixture
def store(database: Path, request: pytest.FixtureRequest) -> Store:
    from mlflow import MlflowClient

    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    uri = f"sqlite:///{database}"
    settings = TrackingSettings(uri=uri, experiment=name)
    database.parent.mkdir(exist_ok=True)
    with tracking.quiet():
        tracking._create(database)
    return Store(settings=settings, client=MlflowClient(uri, uri), model=f"org/{name}")


def make_document(store: Store, run_id: str, **change: Any) -> dict[str, Any]:
    return decided.document(store.model, run_id, **change)


def make_run(store: Store, folder: Path, **change: Any) -> Path:
    return decided.run(store.model, folder, **change)


def test_importing_it_leaves_mlflow_alone() -> None:
    code = "import sys, kvquant_eval.io.tracking; sys.exit('mlflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_one_flat_finished_run_a_dtype(store: Store, tmp_path: Path) -> None:
    folder = make_run(store, tmp_path / "run-1", decision="HOLD", drop=7.0)
    ids = log(folder, store.settings)
    baseline, candidate = store.runs()
    assert ids == [baseline.info.run_id, candidate.info.run_id]
    assert baseline.info.run_name == f"baseline: KV bfloat16 (effective bfloat16, native) of {store.model}"
    assert candidate.info.run_name == f"fp8 HOLD: KV fp8_e4m3 (effective fp8_e4m3, native) of {store.model}"
    assert {run.info.status for run in (baseline, candidate)} == {"FINISHED"}
    assert {run.data.tags["kv.signoff_id"] for run in (baseline, candidate)} == {"run-1"}
    assert "mlflow.parentRunId" not in candidate.data.tags
    assert candidate.data.tags["kv.decision"] == "HOLD"
    assert "kv.decision" not in baseline.data.tags
    assert candidate.data.tags["kv.self_test"] == "false"
    assert candidate.data.tags["mlflow.runColor"] != baseline.data.tags["mlflow.runColor"]


def test_metrics_are_points_and_finite(store: Store, tmp_path: Path, database: Path) -> None:
    log(make_run(store, tmp_path / "run", decision="HOLD", drop=7.0), store.settings)
    baseline, candidate = store.runs()
    assert candidate.data.metrics == {
        "gate/pass": 0, "kv/bytes_per_token": 48, "kv/capacity_tokens": 4096, "kv/decoded_tokens_per_s": 50,
        "kv/prefix_cache_share": 0.75, "math/mean_drop": 7, "math/baseline": 80, "math/candidate": 73, "math/bound": 8,
        "math/recovery": 93, "math/flagged": 1, "math/confirmed": 1, "math/worst_stratum_drop": 8,
        "gate/pooled_p": 0.5,
        "faq/mean_drop": 0, "faq/baseline": 80, "faq/candidate": 80, "faq/flagged": 0,
        "fidelity/kl": 0.015, "fidelity/top1": 0.97,
    }  # fmt: skip
    assert candidate.data.params["score.math"] == "gl_span"
    assert "gate/pass" not in baseline.data.metrics
    assert baseline.data.metrics["math/mean_drop"] == 0
    assert (baseline.data.metrics["fidelity/kl"], baseline.data.metrics["fidelity/top1"]) == (0, 1)
    with sqlite3.connect(database) as connection:
        rows = connection.execute("SELECT value, is_nan FROM metrics").fetchall()
    assert rows
    assert all(math.isfinite(value) and abs(value) < 1e300 and not nan for value, nan in rows)


def test_pass_is_one_only_on_promote(store: Store, tmp_path: Path) -> None:
    for decision in ("PROMOTE", "HOLD", "INCONCLUSIVE", "INVALID"):
        log(make_run(store, tmp_path / decision, decision=decision), store.settings)
    passed = {run.data.tags["kv.decision"]: run.data.metrics["gate/pass"] for run in store.runs()[4:]}
    assert passed == {"PROMOTE": 1, "HOLD": 0, "INCONCLUSIVE": 0, "INVALID": 0}


def test_the_note_says_the_decision_first_and_is_inert(store: Store, tmp_path: Path) -> None:
    log(make_run(store, tmp_path / "run", decision="HOLD", self_test=True, post_hoc=True), store.settings)
    lines = store.runs()[1].data.tags["mlflow.note.content"].splitlines()
    assert lines[0].startswith("**HOLD** (self test, post hoc): ")
    assert "<script>" not in "\n".join(lines)
    assert "\x1b" not in "\n".join(lines)
    assert any(line.startswith("| math | PASS | gl") for line in lines)


def test_long_params_are_hashed_not_cut(store: Store, tmp_path: Path) -> None:
    log(make_run(store, tmp_path / "run"), store.settings)
    params = store.runs()[0].data.params
    assert params["engine.args"].startswith("sha256 ")
    assert params["golden.sha256"] == "a" * 64
    assert params["kv.requested"] == "bfloat16"


def test_score_tables_align_across_runs(store: Store, tmp_path: Path) -> None:
    log(make_run(store, tmp_path / "run"), store.settings)
    first, second = (store.table(run, tracking.SCORES_TABLE, tmp_path / f"t{i}") for i, run in enumerate(store.runs()))
    assert list(first.columns) == list(second.columns)
    assert list(first.columns[:2]) == ["turn_id", "score"]
    assert list(first["turn_id"]) == list(second["turn_id"]) == sorted(TURNS)
    assert first["score"].notna().all()
    assert list(second["score"].isna()) == [True, False, False]
    assert list(second["drop"][1:]) == [1.5, 1.5]
    assert "explanation" not in first.columns


def test_golden_set_is_an_input_by_hash(store: Store, tmp_path: Path) -> None:
    log(make_run(store, tmp_path / "run"), store.settings)
    for run in store.runs():
        (entry,) = run.inputs.dataset_inputs
        assert (entry.dataset.name, entry.dataset.digest) == ("agents 1", "a" * 36)
        assert json.loads(entry.dataset.source)["tags"]["sha256"] == "a" * 64


@pytest.mark.parametrize("texts", [False, True])
def test_texts_go_along_only_when_asked(store: Store, tmp_path: Path, texts: bool) -> None:
    settings = TrackingSettings(uri=store.settings.uri, experiment=store.settings.experiment, log_texts=texts)
    log(make_run(store, tmp_path / "run", decision="HOLD", drop=7.0), settings)
    run = store.runs()[1]
    names = {entry.path for entry in store.client.list_artifacts(run.info.run_id)}
    plain = {"decision.json", "summary.md", "junit.xml", tracking.SCORES_TABLE}
    assert names == plain | ({"report.md", "report.html", tracking.REPLIES_TABLE} if texts else set())
    if texts:
        table = store.table(run, tracking.REPLIES_TABLE, tmp_path / "t")
        assert list(table["turn_id"]) == ["math-a/t01"]
        assert table["baseline_reply"][0] == "baseline <script>alert(1)</script>\\x1b[2J|"
        assert table["candidate_reply"][0].startswith("fp8 ")


def test_promote_registers_and_sets_the_alias(store: Store, tmp_path: Path) -> None:
    _, run_id = log(make_run(store, tmp_path / "run"), store.settings)
    (version,) = store.versions()
    assert version.source == f"hf://{store.model}@r1"
    assert version.run_id == run_id
    assert version.tags["kv_cache_dtype_requested"] == version.tags["kv_cache_dtype_effective"] == "fp8_e4m3"
    assert version.tags["kv_realisation"] == "native"
    assert (version.tags["kv_decision"], version.tags["validation_status"]) == ("PROMOTE", "approved")
    assert store.aliases() == {"kv-fp8-e4m3-approved": 1}


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"self_test": True}, "self_test"),
        ({"post_hoc": True}, "post_hoc"),
        ({"realisation": "reference"}, "reference"),
        ({"decision": "HOLD"}, "rejected"),
        ({"decision": "INCONCLUSIVE"}, "pending"),
        ({"decision": "INVALID"}, "pending"),
    ],
)
def test_nothing_else_sets_an_alias(store: Store, tmp_path: Path, change: dict[str, Any], status: str) -> None:
    log(make_run(store, tmp_path / "run", **change), store.settings)
    assert [version.tags["validation_status"] for version in store.versions()] == [status]
    assert store.aliases() == {}


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({}, False),
        ({"revision": "r2"}, True),
        ({"weights": "v" * 64}, True),
        ({"post_hoc": True}, True),
        ({"realisation": "reference"}, True),
        ({"decision": "INVALID"}, True),
    ],
)
def test_hold_takes_the_alias_of_its_own_revision(
    store: Store, tmp_path: Path, change: dict[str, Any], kept: bool
) -> None:
    log(make_run(store, tmp_path / "promoted"), store.settings)
    held = {"decision": "HOLD", "at": "2026-01-02T00:00:00+00:00", **change}
    log(make_run(store, tmp_path / "held", **held), store.settings)
    assert bool(store.aliases()) is kept


def test_an_overtaken_decision_moves_no_alias(store: Store, tmp_path: Path) -> None:
    promoted = make_run(store, tmp_path / "promoted")
    log(promoted, store.settings)
    log(make_run(store, tmp_path / "held", decision="HOLD", at="2026-01-02T00:00:00+00:00"), store.settings)
    log(promoted, store.settings)
    log(make_run(store, tmp_path / "late", at="2026-01-01T12:00:00+00:00"), store.settings)
    assert store.aliases() == {}


def test_skipped_layers_have_an_alias_of_their_own(store: Store, tmp_path: Path) -> None:
    folder = make_run(store, tmp_path / "run")
    document = json.loads((folder / "decision.json").read_text())
    document["candidates"][0]["kv"]["layers_skipped"] = [0, 5]
    (folder / "decision.json").write_text(json.dumps(document))
    log(folder, store.settings)
    assert store.aliases() == {"kv-fp8-e4m3-skip-0-5-approved": 1}


def test_logging_again_changes_nothing(store: Store, tmp_path: Path) -> None:
    folder = make_run(store, tmp_path / "run")
    first = log(folder, store.settings)
    assert log(folder, store.settings) == first
    assert len(store.runs()) == 2
    assert len(store.versions()) == 1


def test_another_policy_is_another_run(store: Store, tmp_path: Path) -> None:
    folder = make_run(store, tmp_path / "run", decision="HOLD")
    first = log(folder, store.settings)
    document = make_document(store, "run", policy="q" * 64, post_hoc=True)
    (folder / "decision.json").write_text(json.dumps(document))
    assert not set(log(folder, store.settings)) & set(first)
    decided = {run.data.tags["kv.post_hoc"]: run.data.tags["kv.decision"] for run in store.runs()[2:]}
    assert decided == {"false": "HOLD", "true": "PROMOTE"}


class Terminated(BaseException):
    """What a SIGTERM handler raises."""


@pytest.mark.parametrize("error", [KeyboardInterrupt, Terminated, OSError(28, "No space left on device")])
def test_a_broken_off_log_leaves_no_open_run(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    folder = make_run(store, tmp_path / "run")

    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr("mlflow.MlflowClient.log_artifact", fail)
        expected = TrackingError if isinstance(error, OSError) else error
        with pytest.raises(expected):  # type: ignore[arg-type]
            log(folder, store.settings)
    assert [run.info.status for run in store.runs()] == ["FAILED"]
    log(folder, store.settings)
    assert [run.info.status for run in store.runs()] == ["FINISHED", "FINISHED"]


def test_what_died_is_logged_without_scores(store: Store, tmp_path: Path) -> None:
    folder = make_run(store, tmp_path / "run", decision="INVALID")
    document = json.loads((folder / "decision.json").read_text())
    lost = {"requested": "fp8_e4m3", "effective": "not read back", "realisation": "native"}
    document["candidates"][0] |= {"kv": lost, "classes": {"math": {**decided.classes(0)["coding"]}}}
    document["candidates"][0]["pooled"] = {"n_conversations": 0, "worse": 0, "better": 0, "p": 1.0}
    document["baseline"]["kv"] = lost | {"requested": "bfloat16"}
    document["controls"] = {}
    document["fidelity"] = {"fp8": {"all": {"kl": None, "top1_agreement": None}}}
    (folder / "decision.json").write_text(json.dumps(document))
    for name in ("turns", "deltas"):
        tables.save(pd.DataFrame([]), folder / f"{name}.parquet")
    log(folder, store.settings)
    candidate = store.runs()[1]
    assert candidate.info.run_name.startswith("fp8 INVALID: KV fp8_e4m3 (effective not read back, native) of ")
    assert set(candidate.data.metrics) == {"gate/pass", "kv/decoded_tokens_per_s", "kv/prefix_cache_share"}


@pytest.mark.parametrize("uri", ["http://user:secret@127.0.0.1:9", "sqlite:///{}/file", "sqlite:///{}/file/x.db"])
def test_an_unreachable_store_is_one_line(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    (tmp_path / "file").write_text("no database at all" * 100)
    settings = TrackingSettings(uri=uri.format(tmp_path), experiment="x")
    with pytest.raises(TrackingError) as caught:
        log(make_run(store, tmp_path / "run"), settings)
    message = str(caught.value)
    assert "\n" not in message
    assert "secret" not in message
    assert "kvquant-eval relog" in message


def test_the_environment_neither_leaks_in_nor_changes(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_RUN_ID", "somebody-elses")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", "77")
    before = dict(os.environ)
    ids = log(make_run(store, tmp_path / "run"), store.settings)
    assert dict(os.environ) == before
    assert [run.info.run_id for run in store.runs()] == ids
    assert capfd.readouterr() == ("", "")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_artifacts_lie_next_to_the_database(store: Store, database: Path, tmp_path: Path) -> None:
    log(make_run(store, tmp_path / "run"), store.settings)
    experiment = store.client.get_experiment_by_name(store.settings.experiment)
    assert experiment.artifact_location == (database.parent / "mlartifacts").as_uri()


def test_no_uri_no_tracking(tmp_path: Path) -> None:
    assert log(tmp_path / "nowhere", TrackingSettings(uri="", experiment="")) == []


def test_model_id_never_stands_without_its_dtype(store: Store, tmp_path: Path) -> None:
    settings = TrackingSettings(uri=store.settings.uri, experiment=store.settings.experiment, log_texts=True)
    log(make_run(store, tmp_path / "run", decision="HOLD", drop=7.0, realisation="reference"), settings)
    dtypes = ({"bfloat16", "native"}, {"fp8_e4m3", "reference"})
    for run, words in zip(store.runs(), dtypes, strict=True):
        texts = [run.info.run_name, run.data.tags["mlflow.runName"]]
        texts.append(run.data.tags["mlflow.note.content"].splitlines()[0].replace("\\", ""))
        for section in (run.data.params, run.data.tags):
            assert section["model.id"] == store.model
            assert {section["kv.requested"], section["kv.effective"], section["kv.realisation"]} == words
            known = {"model.id", "mlflow.runName", "mlflow.note.content"}
            assert not [k for k, v in section.items() if store.model in v and k not in known]
        for entry in store.client.list_artifacts(run.info.run_id):
            if entry.path in (tracking.SCORES_TABLE, tracking.REPLIES_TABLE):
                table = store.table(run, entry.path, tmp_path / run.info.run_id)
                found = table[["kv_requested", "kv_effective", "kv_realisation"]].drop_duplicates()
                assert set(table["model"]) == {store.model}
                assert {value for row in found.to_numpy().tolist() for value in row} == words
        assert all(word in text for word in words for text in texts)
    (version,) = store.versions()
    assert all(word in version.description for word in dtypes[1])
    assert {"kv_cache_dtype_requested", "kv_cache_dtype_effective", "kv_realisation"} <= set(version.tags)


def test_evaluations_are_logged_once_and_leave_nothing_behind(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    monkeypatch.chdir(tmp_path)
    before, uri = dict(os.environ), mlflow.get_tracking_uri()
    folder, client = make_run(store, tmp_path / "run", decision="HOLD", drop=7.0), store.client
    settings = replace(store.settings, evaluation=True)
    log(folder, settings)
    experiment = client.get_experiment_by_name(f"{settings.experiment}{evaluation.EXPERIMENT}").experiment_id
    first = evaluated(client, experiment)
    assert sorted((name.split(":")[0], status, rows) for name, status, rows in first.values()) == [
        ("baseline", "FINISHED", [("gl_reply", 70.0), ("gl_span", 70.0)]),
        ("fp8 HOLD", "FINISHED", [("gl_reply", 70.0), ("gl_span", 70.0)]),
    ]
    log(folder, settings)
    assert evaluated(client, experiment) == first
    torn = next(iter(first))
    client.set_terminated(torn, "FAILED")
    monkeypatch.setattr(evaluation, "CHILD", "tests.fakes.nothing")
    with pytest.raises(TrackingError, match="No module named"):
        log(folder, settings)
    assert torn not in evaluated(client, experiment)
    assert "RUNNING" not in [status for _, status, _ in evaluated(client, experiment).values()]
    assert (dict(os.environ), mlflow.get_tracking_uri(), mlflow.active_run()) == (before, uri, None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def evaluated(client: Any, experiment: str) -> dict[str, tuple[str, str, list[tuple[str, float]]]]:
    """Run id to its name, its status, and what its rows were given."""
    found = {}
    for run in client.search_runs([experiment]):
        traces = client.search_traces([experiment], f"metadata.`mlflow.sourceRun` = '{run.info.run_id}'")
        given = [
            (each.name, each.feedback.value) for trace in traces for each in trace.info.assessments if each.feedback
        ]
        found[run.info.run_id] = (run.info.run_name, run.info.status, sorted(given))
    return found
