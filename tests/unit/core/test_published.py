"""Known answers: turns simulated with the accuracies of public studies must be decided as they deserve.

``tests/data/published_results.json`` has the figures with their sources. Each question is scored right (100) or wrong
(0), each in a conversation of its own. Questions are paired: one latent difficulty is common to both arms. ``reps``
repetitions are averaged first, as the studies did.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from kvquant_eval.core.gate import decide
from kvquant_eval.core.policy import Policy, Rule
from kvquant_eval.core.records import Decision, ScoreDelta
from kvquant_eval.core.results import CandidateResult
from tests.fakes.records import delta, grounds, one_class

CASES: dict[str, dict[str, Any]] = {
    case["id"]: case
    for case in json.loads((Path(__file__).parents[2] / "data" / "published_results.json").read_text())["cases"]
}
SEEDS = range(3)
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


def decided(case: dict[str, Any], seed: int, policy: Policy) -> CandidateResult:
    made = simulate(case, seed)
    assert np.mean([d.baseline for d in made]) == pytest.approx(100 * case["baseline"], abs=100 / case["n"])
    assert np.mean([d.candidate for d in made]) == pytest.approx(100 * case["candidate"], abs=100 / case["n"])
    return decide(made, policy, grounds(made))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case["expect"] == "HOLD"])
def test_disasters_are_held(name: str, seed: int) -> None:
    assert decided(CASES[name], seed, one_class(margin=5.0)).decision is Decision.HOLD


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case["expect"] == "not HOLD"])
def test_what_lost_nothing_is_not_held(name: str, seed: int) -> None:
    assert decided(CASES[name], seed, one_class(margin=2.0)).decision is not Decision.HOLD


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case["expect"].startswith("not PROMOTE")])
def test_what_may_have_lost_is_not_promoted(name: str, seed: int) -> None:
    assert decided(CASES[name], seed, one_class(margin=5.0)).decision is not Decision.PROMOTE


@pytest.mark.parametrize("seed", SEEDS)
def test_a_study_too_small_for_its_effect_is_inconclusive(seed: int) -> None:
    """GPQA, 198 questions five times: a drop of 2.1 points is not told apart from a margin of 2."""
    result = decided(CASES["vllm-qwen3-30b-thinking-fp8-gpqa"], seed, one_class(margin=2.0))
    assert result.decision is Decision.INCONCLUSIVE


@pytest.mark.parametrize("seed", SEEDS)
def test_the_largest_lossless_study_is_promoted_with_a_margin_that_it_can_settle(seed: int) -> None:
    result = decided(CASES["sglang-gptoss120b-fp4-gsm8k"], seed, one_class(margin=2.0))
    assert result.decision is Decision.PROMOTE


ZERO_FLAGS = one_class(rule=Rule.ZERO_FLAGS, min_turns=200, min_headroom=30)


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


@pytest.mark.parametrize("seed", SEEDS)
def test_the_articles_faq_fleet_is_promoted(seed: int) -> None:
    made = article(CASES["article-faq-fp8"], seed)
    assert decide(made, ZERO_FLAGS, grounds(made)).decision is Decision.PROMOTE


@pytest.mark.parametrize("seed", SEEDS)
def test_the_articles_math_fleet_is_held_and_the_six_turns_named(seed: int) -> None:
    made = article(CASES["article-math-chain-fp8"], seed)
    result = decide(made, ZERO_FLAGS, grounds(made))
    assert result.decision is Decision.HOLD
    assert len(result.flagged) == 6
    assert {d.turn_index for d in result.flagged} == {9}


def test_every_published_case_is_tested() -> None:
    """An expectation in words that no test above knows would pass unseen."""
    known = ("HOLD", "not HOLD", "not PROMOTE", "INCONCLUSIVE at a 2-point margin")
    for case in CASES.values():
        assert case["expect"].startswith(known) or case["id"].startswith("article-"), case["id"]
        assert case["source"]
    assert len(CASES) == 14
