"""The replay stage: one child process an arm, block by block into the journal, picking up where an earlier one
stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from kvquant_eval.core.arms import Arm, fingerprint, plan_arms
from kvquant_eval.core.attest import canonical_dtype, effective_dtype, judge_arm
from kvquant_eval.core.codec import from_data, to_data
from kvquant_eval.core.judge import ArmRecord
from kvquant_eval.core.plan import reorder
from kvquant_eval.core.records import Block, BlockResult, EngineFacts, EngineSpec, GoldenSet, Prepared
from kvquant_eval.core.settings import Settings
from kvquant_eval.io.child import Child, EngineDied
from kvquant_eval.io.runfolder import ArmFolder, RunFolder, code_sha256, reuse

WORKER = Path(__file__).parent / "worker"


def prepare(settings: Settings, golden: GoldenSet, run: RunFolder) -> Prepared:
    """Make the model ready and render the golden turns, in a child. Raises DataError, EngineDied."""
    with Child(run.path / "prepare.log", settings.engine.timeout_s) as child:
        answer = child.call(
            "prepare",
            preparer=settings.engine.preparer,
            model=to_data(settings.model),
            turns=[to_data(turn) for turn in golden.turns],
            args=dict(settings.engine.args),
            cache=settings.cache_dir,
            treatments=[to_data(arm.treatment) for arm in plan_arms(settings)],
        )
    prepared = from_data(Prepared, answer, "prepare")
    run.write_plan(prepared)
    return prepared


def replay_arm(
    arm: Arm, settings: Settings, prepared: Prepared, blocks: Sequence[Block], golden: GoldenSet, run: RunFolder
) -> ArmRecord:
    """Run what is missing of an arm; an engine that dies is started again ``engine.retries`` times.

    An arm whose read-back shows another dtype than the requested one is not replayed: its facts are enough.
    """
    folder = run.arm(arm.name)
    mark = fingerprint(arm, settings, prepared, blocks, golden.sha256, code_sha256(WORKER))
    reused = reuse(run.path.parent, mark, folder)
    folder.write_identity({**_identity(arm, settings, folder.facts()), "fingerprint": mark, "blocks_reused": reused})
    error = ""
    for _ in range(settings.engine.retries + 1):
        try:
            error = ""
            _replay_missing(arm, settings, prepared, blocks, folder)
            break
        except EngineDied as died:
            error = str(died)
    identity = {**folder.identity(), **_identity(arm, settings, folder.facts())}
    folder.write_identity({**identity, "error": error})
    return ArmRecord(arm=arm, facts=folder.facts(), replays=folder.replays(), counts=folder.counts(), error=error)


def stored_arm(arm: Arm, run: RunFolder) -> ArmRecord:
    """An arm as an earlier run left it."""
    folder = run.arm(arm.name)
    error = str(folder.identity().get("error", ""))
    return ArmRecord(arm=arm, facts=folder.facts(), replays=folder.replays(), counts=folder.counts(), error=error)


def _replay_missing(
    arm: Arm, settings: Settings, prepared: Prepared, blocks: Sequence[Block], folder: ArmFolder
) -> None:
    journal = folder.journal
    journal.truncate_unfinished()
    done = {block.index for block in journal.blocks()}
    order = blocks if arm.order_seed is None else reorder(blocks, arm.order_seed)
    todo = [block for block in order if block.index not in done]
    if not todo:
        return
    spec = EngineSpec(
        model=prepared.path,
        revision=None,
        treatment=arm.treatment,
        args={**arm.args, "trust_remote_code": settings.model.trust_remote_code},
        top_logprobs=settings.engine.top_logprobs,
    )
    with (
        Child(folder.log, settings.engine.timeout_s, settings.engine.env) as child,
        tqdm(total=len(order), initial=len(done), desc=arm.name, unit="block", disable=None) as progress,
    ):
        child.call("open", engine=settings.engine.engine, spec=to_data(spec))
        facts = from_data(EngineFacts, child.call("facts"), "facts")
        folder.write_facts(facts, _identity(arm, settings, facts))
        if any(finding.invalid for finding in judge_arm(arm.name, arm.treatment, facts)):
            return
        for block in todo:
            journal.commit(from_data(BlockResult, child.call("run", block=to_data(block)), "block"))
            progress.update()
        folder.write_facts(from_data(EngineFacts, child.call("facts"), "facts"), _identity(arm, settings, facts))


def _identity(arm: Arm, settings: Settings, facts: EngineFacts | None) -> dict[str, Any]:
    """Model id and KV dtype, together, as every artifact carries them."""
    return {
        "model": settings.model.id,
        "revision": settings.model.revision,
        "kv_requested": canonical_dtype(arm.treatment.dtype),
        "kv_effective": effective_dtype(facts) if facts else "not read back",
        "kv_realisation": str(arm.treatment.realisation),
        "arm": arm.name,
        "role": str(arm.role),
    }
