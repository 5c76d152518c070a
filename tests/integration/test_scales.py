"""Calibrated inside the real engine, exported, and loaded by it: the scales are those that the workers report."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from kvquant_eval.core.compare import identical
from kvquant_eval.core.scales import Calibration, LayerScales
from kvquant_eval.io.calibrations import read
from kvquant_eval.io.export import INDEX, SCALE_FILE
from kvquant_eval.io.runfolder import RunFolder
from tests.fakes.fp8 import E4M3, NATIVE
from tests.integration.conftest import Run, needs_native_fp8, quiet

pytestmark = pytest.mark.integration

ONE_CLASS = ("workload=[faq]", "gate.hardest=faq", "golden.folds=[1]", "engine.retries=0")
REFERENCE = "kv=[fp8_e4m3_ref]"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scales")


@pytest.fixture(scope="module")
def calibration(command: Callable[..., list[str]], folder: Path) -> Path:
    """The run folder of a calibration on one conversation."""
    asked = command(folder, *ONE_CLASS[:2], "golden.folds=[0]", REFERENCE)
    asked[asked.index("gate")] = "calibrate"
    done = subprocess.run(asked, capture_output=True, text=True, timeout=1200, env=quiet())
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = (folder / "runs").iterdir()
    return run


@pytest.fixture(scope="module")
def exported(gate: Callable[..., Run], folder: Path, calibration: Path) -> Run:
    """A gate of what was exported: the engine's own FP8, where the machine has it, beside the reference."""
    kv = f"kv=[{E4M3},fp8_e4m3_ref]" if NATIVE else REFERENCE
    return gate(folder, *ONE_CLASS, *model(calibration / "checkpoint"), kv)


def model(checkpoint: Path) -> tuple[str, ...]:
    return "model=folder", "model.id=test/exported", f"model.path={checkpoint}"


def attested(run: Run, arm: str) -> tuple[LayerScales, ...]:
    facts = RunFolder(run.folder).arm(arm).facts()
    assert facts is not None
    return tuple(LayerScales(index=each.index, k=each.k_scales, v=each.v_scales) for each in facts.layers[0])


def candidate(run: Run, name: str) -> Any:
    return next(each for each in run.decision["candidates"] if each["name"] == name)


def made(calibration: Path) -> Calibration:
    return read(calibration / "scales.json")


def test_scales_are_powers_of_two_by_which_everything_seen_fits(calibration: Path) -> None:
    layers = made(calibration).layers
    assert [layer.index for layer in layers] == list(range(30))
    for half in (half for layer in layers for half in (layer.k, layer.v)):
        (scale,) = half.scales
        assert float(np.frexp(scale)[0]) == 0.5
        assert 224 < max(half.largest) / scale <= 448


@needs_native_fp8
def test_the_engine_loads_them_and_runs_with_them(exported: Run, calibration: Path) -> None:
    assert exported.status in (0, 3, 4), exported.output
    assert attested(exported, "fp8_e4m3") == made(calibration).scales
    assert candidate(exported, "fp8_e4m3")["kv"]["scales"]["kind"] == "checkpoint"
    said = " ".join(exported.decision["attribution"]["fp8_e4m3"]["sentences"])
    assert "codes" in said, "what is stored under these scales is read back"


def test_a_reference_rounds_alike_by_the_file_and_by_the_checkpoint(
    gate: Callable[..., Run], folder: Path, exported: Run, calibration: Path
) -> None:
    """And BF16 takes no notice of the scales that the checkpoint has."""
    scales = ("kv.fp8_e4m3_ref.scales=calibrated", f"kv.fp8_e4m3_ref.scales_from={calibration}/scales.json")
    run = gate(folder, *ONE_CLASS, REFERENCE, *scales)
    assert candidate(run, "fp8_e4m3_ref")["kv"]["scales"]["kind"] == "calibrated"
    assert attested(run, "fp8_e4m3_ref") == attested(exported, "fp8_e4m3_ref") == made(calibration).scales
    one, other = RunFolder(run.folder), RunFolder(exported.folder)
    for arm in ("baseline", "fp8_e4m3_ref"):
        assert identical(one.arm(arm).replays(), other.arm(arm).replays()), arm
    assert not identical(one.arm("baseline").replays(), one.arm("fp8_e4m3_ref").replays())


def changed(calibration: Path, target: Path) -> Path:
    shutil.copytree(calibration / "checkpoint", target, symlinks=True)
    return target


def test_a_scale_of_zero_is_refused_before_an_engine_starts(
    gate: Callable[..., Run], calibration: Path, tmp_path: Path
) -> None:
    checkpoint = changed(calibration, tmp_path / "zero")
    tensors = load_file(checkpoint / SCALE_FILE)
    tensors["model.layers.3.self_attn.k_scale"][:] = 0
    save_file(tensors, checkpoint / SCALE_FILE)
    run = gate(tmp_path, *ONE_CLASS, *model(checkpoint), REFERENCE)
    assert run.status == 2, run.output
    assert "KV scales over 0 and finite, got 0.0 in model.layers.3.self_attn.k_scale" in run.output


@needs_native_fp8
def test_scales_that_the_engine_does_not_load_are_no_evidence(
    gate: Callable[..., Run], calibration: Path, tmp_path: Path
) -> None:
    """The engine reads no file that the index does not name, and runs at 1.0 without a word."""
    checkpoint = changed(calibration, tmp_path / "lost")
    index = json.loads((checkpoint / INDEX).read_text())
    index["weight_map"] = {name: file for name, file in index["weight_map"].items() if file != SCALE_FILE}
    (checkpoint / INDEX).write_text(json.dumps(index))
    run = gate(tmp_path, *ONE_CLASS, *model(checkpoint), "kv=[fp8_e4m3]")
    assert run.status == 5, run.output
    said = " ".join(run.decision["reasons"])
    assert (
        "60 scales are not those that were asked for (checkpoint), lost or changed on the way: layer 0: k_scale is 1"
        in said
    )


def test_the_turns_that_made_the_scales_decide_nothing(
    gate: Callable[..., Run], calibration: Path, tmp_path: Path
) -> None:
    run = gate(tmp_path, *ONE_CLASS[:2], "golden.folds=[0]", *model(calibration / "checkpoint"), REFERENCE)
    assert run.status == 2, run.output
    assert "kv.fp8_e4m3_ref.scales: turns of conversations that its scales were not calibrated on" in run.output
