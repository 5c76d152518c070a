"""Baselines and candidates that do not run what was asked for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kvquant_eval.cli.config import home
from kvquant_eval.worker.embedded import materialise
from tests.fakes.fp8 import E4M3, E5M2
from tests.integration.conftest import Run, needs_native_fp8

pytestmark = pytest.mark.integration

UNIT = f"kv.{E4M3}.scales=unit"  # the checkpoint announces scales that it does not have
SCHEME = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "tensor", "dynamic": False}


@pytest.fixture(scope="module")
def scheme_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the embedded model whose checkpoint asks for an FP8 KV cache; its gates are run beside it."""
    folder = tmp_path_factory.mktemp("model") / "scheme"
    shutil.copytree(materialise(Path(home()) / ".cache").path, folder)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "dense",
        "quantization_status": "compressed",
        "config_groups": {},
        "ignore": [],
        "kv_cache_scheme": SCHEME,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def options(model: Path) -> tuple[str, ...]:
    """The model, and one class: what an arm runs does not depend on its turns."""
    template = home() / "conf/model/smollm2_tools.jinja"
    given = ("model=folder", "model.id=test/scheme", f"model.path={model}", f"model.chat_template={template}")
    return (*given, "workload=[faq]", "gate.hardest=faq")


@needs_native_fp8
def test_auto_baseline_of_an_fp8_checkpoint_is_invalid(gate: Callable[..., Run], scheme_model: Path) -> None:
    run = gate(
        scheme_model.parent, *options(scheme_model), "baseline.dtype=auto", "kv=[fp8_e4m3]", UNIT, "engine.retries=0"
    )
    assert run.status == 5, run.output
    reasons = " ".join(run.decision["reasons"])
    assert "requested auto" in reasons
    assert "fp8_e4m3" in reasons


def test_bfloat16_baseline_of_the_same_checkpoint_is_not(gate: Callable[..., Run], scheme_model: Path) -> None:
    run = gate(scheme_model.parent, *options(scheme_model), f"kv=[{E4M3}]", UNIT)
    assert run.status in (0, 3, 4), run.output
    assert run.decision["baseline"]["kv"]["effective"] == "bfloat16"


def test_a_skip_entry_that_matches_no_layer_is_refused(gate: Callable[..., Run], tmp_path: Path) -> None:
    run = gate(tmp_path, f"kv=[{E5M2}]", f"kv.{E5M2}.skip_layers=['30']")
    assert run.status == 2, run.output
    assert f"kv.{E5M2}.skip_layers: layers 0 to 29, or sliding_window, got '30'" in run.output
    assert not (tmp_path / "runs").exists()
