"""Calibrate: replay some turns once in BF16, look at K and V, make scales of their magnitudes, export them."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from kvquant_eval.core.arms import ArmRecord
from kvquant_eval.core.calibration import calibration_of, formats_to_calibrate
from kvquant_eval.core.codec import to_data
from kvquant_eval.core.scales import Calibration
from kvquant_eval.core.settings import ReportSettings, Settings
from kvquant_eval.core.soundness import baseline_findings
from kvquant_eval.io.calibrations import SCALES
from kvquant_eval.io.child import EngineDied
from kvquant_eval.io.export import export, why_not
from kvquant_eval.io.runfolder import RunFolder, new_run, write_json
from kvquant_eval.pipeline import Ready, make_ready, named
from kvquant_eval.replay import Stage, places

CHECKPOINT = "checkpoint"


@dataclass(frozen=True, kw_only=True)
class Calibrated:
    """What a calibration left: its folder with ``scales.json``, and the ``checkpoint`` in it. ``not_exported`` says why
    there is none (empty: there is).
    """

    folder: RunFolder
    calibration: Calibration
    not_exported: str

    @property
    def scales(self) -> Path:
        return self.folder.path / SCALES

    @property
    def checkpoint(self) -> Path:
        return self.folder.path / CHECKPOINT


def calibrate(settings: Settings) -> Calibrated:
    """Run the eager baseline over the turns of ``golden.folds`` with the range profile, and write down what it saw.

    Blocks of an earlier run of the same are used again. Raises DataError for bad input, EngineDied for a baseline that
    did not come to its end or is none.
    """
    formats_to_calibrate(settings)
    settings = replace(settings, report=ReportSettings(range_profile=True))
    ready = _looking(make_ready(settings))
    run = new_run(Path(settings.runs_dir), f"{datetime.now(UTC):%Y%m%dT%H%M%S}{named(settings, 'calibration')}")
    with run.locked():
        shutil.move(ready.log, run.path / "prepare.log")
        run.write_config({**settings.config, "pinned": {"verb": "calibrate", "golden_sha256": ready.golden.sha256}})
        run.write_plan(ready.plan.prepared)
        with places(settings) as engines:
            (record,) = Stage(settings, ready.plan, run, engines).replay()
        _refuse_unsound(record)
        made = calibration_of(settings, ready.golden, ready.plan.prepared, record)
        write_json(run.path / SCALES, to_data(made))
        reason = why_not(made, ready.plan.prepared)
        if not reason:
            export(made, ready.plan.prepared, run.path / CHECKPOINT)
        run.finish({"experiment": "", "runs": [], "error": ""})
    return Calibrated(folder=run, calibration=made, not_exported=reason)


def _looking(ready: Ready) -> Ready:
    """Of the plan the one arm that takes the profile."""
    arms = [arm for arm in ready.plan.arms if arm.profile]
    return replace(ready, plan=replace(ready.plan, arms=arms))


def _refuse_unsound(record: ArmRecord) -> None:
    wrong = next((finding for finding in baseline_findings(record) if finding.invalid), None)
    if wrong:
        raise EngineDied(f"{wrong.where}: {wrong.what}: no scales are made of that")
