"""Known answers: turns simulated with the accuracies of public studies must be decided as they deserve.

A few seeds each; docs/operating-characteristics.md has the rates over hundreds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvquant_eval.core.gate import decide
from kvquant_eval.core.policy import Policy, Rule
from kvquant_eval.core.records import Decision
from kvquant_eval.core.results import CandidateResult
from tests.fakes.published import CASES, article, simulate
from tests.fakes.records import grounds, one_class

SEEDS = range(3)


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
