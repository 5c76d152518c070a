"""The stages in order: golden -> prepare -> plan -> replay -> judge -> artifacts -> tracking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kvquant_eval.core.arms import plan_arms
from kvquant_eval.core.attest import refuse_impossible
from kvquant_eval.core.codec import DataError
from kvquant_eval.core.document import SCHEMA_VERSION, document, policy_sha256
from kvquant_eval.core.judge import ArmRecord, Judgement, judge
from kvquant_eval.core.plan import make_blocks
from kvquant_eval.core.records import GoldenSet, Prepared
from kvquant_eval.core.settings import Settings
from kvquant_eval.io import golden as golden_io
from kvquant_eval.io import report, tables, tracking
from kvquant_eval.io.runfolder import RunFolder, earlier_decisions, new_run, write_json
from kvquant_eval.replay import Stage, prepare, stored_arm


@dataclass(frozen=True, kw_only=True)
class GateRun:
    """A decided run: its folder, the decision document, and what it was decided from."""

    folder: RunFolder
    document: dict[str, Any]
    judgement: Judgement
    golden: GoldenSet
    prepared: Prepared


def gate(settings: Settings) -> GateRun:
    """Replay every arm and decide. Raises DataError for bad input, before an engine starts wherever it can be known."""
    for treatment in (settings.baseline, *settings.candidates.values()):
        refuse_impossible(treatment, settings.engine.platform)
    golden = golden_io.load(Path(settings.golden_path), settings.policy.scores)
    run = new_run(Path(settings.runs_dir), _stem(settings))
    pinned = {"golden_sha256": golden.sha256, "policy_sha256": policy_sha256(settings.policy)}
    run.write_config({**settings.config, "pinned": pinned, "attested": "not yet read back"})
    prepared = prepare(settings, golden, run)
    blocks = make_blocks(prepared.turns, settings.sampling, settings.block_requests)
    records = Stage(settings, prepared, blocks, golden.sha256, run).replay(plan_arms(settings))
    return decide_run(run, settings, golden, prepared, records)


def regate(run: RunFolder, settings: Settings) -> GateRun:
    """Decide a stored run again, without an engine. Raises DataError when its golden turns are not there any more."""
    golden = golden_io.load(Path(settings.golden_path), settings.policy.scores)
    pinned = run.config()["pinned"]["golden_sha256"]
    if golden.sha256 != pinned:
        found = f"golden set {pinned[:12]}, got {golden.sha256[:12]} in {settings.golden_path}"
        raise DataError(f"{run.path}: was run on {found}; restore that version")
    return decide_run(run, settings, golden, run.plan(), [stored_arm(arm, run) for arm in plan_arms(settings)])


def decide_run(
    run: RunFolder, settings: Settings, golden: GoldenSet, prepared: Prepared, records: Sequence[ArmRecord]
) -> GateRun:
    """Judge the records and write the decision, the tables and the reports."""
    pinned = run.config()["pinned"]
    post_hoc = pinned["policy_sha256"] != policy_sha256(settings.policy)
    judgement = judge(settings, prepared, golden.turns, records)
    decided = document(judgement, settings, prepared, golden, post_hoc)
    head = {
        "schema_version": SCHEMA_VERSION,
        "run_id": run.run_id,
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "attempts": 1 + earlier_decisions(run.path, decided["identity_sha256"]),
    }
    result = {**head, **decided}
    run.write_config({**settings.config, "pinned": pinned, "attested": decided["model"]["kv"]})
    write_json(run.path / "decision.json", result)
    tables.write(run.path, judgement, decided["model"], prepared)
    report.write(run.path, result, judgement, golden, prepared)
    return GateRun(folder=run, document=result, judgement=judgement, golden=golden, prepared=prepared)


def _stem(settings: Settings) -> str:
    """``<UTC time>-<model>-<candidates>``, of letters that are safe in a file name."""
    raw = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{settings.model.id.split('/')[-1]}-{'+'.join(settings.candidates)}"
    return "".join(c if c.isalnum() or c in "-+._" else "-" for c in raw)[:120]


def track(folder: RunFolder, settings: Settings) -> list[str]:
    """Log a decided run to MLflow; what could not be logged comes back as a warning, and the decision stands."""
    try:
        tracking.log(folder.path, settings.tracking)
    except tracking.TrackingError as error:
        return [str(error)]
    return []
