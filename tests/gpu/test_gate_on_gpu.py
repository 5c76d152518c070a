"""The embedded model on a CUDA device, compiled as a user would serve it. The project's CI has no GPU and skips it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="needs a CUDA device"),
]


def test_native_arms_keep_the_compile_mode_and_references_get_an_eager_baseline(tmp_path: Path) -> None:
    overrides = ["engine=vllm", "engine.args.max_model_len=8192", "kv=[fp8_e4m3,int8_ref]", f"runs_dir={tmp_path}/runs"]
    command = [sys.executable, "-m", "kvquant_eval.cli.main", "gate", "tracking=none", *overrides]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode in (0, 3, 4), done.stderr
    decision = json.loads(next((tmp_path / "runs").glob("*/decision.json")).read_text())
    by_name = {candidate["name"]: candidate for candidate in decision["candidates"]}
    assert by_name["fp8_e4m3"]["baseline"] == "baseline"
    assert by_name["int8_ref"]["baseline"] == "baseline_eager"
    assert by_name["fp8_e4m3"]["kv"]["effective"] == "fp8_e4m3"
