"""From score tables to a decision: seconds and memory for 10,000 and for 100,000 turns.

``python -m benchmarks.decision`` writes ``turns.parquet`` tables of two arms and three epochs a turn (four turns a
conversation, two classes, scores of 0 to 100 with noise), then reads each in a process of its own, pairs the arms, and
decides under ``default`` with all strata. A line a size: seconds without the interpreter's start, and the process's
largest memory.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from kvquant_eval.core.charges import Grounds
from kvquant_eval.core.compare import compare
from kvquant_eval.core.gate import decide
from kvquant_eval.core.policy import Policy, Rule, ScorePolicy, ScoreRole
from kvquant_eval.core.records import Outcome, RenderedTurn, TurnScore
from kvquant_eval.core.strata import positions

SIZES = (10_000, 100_000)
EPOCHS, TURNS, CLASSES = 3, 4, ("math_chain", "faq")
RULE = ScorePolicy(role=ScoreRole.GATE, margin=2.0)
POLICY = Policy(
    name="default", rule=Rule.DEFAULT, hardest=CLASSES[0], scores={name: {"task": RULE} for name in CLASSES}
)


def main() -> None:
    """Print a line a size."""
    for size in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            table(size).to_parquet(Path(folder) / "turns.parquet")
            subprocess.run([sys.executable, "-m", "benchmarks.decision", folder], check=True)


def table(size: int) -> pd.DataFrame:
    """Scores of both arms; the candidate's lie half a point lower."""
    rng = np.random.default_rng(size)
    turn = np.repeat(np.arange(size), EPOCHS)
    level = rng.uniform(30, 90, size)[turn]
    arms = []
    for arm, shift in (("baseline", 0.0), ("candidate", 0.5)):
        points = np.clip(level + rng.normal(0, 5, len(turn)) - shift, 0, 100)
        epoch = np.tile(np.arange(EPOCHS), size)
        arms.append(pd.DataFrame({"arm": arm, "turn": turn, "epoch": epoch, "points": points}))
    return pd.concat(arms, ignore_index=True)


def run(folder: Path) -> None:
    """Decide one table."""
    began = time.monotonic()
    scores = pd.read_parquet(folder / "turns.parquet")
    size = int(scores["turn"].max()) + 1
    turns = [rendered(number) for number in range(size)]
    sides = [tuple(records(scores[scores["arm"] == arm])) for arm in ("baseline", "candidate")]
    deltas = compare(turns, *sides)
    room = {(d.turn_id, d.scorer): d.baseline or 0.0 for d in deltas}
    grounds = Grounds(headroom=room, positions=positions(turns, frozenset(t.turn_id for t in turns[:64])))
    result = decide(deltas, POLICY, grounds)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    seconds = time.monotonic() - began
    print(f"{size:,} turns: {result.decision} in {seconds:.1f} s, {memory:.2f} GiB at most")


def rendered(number: int) -> RenderedTurn:
    """A turn of 100 to 1,700 tokens, late ones the longest."""
    index = number % TURNS
    return RenderedTurn(
        turn_id=f"t{number}",
        workload=CLASSES[number // TURNS % len(CLASSES)],
        conversation_id=f"c{number // TURNS}",
        turn_index=index,
        prompt_ids=(1,) * (100 + 400 * index),
        golden_ids=(1,) * (10 + number % 50),
        spans=(),
        max_tokens=64,
    )


def records(rows: pd.DataFrame) -> Iterator[TurnScore]:
    """The rows as the scorers give them."""
    for turn, epoch, points in zip(rows["turn"], rows["epoch"], rows["points"], strict=True):
        yield TurnScore(turn_id=f"t{turn}", scorer="task", epoch=int(epoch), outcome=Outcome.OK, points=float(points))


if __name__ == "__main__":
    run(Path(sys.argv[1])) if len(sys.argv) > 1 else main()
