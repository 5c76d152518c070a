"""The replay stage: one child process an arm, block by block into the journal, going on where an earlier run
stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Timer
from typing import Any

from tqdm import tqdm

from kvquant_eval.core import ranges, stored
from kvquant_eval.core.arms import Arm, ArmRecord, ingredients, plan_arms, with_scales
from kvquant_eval.core.attest import effective_dtype, judge_arm
from kvquant_eval.core.codec import digest, from_data, to_data
from kvquant_eval.core.compare import Key
from kvquant_eval.core.engine import EngineFacts, EngineSpec
from kvquant_eval.core.lint.rendering import Inspected
from kvquant_eval.core.plan import make_blocks, make_fresh_blocks, plan_sha256, reorder
from kvquant_eval.core.records import Block, BlockResult, GoldenSet, GoldenTurn, Prepared, ReplayMode
from kvquant_eval.core.rollout import make_rollouts, rollout_blocks
from kvquant_eval.core.settings import Settings
from kvquant_eval.io.child import Child, EngineDied
from kvquant_eval.io.place import Place
from kvquant_eval.io.runfolder import ArmFolder, RunFolder, code_sha256, count, reuse

PACKAGE = Path(__file__).parent
_CORE = ("call_match", "outcome", "ranges", "scales", "stored", "thinking", "tool_calls", "treatment", "walk")
ARM_CODE = (*(PACKAGE / "worker").glob("*.py"), *(PACKAGE / "core" / f"{name}.py" for name in _CORE))
"""The code that decides what stands in a journal."""
INSPECTOR = "kvquant_eval.worker.inspect:inspect"
RETRY_S = 1.0
"""Pause before an engine that died is started again; doubled each time, for memory to come back."""


@dataclass(frozen=True)
class ReplayPlan:
    """What all arms replay, and what each arm's replays depend on (``ingredients``, by arm)."""

    prepared: Prepared
    blocks: Sequence[Block]
    sha256: str
    arms: Sequence[Arm]
    ingredients: Mapping[str, Mapping[str, Any]]

    def fingerprint(self, arm: str) -> str:
        return digest(self.ingredients[arm])


def plan_replay(settings: Settings, golden: GoldenSet, prepared: Prepared) -> ReplayPlan:
    """Cut the turns into blocks, the same for every arm; free-running conversations come last."""
    blocks = make_blocks(prepared.turns, settings.sampling, settings.block_requests, settings.generate)
    if settings.replay.mode is ReplayMode.FREE_RUNNING:
        rollouts = make_rollouts(golden.turns, prepared.turns, settings.sampling, settings.replay.on_divergence)
        blocks += rollout_blocks(rollouts, settings.block_requests, len(blocks))
    return _planned(settings, golden, prepared, blocks, with_scales(plan_arms(settings), prepared.scales))


def plan_second(
    settings: Settings, golden: GoldenSet, prepared: Prepared, flags: Mapping[str, Sequence[Key]]
) -> ReplayPlan:
    """The second stage: all turns that an arm of ``flags`` dropped in, again and again, in these arms and those that
    they are compared with.
    """
    wanted = {turn_id for keys in flags.values() for turn_id, _ in keys}
    turns = [turn for turn in prepared.turns if turn.turn_id in wanted]
    epochs = settings.policy.confirm_epochs
    blocks = make_fresh_blocks(turns, settings.sampling, epochs, max(settings.block_requests, epochs))
    arms = with_scales(plan_arms(settings), prepared.scales)
    needed = {name for arm in arms if flags.get(arm.name) for name in (arm.name, arm.baseline)}
    return _planned(settings, golden, prepared, blocks, tuple(arm for arm in arms if arm.name in needed))


def _planned(
    settings: Settings, golden: GoldenSet, prepared: Prepared, blocks: Sequence[Block], arms: Sequence[Arm]
) -> ReplayPlan:
    sha256, code = plan_sha256(blocks), code_sha256(ARM_CODE)
    return ReplayPlan(
        prepared=prepared,
        blocks=blocks,
        sha256=sha256,
        arms=arms,
        ingredients={arm.name: ingredients(arm, settings, prepared, sha256, golden.sha256, code) for arm in arms},
    )


def prepare(settings: Settings, golden: GoldenSet, log: Path) -> Prepared:
    """Make the model ready and render the golden turns, in a child. Raises DataError, EngineDied."""
    return from_data(Prepared, _rendered(settings, golden.turns, log, settings.engine.preparer), "prepare")


def inspect(settings: Settings, turns: Sequence[GoldenTurn], log: Path) -> Inspected:
    """Render the turns, those that can be, in a child. Raises DataError, EngineDied."""
    return from_data(Inspected, _rendered(settings, turns, log, INSPECTOR), "inspect")


def _rendered(settings: Settings, turns: Sequence[GoldenTurn], log: Path, preparer: str) -> Any:
    for attempt in range(settings.engine.retries + 1):
        try:
            with Child(log, settings.engine.timeout_s, settings.engine.env) as child:
                return child.call(
                    "prepare",
                    preparer=preparer,
                    model=to_data(settings.model),
                    turns=[to_data(turn) for turn in turns],
                    args=dict(settings.engine.args),
                    cache=settings.cache_dir,
                    treatments=[to_data(arm.treatment) for arm in plan_arms(settings)],
                )
        except EngineDied:
            if attempt == settings.engine.retries:
                raise
    raise AssertionError("unreachable: engine.retries is at least 0")


@dataclass(frozen=True)
class Stage:
    """The replay stage of one run. ``places`` are where its engines run, which the caller closes.

    ``deadline`` (``time.monotonic``, seconds) is when it stops by itself. ``enough``, asked after each block, says that
    an arm needs to be run no further.
    """

    settings: Settings
    plan: ReplayPlan
    run: RunFolder
    places: Sequence[Place]
    deadline: float | None = None
    enough: Callable[[Arm], bool] = lambda _: False
    stopped: Event = field(default_factory=Event)

    def replay(self) -> list[ArmRecord]:
        """Run the arms, as many at a time as there are places."""
        free: SimpleQueue[Place] = SimpleQueue()
        for place in self.places:
            free.put(place)

        def work(arm: Arm) -> ArmRecord:
            place = free.get()
            try:
                return self._arm(arm, place)
            finally:
                free.put(place)

        clock = Timer(max(0.0, self.deadline - time.monotonic()) if self.deadline is not None else 0.0, self.stop)
        with ThreadPoolExecutor(len(self.places)) as pool:
            futures = [pool.submit(work, arm) for arm in self.plan.arms]
            try:
                if self.deadline is not None:
                    clock.start()
                return [future.result() for future in futures]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self.stop()
                raise
            finally:
                clock.cancel()

    def stop(self) -> None:
        """End the engines at work, and let none begin. What is committed stays."""
        self.stopped.set()
        for place in self.places:
            place.stop()

    def _arm(self, arm: Arm, place: Place) -> ArmRecord:
        """Run what is missing of an arm. An engine that dies is started again, ``engine.retries`` times for each block
        that it gets done.
        """
        folder, mark = self.run.arm(arm.name), self.plan.fingerprint(arm.name)
        identity: dict[str, Any] = {"fingerprint": mark, "ingredients": dict(self.plan.ingredients[arm.name])}
        folder.write_identity({**_identity(arm, self.settings, None), **identity})
        runs_dir = self.run.runs_dir if self.settings.reuse else None
        done = reuse(runs_dir, folder)
        identity["blocks_reused"] = done
        error, deaths = "", 0
        while not self.stopped.is_set():
            folder.write_identity({**_identity(arm, self.settings, folder.facts()), **identity})
            try:
                self._missing(arm, folder, place)
                error = ""
                break
            except EngineDied as died:
                before, done = done, len(folder.blocks())
                deaths = deaths + 1 if done == before else 1
                error = "" if self.stopped.is_set() else str(died)
                if deaths > self.settings.engine.retries:
                    break
                self.stopped.wait(RETRY_S * 2 ** (deaths - 1))
        folder.write_identity({**_identity(arm, self.settings, folder.facts()), **identity, "error": error})
        return stored_arm(arm, self.run, len(self.plan.blocks))

    def _missing(self, arm: Arm, folder: ArmFolder, place: Place) -> None:
        """Replay the blocks that the journal does not have.

        An arm whose read-back shows another dtype than the requested one is not replayed: its facts are enough.
        """
        settings, journal, blocks = self.settings, folder.journal, self.plan.blocks
        journal.truncate_unfinished()
        done = {block.index for block in journal.blocks()}
        order = blocks if arm.order_seed is None else reorder(blocks, arm.order_seed)
        todo = [block for block in order if block.index not in done]
        if not todo or (done and self.enough(arm)):
            return
        with (
            place.engine(settings.engine.engine, self._spec(arm), folder.log, settings.engine.timeout_s) as child,
            tqdm(total=len(order), initial=len(done), desc=arm.name, unit="block", disable=None) as progress,
        ):
            facts = from_data(EngineFacts, child.call("facts"), "facts")
            folder.write_facts(facts, _identity(arm, settings, facts))
            if any(finding.invalid for finding in judge_arm(arm.name, arm.treatment, facts)):
                return
            journal.begin(_identity(arm, settings, facts))
            for block in todo:
                answer = child.call("run", settings.engine.stall_s, block=to_data(block))
                journal.commit(_whole(block, from_data(BlockResult, answer, "block")))
                progress.update()
                if self.enough(arm):
                    return

    def _spec(self, arm: Arm) -> EngineSpec:
        return EngineSpec(
            model=self.plan.prepared.path,
            revision=None,
            treatment=arm.treatment,
            args={**arm.args, "trust_remote_code": self.settings.model.trust_remote_code},
            top_logprobs=self.settings.engine.top_logprobs,
            chat_template=self.plan.prepared.chat_template,
            profile=arm.profile,
            profile_scales=arm.profile_scales,
        )


@contextmanager
def places(settings: Settings) -> Iterator[list[Place]]:
    """Where the engines of ``engine.slots`` run, until the context is left."""
    with ExitStack() as stack:
        yield [stack.enter_context(Place({**settings.engine.env, **slot})) for slot in settings.engine.slots]


def _whole(block: Block, result: BlockResult) -> BlockResult:
    """The result, if it has one reply for each request, in order. Raises EngineDied for any other."""
    got = tuple((replay.turn_id, replay.measure, replay.epoch) for replay in result.replays)
    if result.index != block.index or got != block.keys:
        asked = len(block.keys)
        raise EngineDied(f"engine, during run: block {block.index}: {asked} replies asked for, got {len(got)}")
    return result


def stored_arm(arm: Arm, run: RunFolder, blocks: int) -> ArmRecord:
    """An arm as a run left it; ``blocks`` is how many the plan has."""
    folder = run.arm(arm.name)
    done, facts = folder.blocks(), folder.facts()
    inexact, seen = (sum(block.second_rounding[i] for block in done) for i in (0, 1))
    return ArmRecord(
        arm=arm,
        facts=replace(facts, second_rounding=(inexact, seen)) if facts else None,
        replays=tuple(replay for block in done for replay in block.replays),
        counts=count(done),
        error=str(folder.identity().get("error", "")),
        stored=stored.merged(layer for block in done for layer in block.stored),
        ranges=ranges.merged(block.ranges for block in done),
        unfinished=f"{len(done)} of {blocks} blocks are replayed" if len(done) < blocks else "",
    )


def _identity(arm: Arm, settings: Settings, facts: EngineFacts | None) -> dict[str, Any]:
    """Model id and KV dtype, together, as every artifact carries them."""
    return {
        "model": settings.model.id,
        "revision": settings.model.revision,
        "kv_requested": arm.treatment.requested,
        "kv_effective": effective_dtype(facts) if facts else "not read back",
        "kv_realisation": str(arm.treatment.realisation),
        "arm": arm.name,
        "role": str(arm.role),
    }
