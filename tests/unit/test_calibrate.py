"""A calibration from golden turns to scales, and the gates that may use them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvquant_eval.calibrate import Calibrated, calibrate
from kvquant_eval.core.codec import DataError
from kvquant_eval.core.folds import FOLDS, fold_of
from kvquant_eval.core.scales import Per, ScaleSource, hashes
from kvquant_eval.core.settings import Settings
from kvquant_eval.core.treatment import KVTreatment, Realisation
from kvquant_eval.io.calibrations import read
from kvquant_eval.io.child import EngineDied
from kvquant_eval.io.golden import load
from kvquant_eval.pipeline import GateRun, gate
from tests.fakes.gate import settings, treatments, write_golden

OTHERS = tuple(range(1, FOLDS))
E5M2 = treatments("good", dtype="fp8_e5m2")
"""Nothing exports its scales, so that the fake model needs no folder."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("calibrate")
    write_golden(path / "golden")
    return path


@pytest.fixture(scope="module")
def made(folder: Path) -> Calibrated:
    return calibrate(settings(folder, E5M2, folds=(0,)))


def using(folder: Path, made: Calibrated, name: str = "ref", **changes: Any) -> Settings:
    """A gate with the scales as a reference's."""
    treatment = KVTreatment(
        name=name,
        dtype="fp8_e5m2",
        realisation=Realisation.REFERENCE,
        scales=ScaleSource.CALIBRATED,
        layer_scales=made.calibration.scales,
    )
    given = {"calibrations": {name: made.calibration}, "folds": OTHERS, **changes}
    return settings(folder, {name: treatment}, **given)


def candidate(run: GateRun) -> Any:
    return json.loads((run.folder.path / "decision.json").read_text())["candidates"][0]


def test_scales_are_made_of_what_the_baseline_saw_on_the_fold(folder: Path, made: Calibrated) -> None:
    calibration, dealt = read(made.scales), fold_of(load(folder / "golden", ["faq", "math_chain"]).turns)
    assert calibration == made.calibration
    assert calibration.conversations == hashes(name for name, fold in dealt.items() if fold == 0)
    assert (calibration.folds, calibration.k_format, calibration.model_dtype) == ((0,), "fp8_e5m2", "bfloat16")
    assert [layer.index for layer in calibration.layers] == [0, 1, 2, 3]
    outlier = calibration.layers[2].k
    assert 5000 <= max(outlier.largest) <= 10000
    assert outlier.scales == (2.0**-2 if max(outlier.largest) > 57344 / 8 else 2.0**-3,)


def test_only_the_baseline_ran(made: Calibrated) -> None:
    assert [path.name for path in (made.folder.path / "arms").iterdir()] == ["baseline"]
    assert made.folder.finished
    assert made.folder.strangers(["baseline"]) == []
    assert "not of fp8_e5m2" in made.not_exported
    assert not made.checkpoint.exists()


def test_a_second_calibration_uses_the_same_replays(folder: Path, made: Calibrated) -> None:
    again = calibrate(settings(folder, E5M2, folds=(0,), per=Per.HEAD))
    assert json.loads((again.folder.path / "arms/baseline/arm.json").read_text())["blocks_reused"] > 0
    assert [len(layer.k.scales) for layer in again.calibration.layers] == [2, 2, 2, 2]
    for one, other in zip(again.calibration.layers, made.calibration.layers, strict=True):
        assert one.k.largest == other.k.largest


def test_other_folds_are_gated_with_them(folder: Path, made: Calibrated) -> None:
    run = gate(using(folder, made))
    scales = [half for layer in made.calibration.scales for half in layer.k]
    assert candidate(run)["kv"]["scales"]["kind"] == "calibrated"
    assert candidate(run)["kv"]["scales"]["k"] == [min(scales), max(scales)]
    assert not any("scale" in finding["what"] for finding in candidate(run)["findings"])


def test_scales_that_the_engine_lost_are_no_evidence(folder: Path, made: Calibrated) -> None:
    run = gate(using(folder, made, "loses_scales"))
    assert candidate(run)["decision"] == "INVALID"
    assert any("lost or changed on the way: layer 0" in finding["what"] for finding in candidate(run)["findings"])


def test_the_turns_that_made_them_decide_nothing(folder: Path, made: Calibrated) -> None:
    for folds in ((), (0,), (0, 3)):
        with pytest.raises(DataError, match=r"^kv\.ref\.scales_from: turns of conversations .*; take other folds"):
            gate(using(folder, made, folds=folds))


def test_scales_of_another_model_are_refused(folder: Path, made: Calibrated) -> None:
    other = using(folder, made)
    other = replace(other, model=replace(other.model, id="org/other"))
    with pytest.raises(DataError, match=r"^kv\.ref\.scales_from: scales of the weights .* of org/other, got those"):
        gate(other)


def test_two_formats_have_no_scales_in_common(folder: Path) -> None:
    with pytest.raises(DataError, match=r"^kv: candidates of one format with a fixed range .*, got fp8_e4m3, fp8_e5m2"):
        calibrate(settings(folder, {**treatments("a"), **treatments("b", dtype="fp8_e5m2")}))


def test_a_baseline_that_is_none_makes_no_scales(folder: Path) -> None:
    with pytest.raises(EngineDied, match=r"^baseline: .*: no scales are made of that$"):
        calibrate(settings(folder, E5M2, folds=(1,), args={"faults": {"baseline": "broken"}}))
