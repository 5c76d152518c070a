"""Lossless arms, many times over: no control may be held, and no flag of one confirmed.

``python -m benchmarks.controls [key=value ...]`` runs the baseline once, then BF16 again and the placebo for each of
``LIMITS``, every time with another ``max_num_seqs`` and another order of the blocks, and the candidates of the
configuration beside them. Each is judged as a gate judges it, which prints its decision, its worst upper bound, and how
many flags were confirmed. The run folder stays, and the same command uses it again.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvquant_eval.cli.config import build, compose
from kvquant_eval.core.arms import Arm, ingredients
from kvquant_eval.core.cautions import cautions
from kvquant_eval.core.judge import Judgement, asked, judge
from kvquant_eval.core.policy import Policy
from kvquant_eval.core.records import Decision, Role
from kvquant_eval.core.results import CandidateResult, ClassResult
from kvquant_eval.evidence import executable, gather, oracles
from kvquant_eval.io.runfolder import RunFolder, code_sha256
from kvquant_eval.pipeline import make_ready
from kvquant_eval.replay import ARM_CODE, Stage, places

LIMITS = (4, 8, 16, 32, 64)
"""``max_num_seqs`` of each repeat."""


def main(overrides: Sequence[str]) -> None:
    """Print a line an arm."""
    settings = executable(build(compose(overrides)))
    ready = make_ready(settings)
    arms = variants(ready.plan.arms)
    code = code_sha256(ARM_CODE)
    prepared, plan = ready.plan.prepared, ready.plan
    made = {arm.name: ingredients(arm, settings, prepared, plan.sha256, ready.golden.sha256, code) for arm in arms}
    run = folder(settings.runs_dir)
    run.write_plan(prepared)
    with places(settings) as engines:
        records = Stage(settings, replace(plan, arms=arms, ingredients=made), run, engines).replay()
    questions = asked(settings, prepared, ready.golden.turns, records)
    gather(questions, oracles(settings), run.answers)
    show(judge(settings, prepared, ready.golden.turns, records, run.answers.read()), settings.policy)


def folder(runs_dir: str) -> RunFolder:
    """Where all of it goes: always the same, so that what was replayed is used again."""
    path = Path(runs_dir) / "controls"
    path.mkdir(parents=True, exist_ok=True)
    return RunFolder(path)


def variants(arms: Sequence[Arm]) -> list[Arm]:
    """The arms of a gate, its controls once for each of ``LIMITS``."""
    kept = [arm for arm in arms if arm.role is not Role.CONTROL]
    controls = [arm for arm in arms if arm.role is Role.CONTROL]
    return kept[:1] + [again(arm, turn) for turn in range(len(LIMITS)) for arm in controls] + kept[1:]


def again(arm: Arm, turn: int) -> Arm:
    """The control with another batch limit and another order of blocks."""
    args: dict[str, Any] = {**arm.args, "max_num_seqs": LIMITS[turn]}
    accept = (*arm.accept, "scheduler_config.max_num_seqs")
    return replace(arm, name=f"{arm.name}-{LIMITS[turn]}", args=args, order_seed=turn + 2, accept=accept)


def show(judgement: Judgement, policy: Policy) -> None:
    """A line an arm, what to look at beside the decision, and where the hardest class loses."""
    for name, result in judgement.results.items():
        print(f"{name}: {result.decision}; {summary(result)}")
        if result.decision is not Decision.PROMOTE:
            print("".join(f"    {reason}\n" for reason in result.reasons), end="")
        print("".join(f"    {each.sentence}\n" for each in cautions(result, policy)), end="")
        if judgement.arms[name].arm.role is Role.CANDIDATE:
            show_strata(result.classes[policy.hardest])


def show_strata(judged: ClassResult) -> None:
    """Where in the hardest class the drops lie."""
    for name, score in judged.scores.items():
        for part in score.strata:
            ends = f"[{part.ci_lower or -math.inf:.2f}, {part.ci_upper or math.inf:.2f}]"
            print(f"    {name}, {part.name}: {part.mean_drop:+.2f} {ends} over {part.n_turns} turns")


def summary(result: CandidateResult) -> str:
    """The worst bound, raw flags and confirmed ones of all gating scores."""
    scores = [(w, n, s) for w, judged in result.classes.items() for n, s in judged.scores.items() if s.role == "gate"]
    workload, name, worst = max(scores, key=lambda each: each[2].ci_upper or 0.0)
    confirmed = sum(each.confirmed for each in result.confirmations.values())
    flags = f"{len(result.flagged)} raw flags, {confirmed} of {len(result.confirmations)} confirmed"
    return f"worst bound {worst.ci_upper:.2f} ({workload} {name}, mean {worst.mean_drop:+.2f}); {flags}"


if __name__ == "__main__":
    main(sys.argv[1:])
