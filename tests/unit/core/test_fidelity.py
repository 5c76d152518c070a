"""KL, top-1, golden drop, perplexity and first divergence of forced replays: known values, bounds, missing sides."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy

from kvquant_eval.core.fidelity import Means, TurnFidelity, as_data, measure, summarise
from kvquant_eval.core.records import Outcome, Replay
from tests.fakes.records import forced, rendered_turn

GOLDEN = 0
Step = Mapping[int, float]


def side(*steps: Step, **changes: Any) -> Replay:
    """A forced reply of the token ``GOLDEN`` over and over; each step has the probabilities that are listed."""
    top = tuple(
        tuple((token, math.log(p)) for token, p in sorted(s.items(), key=lambda e: (-e[1], e[0]))) for s in steps
    )
    logprobs = [math.log(step[GOLDEN]) for step in steps]
    return forced(logprobs, **{"token_ids": (GOLDEN,) * len(steps), "top": top, **changes})


def compare(left: Replay | None, right: Replay | None, **turn: Any) -> TurnFidelity:
    return measure(rendered_turn(**turn), left, right)


def kl(left: Step, right: Step) -> float:
    found = compare(side(left), side(right)).means.kl
    assert found is not None
    return found


def test_a_whole_vocabulary_gives_the_exact_kl() -> None:
    """0.5 ln(0.5 / 0.9) + 0.5 ln(0.5 / 0.1)."""
    assert kl({0: 0.5, 1: 0.5}, {0: 0.9, 1: 0.1}) == pytest.approx(0.510826, abs=1e-6)
    assert kl({0: 0.2, 1: 0.3, 2: 0.5}, {0: 0.5, 1: 0.3, 2: 0.2}) == pytest.approx(
        entropy([0.2, 0.3, 0.5], [0.5, 0.3, 0.2]), abs=1e-12
    )


def test_tokens_that_only_one_lists_are_lumped() -> None:
    """Both list token 0, so 0.5 ln(0.5 / 0.25) + 0.5 ln(0.5 / 0.75)."""
    found = compare(side({0: 0.5, 1: 0.3}), side({0: 0.25, 2: 0.5})).means
    assert found.kl == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3), abs=1e-12)
    assert found.rest_mass == pytest.approx(0.5)
    assert compare(side({0: 0.5, 1: 0.3}), side({0: 0.25, 1: 0.5})).means.rest_mass == pytest.approx(0.2)


def test_lists_of_k_and_of_one_more_go_together() -> None:
    """The golden token stands in the list too where it is not among the most probable."""
    long, short = {1: 0.6, 2: 0.3, 0: 0.1}, {0: 0.7, 1: 0.2}
    found = compare(side(long, short), side(short, long)).means
    there = 0.1 * math.log(1 / 7) + 0.6 * math.log(3) + 0.3 * math.log(3)
    back = 0.7 * math.log(7) - 0.2 * math.log(3) - 0.1 * math.log(3)
    assert found.kl == pytest.approx((there + back) / 2)
    assert (found.n_tokens, found.rest_mass) == (2, pytest.approx(0.2))


def test_an_arm_is_itself_exactly() -> None:
    steps = [{0: 0.3, 1: 0.3, 2: 0.1}, {0: 1e-9, 3: 0.99}, {0: 1.0}]
    found = compare(side(*steps), side(*steps))
    assert (found.means.kl, found.means.top1_agreement, found.means.golden_drop) == (0.0, 1.0, 0.0)
    assert found.means.perplexity_ratio == 1.0
    assert found.first_divergence is None


@pytest.mark.parametrize("over", [0.0, 1e-7, -1e-7, 5e-7])
def test_what_rounding_leaves_of_a_rest_is_nothing(over: float) -> None:
    """Probabilities in single precision that sum to a little more or less than 1, on either side."""
    exact, rounded = {0: 0.5, 1: 0.5}, {0: 0.5, 1: 0.5 + over}
    for left, right in ((exact, rounded), (rounded, exact)):
        assert 0.0 <= kl(left, right) < 2e-6
    assert compare(side(rounded), side(exact)).means.rest_mass == pytest.approx(max(0.0, -over), abs=1e-12)


def test_a_rest_on_one_side_only_stays_finite() -> None:
    assert kl({0: 1.0}, {0: 0.5, 1: 0.5}) == pytest.approx(math.log(2), abs=2e-5)
    assert 5.0 < kl({0: 0.5, 1: 0.5}, {0: 1.0}) < 7.0  # infinite over the vocabulary; a lower bound


def test_probabilities_of_nothing_stay_finite() -> None:
    gone = forced([-math.inf], token_ids=(GOLDEN,), top=(((1, 0.0), (GOLDEN, -math.inf)),))
    found = compare(side({0: 0.9, 1: 0.1}), gone).means
    assert found.kl is not None
    assert found.perplexity_ratio is not None
    assert math.isfinite(found.kl)
    assert found.kl > 100
    assert math.isfinite(found.perplexity_ratio)
    assert found.golden_drop == pytest.approx(90.0)


def test_signs_and_units() -> None:
    """The golden token falls from 0.5 to 0.4 and from 0.5 to 0.45: 7.5 points, and a worse perplexity."""
    found = compare(side({0: 0.5}, {0: 0.5}), side({0: 0.4}, {0: 0.45})).means
    assert found.golden_drop == pytest.approx(7.5)
    assert found.perplexity_ratio == pytest.approx(math.sqrt(0.5 / 0.4 * 0.5 / 0.45))


def test_the_least_token_of_a_tie_is_the_most_probable() -> None:
    tie, second, first = {0: 0.2, 4: 0.4, 7: 0.4}, {0: 0.2, 4: 0.3, 7: 0.5}, {0: 0.2, 4: 0.5, 7: 0.3}
    assert compare(side(tie), side(first)).means.top1_agreement == 1.0
    assert compare(side(tie), side(second)).means.top1_agreement == 0.0


def test_the_first_divergence_is_a_position() -> None:
    same, other = {0: 0.9, 1: 0.1}, {0: 0.1, 1: 0.9}
    assert compare(side(same, same, same, same), side(same, same, other, other)).first_divergence == 2
    assert compare(side(same), side(other)).first_divergence == 0


def test_positions_are_grouped_by_powers_of_two() -> None:
    sure, unsure = {0: 0.8, 1: 0.2}, {0: 0.6, 1: 0.4}
    moved = entropy([0.8, 0.2], [0.6, 0.4])
    long = compare(side(*[sure] * 9), side(*[sure] * 3, unsure, *[sure] * 5))
    short = compare(side(sure, sure, sure), side(unsure, sure, sure))
    found = summarise([long, short])
    assert [(p.first, p.last, p.n_turns, p.means.n_tokens) for p in found.by_position] == [
        (0, 0, 2, 2), (1, 1, 2, 2), (2, 3, 2, 3), (4, 7, 1, 4), (8, 15, 1, 1),
    ]  # fmt: skip
    assert [p.means.kl for p in found.by_position] == pytest.approx([moved / 2, 0, moved / 3, 0, 0], abs=1e-12)
    assert found.means.kl == pytest.approx(2 * moved / 12)
    assert found.means.n_tokens == 12


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 9, 255, 256, 257])
def test_every_token_is_in_one_group(n: int) -> None:
    found = summarise([compare(side(*[{0: 0.5}] * n), side(*[{0: 0.5}] * n))])
    assert sum(p.means.n_tokens for p in found.by_position) == n
    assert found.by_position[0].first == 0
    assert found.by_position[-1].first <= n - 1 <= found.by_position[-1].last
    assert all(p.last + 1 == q.first for p, q in zip(found.by_position, found.by_position[1:], strict=False))


def test_a_class_is_a_mean_over_tokens_and_counts_turns() -> None:
    same, other = {0: 0.9, 1: 0.1}, {0: 0.1, 1: 0.9}
    turns = [
        compare(side(same, same), side(same, same), workload="a"),
        compare(side(same, same), side(same, other), workload="a"),
        compare(side(*[same] * 4), side(*[same] * 3, other), workload="b"),
        compare(side(*[same] * 8), side(*[same] * 7, other), workload="b"),
        compare(side(same), None, workload="b"),
    ]
    data = as_data(turns)
    json.dumps(data, allow_nan=False)
    assert list(data["classes"]) == ["a", "b"]
    a, b, everything = data["classes"]["a"], data["classes"]["b"], data["all"]
    assert (a["n_turns"], a["n_left_out"], a["n_tokens"]) == (2, 0, 4)
    assert (b["n_turns"], b["n_left_out"], b["n_tokens"]) == (2, 1, 12)
    assert (everything["n_turns"], everything["n_left_out"], everything["n_tokens"]) == (4, 1, 16)
    assert (a["never_diverged"], a["median_first_divergence"]) == (0.5, 1.0)
    assert (b["never_diverged"], b["median_first_divergence"]) == (0.0, 5.0)
    assert (everything["never_diverged"], everything["median_first_divergence"]) == (0.25, 3.0)
    assert everything["top1_agreement"] == 13 / 16
    assert everything["kl"] == pytest.approx(3 / 16 * entropy([0.9, 0.1], [0.1, 0.9]))
    assert everything["golden_drop"] == pytest.approx(3 / 16 * 80)
    assert everything["perplexity_ratio"] == pytest.approx(math.exp(3 / 16 * math.log(9)))
    assert "means" not in everything
    assert "means" not in everything["by_position"][0]


def test_nothing_to_compare_is_no_number() -> None:
    data = as_data([compare(None, None)])["all"]
    assert (data["n_turns"], data["n_left_out"], data["n_tokens"], data["by_position"]) == (0, 1, 0, [])
    assert {data[key] for key in ("kl", "top1_agreement", "perplexity_ratio", "never_diverged")} == {None}
    assert as_data([])["classes"] == {}


GOOD = side({0: 0.5, 1: 0.5}, {0: 0.5, 1: 0.5})


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (None, "not run"),
        (replace(GOOD, outcome=Outcome.INFRA_ERROR, error="a\nline"), "infra_error, a\\nline"),
        (replace(GOOD, outcome=Outcome.SKIPPED), "skipped"),
        (replace(GOOD, top=()), "log probabilities are missing"),
        (replace(GOOD, logprobs=()), "log probabilities are missing"),
        (replace(GOOD, top=(GOOD.top[0], ())), "log probabilities are missing"),
        (side(), "log probabilities are missing"),
        (replace(GOOD, logprobs=(math.nan, -0.5)), "an impossible log probability"),
        (replace(GOOD, top=(((0, 0.7),), ((0, -0.7),))), "an impossible log probability"),
        (replace(GOOD, top=(((0, math.nan),), ((0, -0.7),))), "an impossible log probability"),
    ],
)
def test_a_pair_with_an_unscored_side_is_left_out_and_says_why(other: Replay | None, why: str) -> None:
    for found, who in ((compare(GOOD, other), "arm"), (compare(other, GOOD), "baseline")):
        assert found.missing == f"{who}: {why}"
        assert found.means == Means(n_tokens=0)
        assert found.first_divergence is None


def test_other_tokens_and_skipped_turns_are_left_out() -> None:
    assert compare(GOOD, replace(GOOD, token_ids=(0, 1))).missing == "other tokens were forced"
    assert compare(None, None, skip="too long").missing == "skipped: too long"


@st.composite
def listed(draw: st.DrawFn) -> tuple[list[float], list[float], int]:
    """Two distributions over one small vocabulary, and how many of its tokens an engine lists."""
    size = draw(st.integers(2, 12))
    logits = st.lists(st.floats(-12, 12), min_size=size, max_size=size)
    p, q = (np.exp(np.array(draw(logits))) for _ in range(2))
    return list(p / p.sum()), list(q / q.sum()), draw(st.integers(1, size))


def cut(probabilities: list[float], k: int) -> dict[int, float]:
    """The k most probable tokens, and the golden one."""
    best = sorted(range(len(probabilities)), key=lambda token: (-probabilities[token], token))[:k]
    return {token: probabilities[token] for token in {*best, GOLDEN}}


@given(listed())
def test_a_lumped_kl_is_a_lower_bound(case: tuple[list[float], list[float], int]) -> None:
    p, q, k = case
    exact = float(entropy(p, q))
    assert 0.0 <= kl(cut(p, k), cut(q, k)) <= exact + 1e-9
    assert kl(cut(p, len(p)), cut(q, len(q))) == pytest.approx(exact, abs=1e-9)


@given(listed(), st.randoms(use_true_random=False))
def test_the_order_of_a_list_says_nothing(case: tuple[list[float], list[float], int], random: Any) -> None:
    p, q, k = case
    left, right = side(cut(p, k)), side(cut(q, k))
    shuffled = replace(left, top=(tuple(random.sample(left.top[0], len(left.top[0]))),))
    one, other = compare(left, right), compare(shuffled, right)
    assert other.sums == pytest.approx(one.sums, abs=1e-12)
    assert other.first_divergence == one.first_divergence
