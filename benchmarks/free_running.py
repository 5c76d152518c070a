"""Free-running conversations against as many independent requests, in one engine.

``python -m benchmarks.free_running [pairs]``: the conversations of the golden set run free, in the blocks of the plan;
then the prompts that they came to, all handed over at once. What counts is the ratio of both throughputs (decoded
tokens a second of engine time) in each pair. Times are of this machine, at this moment; only ratios mean something.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from pathlib import Path

from kvquant_eval.cli.config import build, compose
from kvquant_eval.core.arms import plan_arms
from kvquant_eval.core.engine import EngineSpec
from kvquant_eval.core.records import Block, ReplayMode
from kvquant_eval.io import golden as golden_io
from kvquant_eval.replay import plan_replay, prepare


def main(pairs: int) -> None:
    """Print one line a pair and block, then the median."""
    settings = build(
        compose(["kv=[bfloat16]", f"replay.mode={ReplayMode.FREE_RUNNING}", "replay.on_divergence=golden"])
    )
    golden = golden_io.load(Path(settings.golden_path), settings.policy.scores)
    with tempfile.TemporaryDirectory() as name:
        prepared = prepare(settings, golden, Path(name) / "prepare.log")
    blocks = [block for block in plan_replay(settings, golden, prepared).blocks if block.rollouts]
    arm = plan_arms(settings)[0]
    os.environ.update({**settings.engine.env, **settings.engine.slots[0]})

    from benchmarks.recording import RecordingEngine  # vLLM reads the environment when it is imported

    engine = RecordingEngine(
        EngineSpec(
            model=prepared.path,
            revision=None,
            treatment=arm.treatment,
            args=arm.args,
            chat_template=prepared.chat_template,
        )
    )

    def throughput(block: Block) -> float:
        """Decoded tokens a second, those of replies that answer no golden turn too."""
        engine.asked.clear()
        engine.decoded = 0
        seconds = engine.run(block, lambda: None).seconds
        return engine.decoded / seconds

    ratios = []
    for pair in range(pairs):
        for block in blocks:
            free = throughput(block)
            wave = tuple(engine.asked)
            alone = throughput(Block(index=block.index, waves=(wave,)))
            ratios.append(free / alone)
            print(
                f"pair {pair + 1}, block {block.index}: {len(block.rollouts)} conversations, {len(wave)} replies: "
                f"{free:.1f} tokens/s free running, {alone:.1f} independent, ratio {free / alone:.3f}",
                flush=True,
            )
    print(f"median ratio: {statistics.median(ratios):.3f}")
    engine.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
