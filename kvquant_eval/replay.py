"""The replay stage: one child process an arm, block by block into the journal, going on where an earlier run
stopped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from threading import Event
from typing import Any

from tqdm import tqdm

from kvquant_eval.core.arms import Arm, fingerprint, plan_arms
from kvquant_eval.core.attest import canonical_dtype, effective_dtype, judge_arm
from kvquant_eval.core.codec import from_data, to_data
from kvquant_eval.core.engine import EngineFacts, EngineSpec
from kvquant_eval.core.judge import ArmRecord
from kvquant_eval.core.plan import reorder
from kvquant_eval.core.records import Block, BlockResult, GoldenSet, Prepared
from kvquant_eval.core.settings import Settings
from kvquant_eval.io.child import Child, EngineDied
from kvquant_eval.io.runfolder import ArmFolder, RunFolder, code_sha256, reuse

PACKAGE = Path(__file__).parent
ARM_CODE = (*(PACKAGE / "worker").glob("*.py"), PACKAGE / "core" / "outcome.py")
"""The code that decides what stands in a journal."""


def prepare(settings: Settings, golden: GoldenSet, run: RunFolder) -> Prepared:
    """Make the model ready and render the golden turns, in a child. Raises DataError, EngineDied."""
    with Child(run.path / "prepare.log", settings.engine.timeout_s, settings.engine.env) as child:
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


@dataclass(frozen=True)
class Stage:
    """The replay stage of one run. ``children`` are the engines at work, so that an interrupted gate can end them."""

    settings: Settings
    prepared: Prepared
    blocks: Sequence[Block]
    golden_sha256: str
    run: RunFolder
    children: list[Child] = field(default_factory=list)
    stopped: Event = field(default_factory=Event)

    def replay(self, arms: Sequence[Arm]) -> list[ArmRecord]:
        """Run the arms, as many at a time as ``engine.slots`` has places."""
        slots: SimpleQueue[Mapping[str, str]] = SimpleQueue()
        for slot in self.settings.engine.slots:
            slots.put(slot)

        def work(arm: Arm) -> ArmRecord:
            slot = slots.get()
            try:
                return self._arm(arm, slot)
            finally:
                slots.put(slot)

        with ThreadPoolExecutor(len(self.settings.engine.slots)) as pool:
            futures = [pool.submit(work, arm) for arm in arms]
            try:
                return [future.result() for future in futures]
            except BaseException:
                self.stopped.set()
                pool.shutdown(wait=False, cancel_futures=True)
                for child in self.children:
                    child.kill()
                raise

    def _arm(self, arm: Arm, slot: Mapping[str, str]) -> ArmRecord:
        """Run what is missing of an arm; an engine that dies is started again ``engine.retries`` times."""
        folder = self.run.arm(arm.name)
        code = code_sha256(ARM_CODE)
        mark = fingerprint(arm, self.settings, self.prepared, self.blocks, self.golden_sha256, code)
        reused = reuse(self.run.path.parent, mark, folder)
        identity = {"fingerprint": mark, "blocks_reused": reused}
        folder.write_identity({**_identity(arm, self.settings, folder.facts()), **identity})
        error = ""
        for _ in range(self.settings.engine.retries + 1):
            try:
                error = ""
                self._missing(arm, folder, slot)
                break
            except EngineDied as died:
                error = str(died)
        folder.write_identity({**_identity(arm, self.settings, folder.facts()), **identity, "error": error})
        return stored_arm(arm, self.run)

    def _missing(self, arm: Arm, folder: ArmFolder, slot: Mapping[str, str]) -> None:
        """Replay the blocks that the journal does not have.

        An arm whose read-back shows another dtype than the requested one is not replayed: its facts are enough.
        """
        settings, journal = self.settings, folder.journal
        journal.truncate_unfinished()
        done = {block.index for block in journal.blocks()}
        order = self.blocks if arm.order_seed is None else reorder(self.blocks, arm.order_seed)
        todo = [block for block in order if block.index not in done]
        if not todo or self.stopped.is_set():
            return
        with (
            Child(folder.log, settings.engine.timeout_s, {**settings.engine.env, **slot}) as child,
            tqdm(total=len(order), initial=len(done), desc=arm.name, unit="block", disable=None) as progress,
        ):
            self.children.append(child)
            if self.stopped.is_set():  # it began while the others were being ended
                return
            child.call("open", engine=settings.engine.engine, spec=to_data(self._spec(arm)))
            facts = from_data(EngineFacts, child.call("facts"), "facts")
            folder.write_facts(facts, _identity(arm, settings, facts))
            if any(finding.invalid for finding in judge_arm(arm.name, arm.treatment, facts)):
                return
            journal.begin(_identity(arm, settings, facts))
            for block in todo:
                journal.commit(from_data(BlockResult, child.call("run", block=to_data(block)), "block"))
                progress.update()
            counts = [block.second_rounding for block in journal.blocks()]
            rounding = (sum(inexact for inexact, _ in counts), sum(seen for _, seen in counts))
            folder.write_facts(replace(facts, second_rounding=rounding), _identity(arm, settings, facts))

    def _spec(self, arm: Arm) -> EngineSpec:
        return EngineSpec(
            model=self.prepared.path,
            revision=None,
            treatment=arm.treatment,
            args={**arm.args, "trust_remote_code": self.settings.model.trust_remote_code},
            top_logprobs=self.settings.engine.top_logprobs,
        )


def stored_arm(arm: Arm, run: RunFolder) -> ArmRecord:
    """An arm as an earlier run left it."""
    folder = run.arm(arm.name)
    error = str(folder.identity().get("error", ""))
    return ArmRecord(arm=arm, facts=folder.facts(), replays=folder.replays(), counts=folder.counts(), error=error)


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
