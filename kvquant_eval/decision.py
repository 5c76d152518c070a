"""From a run's records to its decision, and the decision to a folder: with engines before it or without, in the same
bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kvquant_eval import __version__
from kvquant_eval.core import noise
from kvquant_eval.core.arms import ArmRecord
from kvquant_eval.core.codec import DataError, from_data, nearest, to_data
from kvquant_eval.core.diagnosis import Diagnosis, diagnose
from kvquant_eval.core.document import SCHEMA_VERSION, document, policy_sha256
from kvquant_eval.core.folds import restrict
from kvquant_eval.core.judge import Judgement, flags, judge
from kvquant_eval.core.records import GoldenSet, Prepared, Role
from kvquant_eval.core.score import Answers
from kvquant_eval.core.settings import Settings
from kvquant_eval.core.signoff import standing
from kvquant_eval.evidence import leave_out
from kvquant_eval.io import fidelity, report, signoffs, tables
from kvquant_eval.io import golden as golden_io
from kvquant_eval.io import noise as noise_io
from kvquant_eval.io.decisions import read_decision
from kvquant_eval.io.runfolder import RunFolder, earlier_decisions, write_json
from kvquant_eval.replay import ReplayPlan, plan_replay, plan_second, stored_arm

_log = logging.getLogger(__name__)

DECISION = "decision.json"
HEAD = ("schema_version", "kvquant_eval_version", "run_id", "created_at", "attempts")
"""What ``decision.json`` begins with: the folder's own, and not what was decided."""


@dataclass(frozen=True, kw_only=True)
class Decided:
    """A decision that stands nowhere yet. ``document`` is ``decision.json`` without its ``HEAD``; ``settings`` are
    those that it was made by, without scores that were left out.
    """

    document: dict[str, Any]
    settings: Settings
    judgement: Judgement
    golden: GoldenSet
    prepared: Prepared
    diagnosis: Diagnosis

    @property
    def post_hoc(self) -> bool:
        return bool(self.document["post_hoc"])

    def is_in(self, folder: Path) -> bool:
        """Whether the decision that stands in ``folder`` is the same one."""
        return bool(_head(folder, self.document))


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A run as it lies on disk, and the settings to decide it by."""

    run: RunFolder
    settings: Settings
    golden: GoldenSet
    plan: ReplayPlan
    records: Sequence[ArmRecord]

    def second_stage(self, answers: Answers) -> list[ArmRecord]:
        """The arms that ran flags again."""
        prepared = self.plan.prepared
        flagged = flags(self.settings, prepared, self.golden.turns, self.records, answers)
        second = plan_second(self.settings, self.golden, prepared, flagged)
        return [stored_arm(arm, self.run.confirm, len(second.blocks)) for arm in second.arms]


def load_stored(run: RunFolder, settings: Settings) -> Stored:
    """A run that ``settings`` are of. Raises DataError when its golden turns or its plan are not there any more."""
    golden = load_golden(settings)
    pinned = run.config()["pinned"]
    if golden.sha256 != pinned.get("golden_sha256"):
        found = f"{pinned.get('golden_sha256')!s:.12}, got {golden.sha256[:12]} in {settings.golden_path}"
        raise DataError(f"{run.path}: was run on golden set {found}; restore that version")
    plan = plan_replay(settings, golden, run.plan())
    if plan.sha256 != pinned.get("plan_sha256"):
        found = f"{pinned.get('plan_sha256')!s:.12}, got {plan.sha256[:12]}"
        raise DataError(f"{run.path / 'plan.jsonl'}: the plan that was run, {found}; restore it")
    name_strangers(run, plan)
    records = [stored_arm(arm, run, len(plan.blocks)) for arm in plan.arms]
    return Stored(run=run, settings=settings, golden=golden, plan=plan, records=records)


def recompute(run: RunFolder, settings: Settings) -> Decided:
    """What a stored run comes to, from its replays and answers; nothing is written. Raises DataError as
    ``load_stored``.
    """
    where = f"{run.path / 'config.yaml'}: pinned.left_out"
    left_out = from_data(dict[str, str], run.config()["pinned"].get("left_out", {}), where)
    stored, answers = load_stored(run, leave_out(settings, left_out)), run.answers.read()
    fresh = stored.second_stage(answers)
    return decide(run, stored.settings, stored.golden, stored.plan.prepared, stored.records, fresh, answers)


def decide(
    run: RunFolder,
    settings: Settings,
    golden: GoldenSet,
    prepared: Prepared,
    records: Sequence[ArmRecord],
    fresh: Sequence[ArmRecord],
    answers: Answers,
) -> Decided:
    """Judge the records of a run; nothing is written. By another policy than the one that was hashed before the first
    token it is post hoc, and what was foreseen of that one's power is no part of it.
    """
    pinned = run.config()["pinned"]
    post_hoc = pinned.get("policy_sha256") != policy_sha256(settings.policy)
    judgement = judge(settings, prepared, golden.turns, records, answers, fresh)
    diagnosis = diagnose(judgement, fidelity.read(run, [record.arm for record in records], prepared.turns))
    power = None if post_hoc else pinned.get("power")
    command = from_data(list[str], pinned.get("command", []), f"{run.path / 'config.yaml'}: pinned.command")
    decided = {
        "command": command,
        "plan_sha256": pinned.get("plan_sha256"),
        **document(judgement, settings, prepared, golden, post_hoc, diagnosis, power),
    }
    return Decided(
        document=decided,
        settings=settings,
        judgement=judgement,
        golden=golden,
        prepared=prepared,
        diagnosis=diagnosis,
    )


def write(decided: Decided, run: RunFolder, folder: Path) -> dict[str, Any]:
    """Write the tables, the reports and, last, ``decision.json`` into ``folder``, the run's own or one beside its
    decision: where it is, all is. Returns what it says.

    The same decision again keeps its ``HEAD``, and so comes out in the same bytes.
    """
    settings, said = decided.settings, decided.document
    kept = _head(folder, said)
    head = {
        "schema_version": SCHEMA_VERSION,
        "kvquant_eval_version": kept.get("kvquant_eval_version") or __version__,
        "run_id": run.run_id,
        "created_at": kept.get("created_at") or datetime.now(UTC).isoformat(timespec="seconds"),
        "attempts": kept.get("attempts") or 1 + earlier_decisions(run.path, said["identity_sha256"]),
    }
    result = {**head, **said}
    pinned = run.config()["pinned"]
    folder.mkdir(parents=True, exist_ok=True)
    RunFolder(folder).write_config({**settings.config, "pinned": pinned, "attested": said["model"]["kv"]})
    tables.write(folder, decided.judgement, said["model"], decided.prepared, decided.diagnosis)
    render(decided, folder, result)
    if folder == run.path and (found := noise.measure(decided.judgement, settings.policy, _noise_mark(run, decided))):
        noise_io.write(run, found, said["model"])
    if said["attribution"]:
        write_json(folder / "attribution.json", {**head, "model": said["model"], "arms": said["attribution"]})
    write_json(folder / "decision.json", result)
    return result


def render(decided: Decided, folder: Path, document: Mapping[str, Any]) -> None:
    """Write the reports of a decision into ``folder``, with the signatures that are kept there. ``document`` is what
    stands, or will stand, there.
    """
    signed = [to_data(each) for each in standing(signoffs.kept(RunFolder(folder)), document)]
    report.write(folder, document, decided.judgement, decided.golden, decided.prepared, signed)


def _head(folder: Path, said: Mapping[str, Any]) -> dict[str, Any]:
    """The ``HEAD`` of the decision that stands in ``folder``, if it is the same one; else nothing."""
    try:
        stored: dict[str, Any] = dict(read_decision(folder / DECISION))
    except DataError:
        return {}
    attempts = stored.get("attempts")
    sound = type(attempts) is int and attempts > 0
    return stored if sound and without_head(stored) == dict(said) else {}


def without_head(stored: Mapping[str, Any]) -> dict[str, Any]:
    """What a ``decision.json`` decides."""
    return {key: value for key, value in stored.items() if key not in HEAD}


def _noise_mark(run: RunFolder, decided: Decided) -> str:
    arms = [name for name, record in decided.judgement.arms.items() if record.arm.role is not Role.CANDIDATE]
    marks = {name: str(run.arm(name).identity().get("fingerprint", "")) for name in arms}
    return noise.fingerprint(decided.settings, decided.golden.sha256, marks)


def load_golden(settings: Settings) -> GoldenSet:
    """The golden set as pinned, of it the folds that are asked for. Raises DataError."""
    golden = golden_io.load(Path(settings.golden_path), settings.policy.scores)
    known = {turn.turn_id for turn in golden.turns}
    for turn_id in settings.policy.critical_turns:
        if turn_id not in known:
            rule = f"ids of golden turns, got {turn_id[:80]!r}"
            raise DataError(f"gate.critical_turns: {rule}; {nearest(turn_id, sorted(known))}")
    return restrict(golden, settings.folds, settings.policy.scores)


def name_strangers(run: RunFolder, plan: ReplayPlan) -> None:
    """Say which files of the folder are of no run."""
    for name in run.strangers(arm.name for arm in plan.arms):
        _log.warning("%s: not a file of this run; it is not read", run.path / name)
