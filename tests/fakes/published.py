"""Turns simulated with the accuracies of public studies.

``tests/data/published_results.json`` has the figures with their sources.

Each question is scored right (100) or wrong (0), each in a conversation of its own. Questions are paired: one latent
difficulty is common to both arms. ``reps`` repetitions are averaged first, as the studies did.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from kvquant_eval.core.records import ScoreDelta
from tests.fakes.records import delta

CASES: dict[str, dict[str, Any]] = {
    case["id"]: case
    for case in json.loads((Path(__file__).parents[1] / "data" / "published_results.json").read_text())["cases"]
}
JITTER = 0.05
"""Share of questions whose difficulty is drawn anew for the second arm: what turns round by chance."""


def simulate(case: dict[str, Any], seed: int) -> list[ScoreDelta]:
    """Paired turns whose mean scores are the published ones, to within one answer."""
    rng = np.random.default_rng(seed)
    reps = case.get("reps", 1)
    base, other = (_once if reps == 1 else _repeated)(rng, case["n"], reps, case["baseline"], case["candidate"])
    return [
        delta(f"q{i:04}", float(a - b), baseline=float(a), candidate=float(b))
        for i, (a, b) in enumerate(zip(100 * base / reps, 100 * other / reps, strict=True))
    ]


def article(case: dict[str, Any], seed: int) -> list[ScoreDelta]:
    """200 turns of 20 conversations: drops within one point, but for the flagged ones late in their conversations."""
    rng = np.random.default_rng(seed)
    drops = rng.uniform(-1, 1, case["n"])
    low, high = case.get("drops_points", (0, 0))
    late = rng.choice([i for i in range(case["n"]) if i % 10 == 9], case["flagged"], replace=False)
    drops[late] = np.linspace(low, high, case["flagged"])
    return [
        delta(f"t{i:04}", float(drop), conversation_id=f"c{i // 10}", turn_index=i % 10) for i, drop in enumerate(drops)
    ]


def _once(rng: np.random.Generator, n: int, reps: int, *accuracies: float) -> list[np.ndarray]:
    """A question is answered when its difficulty, 0..1, is below the arm's accuracy. For the second arm some of the
    difficulties are handed round among each other, so that a few questions turn round both ways.
    """
    difficulty = (rng.permutation(n) + 0.5) / n
    jittered = difficulty.copy()
    chosen = np.flatnonzero(rng.random(n) < JITTER)
    jittered[chosen] = rng.permutation(jittered[chosen])
    return [(d < accuracy).astype(int) for d, accuracy in zip((difficulty, jittered), accuracies, strict=True)]


def _repeated(rng: np.random.Generator, n: int, reps: int, *accuracies: float) -> list[np.ndarray]:
    """Each repetition is a draw of its own with the question's chance of success, which is the same quantile of a
    U-shaped Beta distribution in both arms; then single answers are turned until the mean is the published one.
    """
    quantile = rng.random(n)
    arms = []
    for accuracy in accuracies:
        chance = stats.beta.ppf(quantile, accuracy, 1 - accuracy)
        right = rng.binomial(reps, chance)
        while off := round(n * reps * accuracy) - int(right.sum()):
            step = 1 if off > 0 else -1
            right[rng.choice(np.flatnonzero((right + step >= 0) & (right + step <= reps)))] += step
        arms.append(right)
    return arms
