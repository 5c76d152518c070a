"""What the replay stage costs over bare vLLM, and how much memory the parent takes.

``python -m benchmarks.replay_overhead [pairs [blocks]]``: two engines stay open, ours behind its child process and
journal, and a bare ``LLM.generate`` in a process of its own. Both replay the same blocks in turns; what counts is the
ratio of each pair. Beside it: all their requests as one big batch. Times are of this machine, at this moment; only
ratios mean something.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from kvquant_eval.cli.config import build, compose
from kvquant_eval.core.arms import plan_arms
from kvquant_eval.core.codec import from_data, to_data, to_json
from kvquant_eval.core.engine import EngineSpec
from kvquant_eval.core.plan import make_blocks
from kvquant_eval.core.records import Block, BlockResult
from kvquant_eval.io import golden as golden_io
from kvquant_eval.io.child import Child
from kvquant_eval.io.journal import Journal
from kvquant_eval.replay import prepare


class Bare:
    """A process that holds a bare ``LLM`` and runs the blocks, or all of them at once, when told."""

    def __init__(self, spec: EngineSpec, blocks: Sequence[Block], folder: Path, env: Mapping[str, str]) -> None:
        plan = folder / "bare.json"
        plan.write_text(json.dumps({"spec": to_data(spec), "blocks": [to_data(block) for block in blocks]}))
        self.log = (folder / "bare.log").open("w")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.bare_vllm", str(plan)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env={**os.environ, **env},
        )
        self.run("ready")

    def run(self, what: str) -> float:
        """Seconds that ``blocks`` or ``batch`` took."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("seconds "):
                return float(line.split()[1])
        raise RuntimeError(f"the bare engine died; see {self.log.name}")

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)


def ours(child: Child, blocks: Sequence[Block], journal: Journal) -> float:
    """Seconds for all blocks through the child's pipe into the journal, as the replay stage does it."""
    started = time.monotonic()
    for block in blocks:
        journal.commit(from_data(BlockResult, child.call("run", block=to_data(block)), "block"))
    return time.monotonic() - started


def main(pairs: int, most: int | None) -> None:
    """Print one line a pair, then the medians; ``most`` blocks of the plan, all of them when None."""
    settings = build(compose(["kv=[bfloat16]"]))
    golden = golden_io.load(Path(settings.golden_path), settings.policy.scores)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepared = prepare(settings, golden, folder / "prepare.log")
        blocks = make_blocks(prepared.turns, settings.sampling, settings.block_requests)[:most]
        arm = plan_arms(settings)[0]
        spec = EngineSpec(model=prepared.path, revision=None, treatment=arm.treatment, args=arm.args)
        env = {**settings.engine.env, **settings.engine.slots[0]}
        bare = Bare(spec, blocks, folder, env)
        with Child(folder / "ours.log", settings.engine.timeout_s, env) as child:
            child.call("open", engine=settings.engine.engine, spec=to_data(spec))
            ratios = []
            for pair in range(pairs):
                first = ours(child, blocks, Journal(folder / f"{pair}.jsonl"))
                second = bare.run("blocks")
                ratios.append(first / second)
                print(
                    f"pair {pair + 1}: ours {first:.1f} s, bare {second:.1f} s, ratio {first / second:.3f}", flush=True
                )
            batch = bare.run("batch")
        bare.close()
        size = sum(len(to_json(block)) for block in blocks)
        turns = sum(len(block.waves[0]) for block in blocks)
        print(f"{turns} turns in {len(blocks)} blocks, {size / 1e6:.1f} MB of requests")
        print(f"median ratio to bare LLM.generate on the same blocks: {statistics.median(ratios):.3f}")
        print(f"ratio of bare blocks to one big batch: {second / batch:.3f}; ours to it: {first / batch:.3f}")
        print(f"peak memory of this parent: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


if __name__ == "__main__":
    arguments = [int(argument) for argument in sys.argv[1:]]
    main(arguments[0] if arguments else 3, arguments[1] if len(arguments) > 1 else None)
