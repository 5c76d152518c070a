"""Invariant 11: wherever the model id stands, requested and effective KV dtype stand beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from tests.fakes.fp8 import E4M3, E5M2, NATIVE
from tests.integration.conftest import Run

pytestmark = pytest.mark.integration

MODEL = "SmolLM2-135M-Instruct"
REPORTS = ("report.md", "report.html", "junit.xml")
CANDIDATES = {
    E4M3: ("fp8_e4m3", "fp8_e4m3" if NATIVE else "fp8_e4m3 in bfloat16"),
    E5M2: ("fp8_e5m2", "fp8_e5m2" if NATIVE else "fp8_e5m2 in bfloat16"),
    "int8_ref": ("int8", "int8 in bfloat16"),
    "nvfp4_ref": ("nvfp4", "nvfp4 in bfloat16"),
}


def texts(folder: Path) -> dict[str, str]:
    """Every file of the run folder as text; tables as the JSON of their rows."""
    found = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = str(path.relative_to(folder))
        found[name] = pd.read_parquet(path).to_json(orient="records") if path.suffix == ".parquet" else path.read_text()
    return found


def test_every_file_of_a_run_folder(four: Run) -> None:
    naming = {name: text for name, text in texts(four.folder).items() if MODEL in text}
    assert {"decision.json", "config.yaml", "turns.parquet", *REPORTS} <= set(naming)
    for name, text in naming.items():
        arms = [name.split("/")[1]] if name.startswith("arms/") else list(CANDIDATES)
        for requested, effective in (CANDIDATES[arm] for arm in arms if arm in CANDIDATES):
            if name in REPORTS:
                assert f"KV {requested} (effective {effective}, " in text, name
            else:
                assert requested in text, name
                assert effective in text, name
        if name not in REPORTS:
            assert "requested" in text, name
            assert "effective" in text, name


def test_every_row_of_every_table(four: Run) -> None:
    for name in ("turns.parquet", "deltas.parquet", "fidelity.parquet"):
        frame = pd.read_parquet(four.folder / name)
        assert frame[["model", "kv_requested", "kv_effective", "kv_realisation"]].notna().all().all()
        for arm, (requested, effective) in CANDIDATES.items():
            rows = frame[frame.arm == arm]
            assert set(rows.kv_requested) == {requested}
            assert set(rows.kv_effective) == {effective}


def test_every_mlflow_run_tag_and_table(four: Run, shared_folder: Path) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{shared_folder}/mlflow.db")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    runs = [run for run in client.search_runs(experiments) if run.data.tags["kv.signoff_id"] == four.folder.name]
    assert len(runs) == 1 + len(CANDIDATES)
    seen = set()
    for run in runs:
        requested, effective = run.data.tags["kv.requested"], run.data.tags["kv.effective"]
        seen.add((requested, effective))
        for text in (run.info.run_name, run.data.tags["mlflow.note.content"], json.dumps(run.data.params)):
            assert MODEL in text
            assert requested in text
            assert effective in text
    assert seen == {("bfloat16", "bfloat16"), *CANDIDATES.values()}
    for model in client.search_registered_models():
        for version in client.search_model_versions(f"name='{model.name}'"):
            tags = version.tags
            assert (tags["kv_cache_dtype_requested"], tags["kv_cache_dtype_effective"]) in seen
