"""A real engine on a model folder full of programs: it reads the safetensors, and nothing runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvquant_eval.core.codec import to_data
from kvquant_eval.core.engine import EngineSpec
from kvquant_eval.core.treatment import KVTreatment
from kvquant_eval.io.child import Child
from tests.fakes.model import write_model
from tests.fakes.payloads import lay

pytestmark = pytest.mark.integration

ENV = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1"}
ARGS = {"dtype": "bfloat16", "enforce_eager": True, "max_model_len": 512, "kv_cache_memory_bytes": 1 << 26}


def test_no_payload_runs_when_an_engine_loads_the_folder(tmp_path: Path) -> None:
    marker, model = tmp_path / "marker", lay(write_model(tmp_path / "model"), tmp_path / "marker")
    before = {path.name: path.stat().st_mtime_ns for path in model.iterdir()}
    spec = EngineSpec(
        model=str(model),
        revision=None,
        treatment=KVTreatment(name="baseline", dtype="bfloat16"),
        args={**ARGS, "trust_remote_code": False},
    )
    with Child(tmp_path / "engine.log", 600, ENV) as child:
        child.call("open", engine="kvquant_eval.worker.vllm_engine:VllmEngine", spec=to_data(spec))
        assert len(child.call("facts")["layers"][0]) == 2
        child.call("close")
    assert not marker.exists()
    assert {path.name: path.stat().st_mtime_ns for path in model.iterdir()} == before
