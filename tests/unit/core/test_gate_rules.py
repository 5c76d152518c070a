"""What holds beside the mean of a class: strata, tiers, second tests, critical turns; and one family of all of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from kvquant_eval.core.codec import DataError
from kvquant_eval.core.compare import Key
from kvquant_eval.core.confirm import Confirmation
from kvquant_eval.core.gate import decide, is_disaster
from kvquant_eval.core.policy import Policy, Rule, ScorePolicy, ScoreRole, Tier
from kvquant_eval.core.records import Decision, ScoreDelta, Verdict
from kvquant_eval.core.results import CandidateResult
from kvquant_eval.core.strata import Axis
from tests.fakes.records import delta, deltas, grounds, one_class

PROMOTE, HOLD, INCONCLUSIVE = Decision.PROMOTE, Decision.HOLD, Decision.INCONCLUSIVE
NOISE = [0.3, -0.3, 0.1, -0.1, 0.2, -0.2] * 10
BROKEN = [9.0, 8.0] * 30
UNSETTLED = [60.0, -60.0] * 30


def classes(flag_over: float = 2.0, **changes: Any) -> Policy:
    scores = {"s": ScorePolicy(role=ScoreRole.GATE, margin=2.0, flag_over=flag_over)}
    return one_class(scores={"hard": scores, "easy": scores}, **changes)


def both(hard: Sequence[float], easy: Sequence[float]) -> list[ScoreDelta]:
    return deltas(hard) + [delta(f"e{i:04}", drop, workload="easy") for i, drop in enumerate(easy)]


def decided(made: list[ScoreDelta], policy: Policy, **changes: Any) -> CandidateResult:
    return decide(made, policy, grounds(made, **changes))


def placed(made: list[ScoreDelta]) -> dict[str, dict[Axis, int]]:
    ones = dict.fromkeys(Axis, 1)
    return {d.turn_id: {**ones, Axis.TURN_INDEX: d.turn_index} for d in made}


def late(drops: Sequence[float], quiet: int = 60) -> list[ScoreDelta]:
    """``drops`` at turn index 7, behind quiet first turns."""
    first = [delta(f"t{i:03}", drop) for i, drop in enumerate((NOISE * 3)[:quiet])]
    return first + [delta(f"u{i:03}", drop, turn_index=7) for i, drop in enumerate(drops)]


@pytest.mark.parametrize(("rule", "decision"), [(Rule.DEFAULT, PROMOTE), (Rule.STRICT, HOLD)])
def test_strict_holds_on_a_stratum_that_the_class_hides(rule: Rule, decision: Decision) -> None:
    """20 late turns of 80 lose 4 to 5 points: the class 1.1, within the margin of 2."""
    made, policy = late([4.0, 5.0] * 10), one_class(rule=rule, flag_over=50.0)
    result = decided(made, policy, positions=placed(made))
    assert result.classes["hard"].scores["s"].mean_drop == pytest.approx(90 / 80)
    assert result.decision is decision
    if rule is Rule.STRICT:
        assert len(result.reasons) == 1
        assert result.reasons[0].startswith("hard: s, turn index 7: mean drop 4.50 points, at least ")
        assert "is beyond the margin of 2 (p = " in result.reasons[0]


def test_strict_promotes_what_is_quiet_everywhere() -> None:
    made = late(NOISE[:20])
    assert decided(made, one_class(rule=Rule.STRICT), positions=placed(made)).decision is PROMOTE


def test_strict_wants_every_stratum_settled() -> None:
    made = late([6.0, -6.0] * 5)
    assert decided(made, one_class(flag_over=50.0), positions=placed(made)).decision is PROMOTE
    result = decided(made, one_class(rule=Rule.STRICT, flag_over=50.0), positions=placed(made))
    assert result.decision is INCONCLUSIVE
    assert result.reasons[0].startswith("hard: s, turn index 7: mean drop 0.00 points [")
    assert result.reasons[0].endswith("does not settle the margin of 2")


@pytest.mark.parametrize(
    ("tier", "easy", "decision"),
    [
        (Tier.CRITICAL, BROKEN, HOLD),
        (Tier.CRITICAL, UNSETTLED, INCONCLUSIVE),
        (Tier.SUPPORTING, BROKEN, HOLD),
        (Tier.SUPPORTING, UNSETTLED, PROMOTE),
        (Tier.SUPPORTING, [], PROMOTE),
        (Tier.ADVISORY, BROKEN, PROMOTE),
        (Tier.ADVISORY, UNSETTLED, PROMOTE),
    ],
)
def test_a_class_counts_by_its_tier(tier: Tier, easy: list[float], decision: Decision) -> None:
    assert decided(both(NOISE, easy), classes(tiers={"easy": tier})).decision is decision


@pytest.mark.parametrize("tier", [Tier.SUPPORTING, Tier.ADVISORY])
def test_the_hardest_class_is_critical(tier: Tier) -> None:
    with pytest.raises(DataError, match=r"^workloads\.hard\.tier: critical for the hardest class, got '(sup|adv)"):
        classes(tiers={"hard": tier})


def test_an_advisory_class_makes_no_charge_in_the_family() -> None:
    """Eight drops against none, p = 2 ** -8: under 0.01 among two charges, not among three."""
    made = both([3.0] * 8 + [0.0] * 192, NOISE)
    assert decided(made, classes(tiers={"easy": Tier.ADVISORY})).decision is HOLD
    assert decided(made, classes()).decision is PROMOTE


def test_a_small_p_alone_is_not_enough_among_many_reasons_to_hold() -> None:
    result = decided(deltas([3.0] * 7 + [0.0] * 193), one_class())
    assert result.classes["hard"].scores["s"].direction_p == pytest.approx(2**-7)
    assert result.decision is PROMOTE
    (reason,) = decided(deltas([3.0] * 8 + [0.0] * 192), one_class()).reasons
    assert reason.endswith("(p = 0.0078 among 2 reasons to hold)")


def test_a_drop_beyond_the_margin_that_may_be_chance_is_inconclusive() -> None:
    """Four conversations could all lose by chance once in 16: the bounds alone do not hold."""
    result = decided(deltas([9.0, 8.0, 9.0, 8.0]), one_class())
    assert result.decision is INCONCLUSIVE
    assert result.reasons[0].endswith("is beyond the margin of 2, which may be chance in 4 conversations")


SECOND = Confirmation(epochs=32, drop=40.0, p=0.0001, holm=0.0002, q=0.0001, confirmed=True)
CLEARED = replace(SECOND, drop=1.0, p=0.4, holm=0.8, q=0.8, confirmed=False)


def retested(found: Mapping[Key, Confirmation] | None, **changes: Any) -> CandidateResult:
    return decided(both([40.0, *NOISE * 3], [40.0, *NOISE * 3]), classes(**changes), confirmations=found)


def test_a_confirmed_flag_holds_in_the_hardest_class_only() -> None:
    result = retested({("t0000", "s"): SECOND})
    assert result.decision is HOLD
    said = "s: 1 of 1 flagged turns drop again over 32 fresh epochs: t0000 by 40 points (p = 0.0002)"
    assert result.reasons == (f"hard: {said}",)
    assert result.classes["hard"].scores["s"].flagged_confirmed == 1
    assert retested({("e0000", "s"): SECOND}).decision is PROMOTE
    assert retested({("t0000", "s"): CLEARED}).decision is PROMOTE
    assert retested(None).classes["hard"].scores["s"].flagged_confirmed is None


def test_flags_are_listed_by_q() -> None:
    found = {("e0000", "s"): SECOND, ("t0000", "s"): CLEARED}
    assert [d.turn_id for d in retested(found).flagged] == ["e0000", "t0000"]
    assert retested(found).confirmations == found


@pytest.mark.parametrize(
    ("found", "decision"), [(None, HOLD), ({("t0000", "s"): SECOND}, HOLD), ({("t0000", "s"): CLEARED}, PROMOTE)]
)
def test_a_critical_turn_may_not_regress_where_a_second_test_does_not_clear_it(
    found: Mapping[Key, Confirmation] | None, decision: Decision
) -> None:
    result = retested(found, critical_turns=("t0000",))
    assert result.decision is decision
    assert any("t0000, which may never regress, drops by 40.00 points" in r for r in result.reasons) is (
        decision is HOLD
    )


def test_a_critical_turn_may_drop_up_to_the_threshold() -> None:
    assert decided(deltas([2.0, *NOISE]), one_class(critical_turns=("t0000",))).decision is PROMOTE
    assert decided(deltas([2.1, *NOISE]), one_class(critical_turns=("t0000",))).decision is HOLD
    assert decided(deltas([2.1, *NOISE]), one_class(critical_turns=("another",))).decision is PROMOTE


def test_a_critical_turn_without_a_score_is_no_evidence() -> None:
    made = [delta("t0000", None), *deltas(NOISE)[1:]]
    assert decided(made, one_class(critical_turns=("t0000",))).decision is INCONCLUSIVE


@pytest.mark.parametrize(
    ("drop", "tier", "over"),
    [
        (9.0, Tier.CRITICAL, True),
        (5.9, Tier.CRITICAL, False),
        (9.0, Tier.SUPPORTING, True),
        (9.0, Tier.ADVISORY, False),
    ],
)
def test_a_disaster_is_a_lower_bound_beyond_three_margins(drop: float, tier: Tier, over: bool) -> None:
    policy = classes(tiers={"easy": tier})
    said = is_disaster(decided(both(NOISE, [drop, drop + 0.2] * 20), policy), policy)
    assert bool(said) is over
    if over:
        assert said.startswith("easy: s: mean drop 9.10 points, at least 9.07, ")
        assert said.endswith("after 40 turns is beyond 6, 3 margins")


def test_few_conversations_and_bound_scores_are_no_disaster() -> None:
    few = decided(deltas([60.0, 61.0, 62.0]), one_class())
    assert few.classes["hard"].verdict is Verdict.INCONCLUSIVE
    assert is_disaster(few, one_class()) == ""
    scores = {"s": ScorePolicy(role=ScoreRole.GATE, margin=2), "task": ScorePolicy(role=ScoreRole.BOUND, margin=2)}
    policy = one_class(scores={"hard": scores})
    made = deltas(NOISE) + [delta(f"t{i:04}", 60.0 + i % 2, scorer="task") for i in range(60)]
    assert is_disaster(decided(made, policy), policy) == ""


@pytest.mark.parametrize("rule", list(Rule))
@pytest.mark.parametrize("tier", list(Tier))
def test_a_critical_turn_holds_under_every_rule_and_in_every_class(rule: Rule, tier: Tier) -> None:
    """``easy`` is not the hardest class, which alone decides under zero_flags, and may only advise."""
    scores = {"s": ScorePolicy(role=ScoreRole.GATE, margin=90.0)}
    policy = one_class(
        rule=rule, tiers={"easy": tier}, scores={"hard": scores, "easy": scores}, critical_turns=("e0000",)
    )
    easy = [delta(f"e{i:04}", drop, workload="easy") for i, drop in enumerate([60.0, *NOISE])]
    made = [*deltas(NOISE), *easy]
    result = decided(made, policy)
    assert result.decision is HOLD
    assert result.reasons == ("easy: s: e0000, which may never regress, drops by 60.00 points, over 2",)
    lost = [delta("e0000", None, workload="easy") if d.turn_id == "e0000" else d for d in made]
    assert decided(lost, policy).decision is INCONCLUSIVE
