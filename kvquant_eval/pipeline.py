"""The stages in order: golden -> prepare -> plan -> replay -> judge -> artifacts -> tracking."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kvquant_eval.core import noise
from kvquant_eval.core.arms import Arm, ArmRecord, differences
from kvquant_eval.core.attest import refuse_impossible
from kvquant_eval.core.calibration import refuse_unfit
from kvquant_eval.core.codec import DataError, digest, from_data, nearest
from kvquant_eval.core.diagnosis import diagnose
from kvquant_eval.core.document import SCHEMA_VERSION, document, policy_sha256
from kvquant_eval.core.folds import restrict
from kvquant_eval.core.forecast import Forecast, find_power, forecast, said
from kvquant_eval.core.judge import Judgement, asked, asked_once, flags, is_lost, judge
from kvquant_eval.core.power import Power, as_data, refuse_hopeless
from kvquant_eval.core.records import GoldenSet, Prepared, Role
from kvquant_eval.core.settings import Settings
from kvquant_eval.evidence import EXECUTION_REMEDY, executable, gather, leave_out, oracles, refuse_unready
from kvquant_eval.io import fidelity, report, tables, tracking
from kvquant_eval.io import golden as golden_io
from kvquant_eval.io import noise as noise_io
from kvquant_eval.io.report import summary
from kvquant_eval.io.runfolder import RunFolder, earlier_decisions, fullest, last_speed, latest, new_run, write_json
from kvquant_eval.replay import ReplayPlan, Stage, places, plan_replay, plan_second, prepare, stored_arm

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class GateRun:
    """A decided run: its folder, the decision document, and what it was decided from.

    ``warnings`` are lines for the user: the decision stands all the same.
    """

    folder: RunFolder
    document: dict[str, Any]
    judgement: Judgement
    golden: GoldenSet
    prepared: Prepared
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Ready:
    """All there is before the first engine starts. ``log`` is what the preparing child wrote."""

    golden: GoldenSet
    plan: ReplayPlan
    log: Path


def gate(settings: Settings, resumed: RunFolder | None = None) -> GateRun:
    """Replay every arm and decide. Raises DataError for bad input, before an engine starts wherever it can be known.

    It goes on with ``resumed``, or by itself with the last run when that one asked the same and was broken off. An
    error that leaves a run to go on with says how in a note.
    """
    began = time.monotonic()
    settings = executable(settings)
    ready = make_ready(settings)
    _name_left_out(settings)
    with ExitStack() as lock:
        foreseen = _foresee(settings, ready)
        run = _claim(settings, ready, resumed, lock, foreseen.power)
        for line in said(foreseen, settings.policy):
            _log.info(line)
        try:
            shutil.move(ready.log, run.path / "prepare.log")
            run.write_plan(ready.plan.prepared)
            deadline = None if settings.max_minutes is None else began + 60 * settings.max_minutes
            with places(settings) as engines:
                stage = Stage(settings, ready.plan, run, engines, deadline, _enough(run, settings, ready))
                records = stage.replay()
                fresh = [] if stage.stopped.is_set() else _again(run, settings, ready, records, stage)
            decided = _decide(run, settings, ready.golden, ready.plan.prepared, records, fresh)
            if stage.stopped.is_set() and any(record.unfinished for record in (*records, *fresh)):
                line = f"stopped after {settings.max_minutes:g} minutes (gate.max_minutes); {_how_to_go_on(run)}"
                return replace(decided, warnings=(line,))
            return replace(decided, warnings=track(run, settings))
        except BaseException as error:
            error.add_note(_how_to_go_on(run))
            raise


def rehearse(settings: Settings) -> Forecast:
    """Everything but the engines: what the gate would run, what that takes, and what it could see."""
    settings = executable(settings)
    ready = make_ready(settings)
    _name_left_out(settings)
    ready.log.unlink(missing_ok=True)
    return _foresee(settings, ready)


def _foresee(settings: Settings, ready: Ready) -> Forecast:
    plan, runs_dir = ready.plan, Path(settings.runs_dir)
    done = {arm.name: fullest(runs_dir, plan.fingerprint(arm.name))[1] if settings.reuse else 0 for arm in plan.arms}
    speed = last_speed(runs_dir, plan.ingredients["baseline"])
    arms = {arm.name: plan.fingerprint(arm.name) for arm in plan.arms if arm.role is not Role.CANDIDATE}
    mark = noise.fingerprint(settings, ready.golden.sha256, arms)
    seen = noise_io.newest(runs_dir, mark) if settings.reuse else None
    power = find_power(settings, plan.prepared.turns, ready.golden.turns, *(seen or ()))
    return forecast(settings, plan.prepared, plan.blocks, done, speed, power)


def regate(run: RunFolder, settings: Settings) -> GateRun:
    """Decide a stored run again, without an engine. Raises DataError when its golden turns or its plan are not there
    any more.
    """
    with run.locked():
        golden = _load(settings)
        pinned = run.config()["pinned"]
        left_out = from_data(dict[str, str], pinned.get("left_out", {}), f"{run.path / 'config.yaml'}: pinned.left_out")
        settings = leave_out(settings, left_out)
        if golden.sha256 != pinned.get("golden_sha256"):
            found = f"{pinned.get('golden_sha256')!s:.12}, got {golden.sha256[:12]} in {settings.golden_path}"
            raise DataError(f"{run.path}: was run on golden set {found}; restore that version")
        plan = plan_replay(settings, golden, run.plan())
        if plan.sha256 != pinned.get("plan_sha256"):
            found = f"{pinned.get('plan_sha256')!s:.12}, got {plan.sha256[:12]}"
            raise DataError(f"{run.path / 'plan.jsonl'}: the plan that was run, {found}; restore it")
        _name_strangers(run, plan)
        records = [stored_arm(arm, run, len(plan.blocks)) for arm in plan.arms]
        flagged = flags(settings, plan.prepared, golden.turns, records, run.answers.read())
        second = plan_second(settings, golden, plan.prepared, flagged)
        fresh = [stored_arm(arm, run.confirm, len(second.blocks)) for arm in second.arms]
        decided = _decide(run, settings, golden, plan.prepared, records, fresh)
        return replace(decided, warnings=track(run, settings)) if run.finished else decided


def track(run: RunFolder, settings: Settings) -> tuple[str, ...]:
    """Log a decided run to MLflow and close it; what could not be logged comes back as a warning, and the decision
    stands.
    """
    runs, warnings = [], []
    try:
        runs = tracking.log(run.path, settings.tracking)
    except tracking.TrackingError as error:
        warnings.append(str(error))
    try:
        run.finish({"experiment": settings.tracking.experiment, "runs": runs, "error": "".join(warnings)})
    except OSError as error:
        warnings.append(f"{error.filename}: {error.strerror}; the decision stands")
    return tuple(warnings)


def make_ready(settings: Settings) -> Ready:
    """Everything before the first engine: dtypes that can run, golden turns as pinned, the model ready, the turns
    rendered and cut into blocks, and no scales that these turns had a part in. Raises DataError, EngineDied.
    """
    for treatment in (settings.baseline, *settings.candidates.values()):
        refuse_impossible(treatment, settings.engine.platform)
    refuse_unready(settings)
    golden = _load(settings)
    log = Path(settings.cache_dir) / f"prepare-{os.getpid()}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    try:
        prepared = prepare(settings, golden, log)
        refuse_unfit(settings, golden, prepared)
        return Ready(golden=golden, plan=plan_replay(settings, golden, prepared), log=log)
    except DataError:
        log.unlink(missing_ok=True)  # the message says it all
        raise


def _load(settings: Settings) -> GoldenSet:
    """The golden set as pinned, of it the folds that are asked for. Raises DataError."""
    golden = golden_io.load(Path(settings.golden_path), settings.policy.scores)
    known = {turn.turn_id for turn in golden.turns}
    for turn_id in settings.policy.critical_turns:
        if turn_id not in known:
            rule = f"ids of golden turns, got {turn_id[:80]!r}"
            raise DataError(f"gate.critical_turns: {rule}; {nearest(turn_id, sorted(known))}")
    return restrict(golden, settings.folds, settings.policy.scores)


def _claim(settings: Settings, ready: Ready, resumed: RunFolder | None, lock: ExitStack, power: Power) -> RunFolder:
    """The folder to run in, locked: one to go on with, or a new one. Raises DataError where ``resumed`` is no run to go
    on with, or the ``power`` of a new one is too little.
    """
    pinned = _pinned(settings, ready)
    if resumed is not None:
        lock.enter_context(resumed.locked())
        if resumed.finished:
            raise DataError(f"resume: a run that was broken off, got {resumed.path}, which is finished; use regate")
        if changed := _changed(resumed, pinned, ready.plan):
            raise DataError(f"{resumed.path}: the run that was begun, got {changed}; restore that, or start a new run")
        _name_strangers(resumed, ready.plan)
        return resumed
    if (found := _broken_off(settings, pinned, ready.plan)) is not None:
        with suppress(DataError):  # somebody else is going on with it
            lock.enter_context(found.locked())
            if not found.finished:
                _name_strangers(found, ready.plan)
                return found
    refuse_hopeless(power, settings.policy)
    pinned["power"] = as_data(power, settings.policy)
    run = new_run(Path(settings.runs_dir), f"{datetime.now(UTC):%Y%m%dT%H%M%S}{_ending(settings)}")
    lock.enter_context(run.locked())
    run.write_config({**settings.config, "pinned": pinned, "attested": "not yet read back"})
    return run


def _broken_off(settings: Settings, pinned: Mapping[str, Any], plan: ReplayPlan) -> RunFolder | None:
    """The last run, where it asked the same and did not come to its end. One that other code or other turns were run in
    is named and left alone.
    """
    for run in latest(Path(settings.runs_dir), _ending(settings)) if settings.reuse else ():
        if run.finished:
            return None
        with suppress(DataError):  # a damaged folder, or one that is just being made
            if _asked(run.config()) == _asked(settings.config):
                changed = _changed(run, pinned, plan)
                if changed:
                    _log.warning("%s was broken off and is not taken up again: %s", run.path, changed)
                return None if changed else run
    return None


def _asked(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration without what does not belong to the question."""
    gate = {k: v for k, v in config["gate"].items() if k != "max_minutes"} if "gate" in config else {}
    return {k: v for k, v in config.items() if k not in ("pinned", "attested", "resume")} | {"gate": gate}


def _pinned(settings: Settings, ready: Ready) -> dict[str, Any]:
    left_out = {"left_out": dict(settings.left_out)} if settings.left_out else {}
    return {
        **left_out,
        "golden_sha256": ready.golden.sha256,
        "policy_sha256": policy_sha256(settings.policy),
        "plan_sha256": ready.plan.sha256,
        "arms_sha256": digest({name: dict(values) for name, values in ready.plan.ingredients.items()}),
    }


def _changed(run: RunFolder, pinned: Mapping[str, Any], plan: ReplayPlan) -> str:
    """What is not as it was when the run was begun (empty: nothing)."""
    then = {key: value for key, value in run.config()["pinned"].items() if key != "power"}
    if then == pinned:
        return ""
    for arm in plan.arms:
        stored = run.arm(arm.name).identity().get("ingredients")
        if stored and (found := differences(stored, plan.ingredients[arm.name])):
            return found[0]
    return "; ".join(differences(then, pinned))


def _name_strangers(run: RunFolder, plan: ReplayPlan) -> None:
    for name in run.strangers(arm.name for arm in plan.arms):
        _log.warning("%s: not a file of this run; it is not read", run.path / name)


def _name_left_out(settings: Settings) -> None:
    for name, why in settings.left_out.items():
        _log.warning("%s: left out: %s; %s", name, why, EXECUTION_REMEDY)


def _how_to_go_on(run: RunFolder) -> str:
    return f"the same command goes on with {run.path}, and so does: kvquant-eval gate resume={run.path}"


def _again(
    run: RunFolder, settings: Settings, ready: Ready, records: Sequence[ArmRecord], stage: Stage
) -> list[ArmRecord]:
    """Ask what scorers must ask, and run flags of sampled replies again, in the same places and by the same time."""
    prepared, turns = ready.plan.prepared, ready.golden.turns
    gather(asked(settings, prepared, turns, records), oracles(settings), run.answers)
    found = flags(settings, prepared, turns, records, run.answers.read())
    if not found:
        return []
    second = plan_second(settings, ready.golden, prepared, found)
    fresh = replace(stage, plan=second, run=run.confirm, enough=lambda _: False).replay()
    if not stage.stopped.is_set():
        gather(asked_once(settings, prepared, turns, fresh), oracles(settings), run.answers)
    return fresh


def _enough(run: RunFolder, settings: Settings, ready: Ready) -> Callable[[Arm], bool]:
    """Says, with ``gate.early_stop``, that a candidate is lost already."""
    blocks = len(ready.plan.blocks)
    arms = {arm.name: arm for arm in ready.plan.arms}

    def enough(arm: Arm) -> bool:
        if not settings.policy.early_stop or arm.role is not Role.CANDIDATE:
            return False
        baseline, record = (stored_arm(each, run, blocks) for each in (arms[arm.baseline], arm))
        return is_lost(settings, ready.plan.prepared, ready.golden.turns, baseline, record)

    return enough


def _decide(
    run: RunFolder,
    settings: Settings,
    golden: GoldenSet,
    prepared: Prepared,
    records: Sequence[ArmRecord],
    fresh: Sequence[ArmRecord],
) -> GateRun:
    """Judge the records and write the tables, the reports and, last, the decision: where it is, all is."""
    pinned = run.config()["pinned"]
    post_hoc = pinned.get("policy_sha256") != policy_sha256(settings.policy)
    judgement = judge(settings, prepared, golden.turns, records, run.answers.read(), fresh)
    diagnosis = diagnose(judgement, fidelity.read(run, [record.arm for record in records], prepared.turns))
    decided = document(judgement, settings, prepared, golden, post_hoc, diagnosis, pinned.get("power"))
    head = {
        "schema_version": SCHEMA_VERSION,
        "run_id": run.run_id,
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "attempts": 1 + earlier_decisions(run.path, decided["identity_sha256"]),
    }
    result = {**head, **decided}
    run.write_config({**settings.config, "pinned": pinned, "attested": decided["model"]["kv"]})
    tables.write(run.path, judgement, decided["model"], prepared, diagnosis)
    report.write(run.path, result, judgement, golden, prepared)
    summary.write(run.path, result, judgement)
    if found := noise.measure(judgement, settings.policy, _noise_mark(run, settings, golden, records)):
        noise_io.write(run, found, decided["model"])
    if decided["attribution"]:
        write_json(run.path / "attribution.json", {**head, "model": decided["model"], "arms": decided["attribution"]})
    write_json(run.path / "decision.json", result)
    return GateRun(folder=run, document=result, judgement=judgement, golden=golden, prepared=prepared)


def _noise_mark(run: RunFolder, settings: Settings, golden: GoldenSet, records: Sequence[ArmRecord]) -> str:
    arms = [record.arm for record in records if record.arm.role is not Role.CANDIDATE]
    marks = {arm.name: str(run.arm(arm.name).identity().get("fingerprint", "")) for arm in arms}
    return noise.fingerprint(settings, golden.sha256, marks)


def _ending(settings: Settings) -> str:
    return named(settings, "+".join(settings.candidates))


def named(settings: Settings, what: str) -> str:
    """``-<model>-<what>``, of letters that are safe in a file name: a run is named by its UTC time and this."""
    raw = f"-{settings.model.id.split('/')[-1]}-{what}"
    return "".join(c if c.isascii() and (c.isalnum() or c in "-+._") else "-" for c in raw)[:105]
