"""What must hold of every decision, whatever the drops; and, last, where it does not, in the smallest cases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvquant_eval.core.gate import decide
from kvquant_eval.core.inference import FEW
from kvquant_eval.core.policy import Policy, Rule, ScorePolicy, ScoreRole, Tier
from kvquant_eval.core.records import Decision, ScoreDelta, Verdict
from kvquant_eval.core.results import CandidateResult
from kvquant_eval.core.strata import Axis
from tests.fakes.records import delta, grounds, one_class

PROMOTE, HOLD, INCONCLUSIVE = Decision.PROMOTE, Decision.HOLD, Decision.INCONCLUSIVE
ORDER = [PROMOTE, INCONCLUSIVE, HOLD]
"""From the best decision to the worst."""
MORE = settings(max_examples=100, deadline=None)


@dataclass(frozen=True)
class Turn:
    """One turn of a class, in one of a few conversations; ``index`` is its place there."""

    workload: str
    conversation: int
    index: int
    drop: float
    baseline: float = 80.0


QUIET = st.sampled_from([0.0, 0.0, 0.0, 0.1, -0.1, 0.5, -0.5, 1.9])
DROPS = st.one_of(QUIET, st.sampled_from([2.5, -2.5, 3.0, 5.0, -5.0, 20.0]), st.integers(-20, 80).map(float))


def turns(drops: st.SearchStrategy[float] = DROPS, least: int = 0, most: int = 30) -> st.SearchStrategy[list[Turn]]:
    classes, conversations = st.sampled_from(["hard", "easy"]), st.integers(0, 24)
    one = st.builds(Turn, classes, conversations, st.integers(0, 7), drops)
    alike = st.builds(lambda turn, n: [replace(turn, conversation=i) for i in range(n)], one, st.integers(1, 12))
    return st.one_of(
        st.lists(one, min_size=least, max_size=most),
        st.lists(alike, min_size=1, max_size=4).map(lambda parts: [turn for part in parts for turn in part]),
    )


def policies(*rules: Rule) -> st.SearchStrategy[Policy]:
    return st.builds(
        lambda rule, largest: policy(rule=rule, largest_break=largest),
        st.sampled_from(rules or tuple(Rule)),
        st.sampled_from([0.0, 0.0, 3.0]),
    )


def policy(margin: float = 2.0, flag_over: float = 2.0, **changes: Any) -> Policy:
    scores = {"s": ScorePolicy(role=ScoreRole.GATE, margin=margin, flag_over=flag_over)}
    return one_class(scores={"hard": scores, "easy": scores}, **changes)


def deltas(made: Sequence[Turn]) -> list[ScoreDelta]:
    return [
        delta(
            f"{t.workload}{i:03}",
            t.drop,
            workload=t.workload,
            conversation_id=f"{t.workload}-{t.conversation}",
            turn_index=t.index,
            baseline=t.baseline,
            candidate=t.baseline - t.drop,
        )
        for i, t in enumerate(made)
    ]


def judged(found: Sequence[ScoreDelta], limits: Policy) -> CandidateResult:
    """With headroom in every turn, and every turn at its place."""
    ones = dict.fromkeys(Axis, 1)
    positions = {d.turn_id: {**ones, Axis.TURN_INDEX: d.turn_index} for d in found}
    return decide(found, limits, grounds(found, positions=positions))


def lost(found: ScoreDelta) -> ScoreDelta:
    return replace(found, drop=None, candidate=None, missing="candidate: infra_error")


@MORE
@given(turns(), policies(), st.randoms(use_true_random=False))
def test_the_order_of_the_input_is_irrelevant(made: list[Turn], limits: Policy, random: Any) -> None:
    """But for the last bit of a sum, which may round a printed mean the other way."""
    first = deltas(made)
    second = list(first)
    random.shuffle(second)
    one, other = judged(first, limits), judged(second, limits)
    assert one.decision is other.decision
    assert len(one.reasons) == len(other.reasons)
    for workload, found in one.classes.items():
        assert found.verdict is other.classes[workload].verdict
        for name, score in found.scores.items():
            assert score.mean_drop == pytest.approx(other.classes[workload].scores[name].mean_drop, abs=1e-9)
    assert one.flagged == other.flagged
    assert one.pooled == other.pooled


@MORE
@given(turns(least=1), policies(), st.data())
def test_removed_evidence_never_promotes(made: list[Turn], limits: Policy, data: st.DataObject) -> None:
    found = deltas(made)
    gone = data.draw(st.sets(st.integers(0, len(found) - 1), min_size=1))
    after = judged([lost(d) if i in gone else d for i, d in enumerate(found)], limits)
    if judged(found, limits).decision is not PROMOTE:
        assert after.decision is not PROMOTE


@MORE
@given(turns(least=1), policies(), st.data())
def test_what_is_no_number_or_unscored_never_passes(made: list[Turn], limits: Policy, data: st.DataObject) -> None:
    found = deltas(made)
    at = data.draw(st.integers(0, len(found) - 1))
    spoilt = data.draw(st.sampled_from([lost(found[at]), *(replace(found[at], drop=d) for d in (math.nan, math.inf))]))
    result = judged([*found[:at], spoilt, *found[at + 1 :]], limits)
    assert result.classes[spoilt.workload].verdict is not Verdict.PASS
    if limits.rule is not Rule.ZERO_FLAGS or spoilt.workload == "hard":
        assert result.decision is not PROMOTE


@MORE
@given(turns(QUIET, least=2), policies(), st.floats(1.0, 50.0), st.floats(0.0, 50.0))
def test_a_larger_margin_never_takes_a_promotion_back(
    made: list[Turn], limits: Policy, margin: float, more: float
) -> None:
    def at(wide: float) -> Decision:
        return judged(deltas(made), replace(limits, scores=policy(margin=wide).scores)).decision

    if at(margin) is PROMOTE:
        assert at(margin + more) is PROMOTE


@MORE
@given(turns(least=2), st.floats(0.1, 50.0), st.floats(0.0, 50.0), st.sampled_from(["hard000", "easy001"]))
def test_a_larger_threshold_never_takes_a_promotion_of_zero_flags_back(
    made: list[Turn], over: float, more: float, critical: str
) -> None:
    def at(threshold: float) -> Decision:
        limits = policy(flag_over=threshold, rule=Rule.ZERO_FLAGS, critical_turns=(critical,))
        return judged(deltas(made), limits).decision

    assert ORDER.index(at(over + more)) <= ORDER.index(at(over))


@MORE
@given(turns(least=1), policies(Rule.DEFAULT, Rule.ZERO_FLAGS), st.sampled_from(["hard", "easy"]))
def test_an_identical_pair_never_makes_a_hold(made: list[Turn], limits: Policy, workload: str) -> None:
    before, after = judged(deltas(made), limits), judged(deltas([*made, identical(workload)]), limits)
    if after.decision is HOLD:
        assert before.decision is HOLD


YES_NO = st.builds(
    lambda right, flip: (100.0 * right, (1 if right else -1) * 100.0 * flip),
    st.sampled_from([True, True, True, False]),
    st.sampled_from([False] * 6 + [True]),
)


@MORE
@given(st.lists(YES_NO, min_size=1, max_size=200), st.sampled_from([2.0, 10.0, 30.0]), st.sampled_from([0.0, 100.0]))
def test_an_identical_pair_never_hurts_a_yes_no_score(
    scored: list[tuple[float, float]], margin: float, largest: float
) -> None:
    """Of single turns."""
    made = [Turn("hard", i, 0, drop, baseline) for i, (baseline, drop) in enumerate(scored)]
    limits = policy(margin=margin, flag_over=margin, largest_break=largest, tiers={"easy": Tier.ADVISORY})
    best = max(turn.baseline for turn in made)
    before = judged(deltas(made), limits).decision
    after = judged(deltas([*made, identical("hard", best)]), limits).decision
    assert ORDER.index(after) <= ORDER.index(before)


def identical(workload: str, baseline: float = 80.0) -> Turn:
    return Turn(workload, 999, 0, 0.0, baseline)


@MORE
@given(turns(st.integers(-20, 20).map(float), least=1), policies(Rule.DEFAULT))
def test_swapping_the_arms_flips_signs(made: list[Turn], limits: Policy) -> None:
    limits = replace(limits, largest_break=0.0)
    one = deltas(made)
    other = [replace(d, drop=-(d.drop or 0.0), baseline=d.candidate, candidate=d.baseline) for d in one]
    left, right = judged(one, limits), judged(other, limits)
    assert (left.pooled.worse, left.pooled.better) == (right.pooled.better, right.pooled.worse)
    for workload, found in left.classes.items():
        for name, score in found.scores.items():
            mirror = right.classes[workload].scores[name]
            assert mirror.mean_drop == pytest.approx(-score.mean_drop, abs=1e-9)
            assert (mirror.drops_over, mirror.gains_over) == (score.gains_over, score.drops_over)
            for end, opposite in ((score.ci_lower, mirror.ci_upper), (score.ci_upper, mirror.ci_lower)):
                assert (end is None) == (opposite is None)
                assert opposite is None or end is None or opposite == pytest.approx(-end, abs=1e-6)


def test_the_drops_tried_here_come_to_every_decision() -> None:
    """Else the properties would hold for want of cases."""
    tried = [[Turn("hard", i, 0, drop), Turn("easy", i, 0, drop)] for drop in (0.1, 2.5, 20.0) for i in range(8)]
    decisions = {
        judged(deltas([turn for pair in tried[at : at + 8] for turn in pair]), policy()).decision for at in (0, 8, 16)
    }
    assert decisions == {PROMOTE, HOLD}
    assert judged([], policy()).decision is INCONCLUSIVE


SUPPORTED = policy(tiers={"easy": Tier.SUPPORTING})
ALONE = policy(tiers={"easy": Tier.ADVISORY})


def hard(*drops: float, index: int = 0, first: int = 0, baseline: float = 80.0) -> list[Turn]:
    return [Turn("hard", first + i, index, drop, baseline) for i, drop in enumerate(drops)]


def better(before: CandidateResult, after: CandidateResult) -> bool:
    return ORDER.index(after.decision) < ORDER.index(before.decision)


def test_evidence_removed_from_a_supporting_class_does_not_promote() -> None:
    """Seven conversations prove a loss of 5 points (2 ** -7 < 0.01), six do not; but the seventh is missed."""
    made = deltas([*hard(0.0, 0.0), *(Turn("easy", i, 0, 5.0) for i in range(7))])
    before, after = (judged(found, SUPPORTED) for found in (made, [*made[:-1], lost(made[-1])]))
    assert before.decision is HOLD
    assert after.decision is INCONCLUSIVE


@MORE
@given(st.lists(DROPS, min_size=FEW, max_size=40), st.floats(0.0, 100.0), st.sampled_from([2.0, 10.0, 30.0]))
def test_an_identical_pair_never_hurts(drops: list[float], baseline: float, margin: float) -> None:
    """Where the bound allows for breaks, whatever the drops and the pair's baseline."""
    limits = replace(ALONE, scores=policy(margin=margin, flag_over=margin).scores, largest_break=100.0)
    before = judged(deltas(hard(*drops)), limits)
    assert not better(judged(deltas([*hard(*drops), identical("hard", baseline)]), limits), before)


def test_an_identical_pair_of_a_better_baseline_does_not_hurt() -> None:
    quiet, limits = hard(*[0.0] * 149, baseline=50.0), replace(ALONE, largest_break=100.0)
    assert judged(deltas(quiet), limits).decision is PROMOTE
    assert judged(deltas([*quiet, identical("hard", 100.0)]), limits).decision is PROMOTE


def test_students_bounds_widen_by_a_pair_that_differs_from_the_others() -> None:
    """Two drops of 1.9 have no spread and pass; beside a third of 0 they have: 1.27 + 2.92 * 0.63 points. So where the
    conversations seen are taken for all there are, one that did not move may cost a promotion.
    """
    before, after = (judged(deltas(hard(*drops)), ALONE) for drops in ((1.9, 1.9), (1.9, 1.9, 0.0)))
    assert (before.decision, after.decision) == (PROMOTE, INCONCLUSIVE)


def test_a_larger_threshold_may_hold_by_the_test_of_direction() -> None:
    """Eight drops of 3 against one gain of 2.5: p = 10 / 512 over 2 points, 1 / 256 over 2.7, where gains are none."""
    made = deltas(hard(*[3.0] * 8, -2.5, *[0.0] * 9))
    low, high = (judged(made, replace(ALONE, scores=policy(flag_over=over).scores)) for over in (2.0, 2.7))
    assert (low.decision, high.decision) == (PROMOTE, HOLD)


def test_a_tenth_turn_makes_a_stratum_that_strict_wants_to_see_settled() -> None:
    """Nine late turns are no stratum beside ten early ones, ten are: its bound is 0 + 1.83 * 1.33 points."""
    made = [*hard(*[0.0] * 10), *hard(*[4.0, -4.0] * 4, 0.0, index=7, first=20)]
    limits = replace(ALONE, rule=Rule.STRICT, scores=policy(flag_over=50.0).scores)
    before, after = (judged(deltas(turns), limits) for turns in (made, [*made, Turn("hard", 99, 7, 0.0)]))
    assert (before.decision, after.decision) == (PROMOTE, INCONCLUSIVE)
