"""The decision: verdicts a class, one decision a candidate, and no evidence is never PROMOTE."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvquant_eval.core.charges import Grounds
from kvquant_eval.core.gate import decide, worst
from kvquant_eval.core.policy import Policy, Rule, ScorePolicy, ScoreRole
from kvquant_eval.core.records import Decision, Finding, ScoreDelta, Verdict
from kvquant_eval.core.results import CandidateResult, ScoreResult
from tests.fakes.records import delta, deltas, grounds, headroom, one_class

PROMOTE, HOLD, INCONCLUSIVE, INVALID = Decision.PROMOTE, Decision.HOLD, Decision.INCONCLUSIVE, Decision.INVALID
NOISE = [0.3, -0.3, 0.1, -0.1, 0.2, -0.2] * 10


def judged(drops: Sequence[float | None], policy: Policy | None = None, **changes: Any) -> CandidateResult:
    made = deltas(drops)
    return decide(made, policy or one_class(), grounds(made, skipped=changes.pop("skipped", {})), **changes)


def the_score(result: CandidateResult) -> ScoreResult:
    return result.classes["hard"].scores["s"]


def two_classes(rule: Rule = Rule.DEFAULT, **changes: Any) -> Policy:
    scores = {"s": ScorePolicy(role=ScoreRole.GATE, margin=2.0)}
    return one_class(rule=rule, scores={"hard": scores, "easy": scores}, **changes)


def both(hard: Sequence[float | None], easy: Sequence[float | None]) -> list[ScoreDelta]:
    return deltas(hard) + [delta(f"e{i:04}", drop, workload="easy") for i, drop in enumerate(easy)]


def test_noise_around_zero_is_promoted() -> None:
    result = judged(NOISE)
    assert result.decision is PROMOTE
    assert result.classes["hard"].verdict is Verdict.PASS
    assert "points [-0.05, 0.05] stays within the margin of 2" in result.reasons[0]


def test_the_numbers_of_a_class_by_hand() -> None:
    """Four turns from 80: drops 0, 4, 8, -4 have mean 2; SE = sqrt(4/3 * 80) / 4; t(0.95, 3) = 2.35336."""
    score = the_score(judged([0, 4, 8, -4]))
    assert (score.n_turns, score.n_headroom) == (4, 4)
    assert (score.baseline_mean, score.candidate_mean, score.mean_drop) == (80, 78, 2)
    assert score.ci_upper == pytest.approx(2 + 2.353363 * math.sqrt(320 / 3) / 4)
    assert score.ci_lower == pytest.approx(2 - 2.353363 * math.sqrt(320 / 3) / 4)
    assert score.recovery == pytest.approx(97.5)
    assert score.drop_nats == pytest.approx(math.log(80 * 80 / (76 * 72)) / 4 + math.log(80 / 84) / 4)
    assert (score.drops_over, score.gains_over, score.flagged_raw) == (2, 1, 2)
    assert score.flagged_confirmed is None


def test_a_drop_proven_beyond_the_margin_holds() -> None:
    result = judged([5, 6, 7, 6] * 10)
    assert result.decision is HOLD
    assert result.classes["hard"].verdict is Verdict.FAIL
    assert any("beyond the margin of 2" in reason for reason in result.reasons)


def test_a_bound_across_the_margin_settles_nothing_and_says_how_many_turns_would() -> None:
    result = judged([60, -60, 0, 0] * 10)
    assert result.decision is INCONCLUSIVE
    assert "does not settle the margin of 2; about" in result.reasons[0]


def test_a_mean_on_the_margin_is_not_answered_with_a_million_turns() -> None:
    result = judged([30, -26, 34, -29.99] * 10)
    assert result.decision is INCONCLUSIVE
    assert "does not settle the margin of 2; it lies on the margin, where more turns hardly help" in result.reasons[0]


def test_not_significant_is_not_enough() -> None:
    """A mean drop of 1 point whose bound is over the margin is not proven harmless."""
    assert judged([15, -13, 1, 1] * 8).decision is INCONCLUSIVE


def test_a_gain_too_good_to_be_true_is_not_promoted() -> None:
    result = judged([-8, -9, -10, -9] * 10)
    assert result.decision is INCONCLUSIVE
    assert "too good to be true" in result.reasons[0]


def test_more_drops_than_gains_hold_the_hardest_class_within_the_margin() -> None:
    """12 of 200 turns drop 3 points: mean 0.18, well within 2, but 12 against 0 is no chance (2 ** -12)."""
    drops = [3.0] * 12 + [0.0] * 188
    result = judged(drops)
    assert the_score(result).direction_p == pytest.approx(2**-12)
    assert result.decision is HOLD
    assert "12 turns drop over 2 points against 0" in result.reasons[0]


def test_as_many_gains_as_drops_are_noise() -> None:
    result = judged([3.0] * 12 + [-3.0] * 12 + [0.0] * 176)
    assert the_score(result).direction_p == 1.0
    assert result.decision is PROMOTE


def test_only_the_hardest_class_has_the_test_of_direction() -> None:
    made = both(NOISE, [3.0] * 12 + [0.0] * 188)
    assert decide(made, two_classes(), grounds(made)).decision is PROMOTE


@pytest.mark.parametrize(("over", "decision"), [(2.0, PROMOTE), (2.0000001, HOLD)])
def test_a_flag_is_a_drop_over_the_threshold_not_at_it(over: float, decision: Decision) -> None:
    result = judged([over] + [0.0] * 59, one_class(rule=Rule.ZERO_FLAGS))
    assert result.decision is decision
    assert [d.turn_id for d in result.flagged] == ([] if decision is PROMOTE else ["t0000"])


def test_zero_flags_looks_at_the_hardest_class_alone() -> None:
    made = both(NOISE, [50.0] * 60)
    result = decide(made, two_classes(Rule.ZERO_FLAGS), grounds(made))
    assert result.decision is PROMOTE
    assert result.classes["easy"].verdict is Verdict.FAIL
    assert decide(made, two_classes(), grounds(made)).decision is HOLD


def test_zero_flags_counts_turns_without_headroom_too() -> None:
    made = deltas([9.0] + [0.0] * 59)
    rooms = {**headroom(made), ("t0000", "s"): 10.0}
    assert decide(made, one_class(rule=Rule.ZERO_FLAGS), Grounds(headroom=rooms)).decision is HOLD


@pytest.mark.parametrize("rule", list(Rule))
@pytest.mark.parametrize(
    ("drops", "skipped", "changes", "reason"),
    [
        ([], {}, {}, "no turn with headroom"),
        ([*NOISE, None], {}, {}, "1 turns without a pair of scores, such as t0060 (candidate: infra_error)"),
        (NOISE, {"hard": 2}, {}, "2 turns skipped in the hardest class"),
        (NOISE, {}, {"min_headroom": 61}, "60 turns with headroom, at least 61 are needed"),
        (NOISE, {}, {"min_turns": 61}, "at least 61 turns compared, got 60"),
    ],
)
def test_missing_evidence_is_inconclusive(
    rule: Rule, drops: list[float | None], skipped: dict[str, int], changes: dict[str, Any], reason: str
) -> None:
    result = judged(drops, one_class(rule=rule, **changes), skipped=skipped)
    assert result.decision is INCONCLUSIVE
    assert reason in " ".join(result.reasons)


def test_just_enough_turns_are_enough() -> None:
    assert judged(NOISE, one_class(min_turns=60, min_headroom=60)).decision is PROMOTE


def test_turns_without_headroom_do_not_count() -> None:
    made = deltas(NOISE)
    rooms = {key: 80.0 if i < 20 else 19.9 for i, key in enumerate(headroom(made))}
    result = decide(made, one_class(min_headroom=30), Grounds(headroom=rooms))
    assert result.decision is INCONCLUSIVE
    assert result.classes["hard"].n_headroom == 20


def test_headroom_at_the_limit_counts() -> None:
    made = deltas(NOISE)
    assert decide(made, one_class(min_headroom=60), grounds(made, 20.0)).decision is PROMOTE


def test_a_class_without_any_turn_is_inconclusive_by_default_rule() -> None:
    made = both(NOISE, [])
    result = decide(made, two_classes(), grounds(made))
    assert result.decision is INCONCLUSIVE
    assert result.reasons == ("easy: s: no turn with headroom, 1 are needed",)


def test_missing_turns_are_counted_with_the_skipped() -> None:
    result = judged([*NOISE, None, None], skipped={"hard": 3})
    assert result.classes["hard"].n_missing == 5


def test_one_conversation_alone_is_inconclusive() -> None:
    made = deltas(NOISE, conversation_id="only")
    result = decide(made, one_class(), grounds(made))
    assert result.decision is INCONCLUSIVE
    assert (the_score(result).ci_lower, the_score(result).ci_upper) == (None, None)
    assert result.reasons[0].endswith("does not settle the margin of 2; one conversation bounds nothing")


def test_fail_beats_what_is_open() -> None:
    assert judged([50.0] * 40 + [None]).decision is HOLD


def test_an_invalid_finding_forbids_any_verdict() -> None:
    for drops in (NOISE, [50.0] * 40):
        result = judged(drops, findings=[Finding(where="arm", what="no layer is quantized", invalid=True)])
        assert result.decision is INVALID
        assert result.reasons == ("arm: no layer is quantized",)


HOLDS = Finding(where="degenerate replies", what="14 of 242", invalid=False, holds=True)


@pytest.mark.parametrize("rule", list(Rule))
@pytest.mark.parametrize("drops", [NOISE, [*NOISE, None], []])
def test_a_finding_that_holds_does_whatever_the_scores_leave_open(rule: Rule, drops: list[float | None]) -> None:
    result = judged(drops, one_class(rule=rule), findings=[HOLDS])
    assert (result.decision, result.reasons) == (HOLD, ("degenerate replies: 14 of 242",))


def test_a_finding_that_holds_stands_behind_the_scores_that_do() -> None:
    assert judged([50.0] * 40, findings=[HOLDS]).reasons[-1] == "degenerate replies: 14 of 242"


@pytest.mark.parametrize(("invalid", "decision"), [(True, INVALID), (False, INCONCLUSIVE)])
def test_no_evidence_comes_before_a_finding_that_holds(invalid: bool, decision: Decision) -> None:
    other = Finding(where="arm", what="no evidence", invalid=invalid, unfinished=not invalid)
    result = judged(NOISE, findings=[HOLDS, other])
    assert (result.decision, result.reasons) == (decision, ("arm: no evidence",))


def test_a_remark_does_not() -> None:
    remark = Finding(where="arm", what="accepted", invalid=False)
    result = judged(NOISE, findings=[remark])
    assert result.decision is PROMOTE
    assert result.findings == (remark,)


def test_a_bound_score_can_hold_but_not_promote() -> None:
    scores = {"s": ScorePolicy(role=ScoreRole.GATE, margin=2), "task": ScorePolicy(role=ScoreRole.BOUND, margin=10)}
    policy = one_class(scores={"hard": scores})
    for drop, decision in ((30.0, HOLD), (9.0, PROMOTE), (-30.0, PROMOTE)):
        made = deltas(NOISE) + [delta(f"t{i:04}", drop + i % 2, scorer="task") for i in range(60)]
        assert decide(made, policy, grounds(made)).decision is decision
    only_bound = [delta(f"t{i:04}", 0.0, scorer="task") for i in range(60)]
    assert decide(only_bound, policy, grounds(only_bound)).decision is INCONCLUSIVE


def test_a_bound_score_needs_no_headroom() -> None:
    """A task score of 0 or 100 has no turns to leave out: where the baseline is wrong the candidate may be right."""
    scores = {"s": ScorePolicy(role=ScoreRole.GATE, margin=2), "task": ScorePolicy(role=ScoreRole.BOUND, margin=10)}
    made = deltas(NOISE) + [delta(f"t{i:04}", 30.0, scorer="task") for i in range(60)]
    rooms = {key: 80.0 if key[1] == "s" else 0.0 for key in headroom(made)}
    assert decide(made, one_class(scores={"hard": scores}), Grounds(headroom=rooms)).decision is HOLD


def test_a_report_score_never_decides() -> None:
    scores = {"s": ScorePolicy(role=ScoreRole.GATE, margin=2), "kl": ScorePolicy(role=ScoreRole.REPORT, margin=2)}
    made = deltas(NOISE) + [delta(f"t{i:04}", 90.0 - i % 2, scorer="kl") for i in range(60)]
    result = decide(made, one_class(scores={"hard": scores}), grounds(made))
    assert result.decision is PROMOTE
    assert result.flagged == ()
    assert result.classes["hard"].scores["kl"].mean_drop == 89.5
    assert result.classes["hard"].scores["kl"].flagged_raw == 0


def test_flagged_turns_come_worst_first() -> None:
    result = judged([3.0, 0.0, 9.0, 3.0, *NOISE])
    assert [(d.turn_id, d.drop) for d in result.flagged] == [("t0002", 9.0), ("t0000", 3.0), ("t0003", 3.0)]


def test_points_of_zero_have_no_nats_and_no_recovery() -> None:
    made = [delta(f"t{i}", 0.0, baseline=0.0, candidate=0.0) for i in range(4)]
    score = the_score(decide(made, one_class(), grounds(made)))
    assert (score.drop_nats, score.recovery) == (None, None)


@pytest.mark.parametrize(
    ("decisions", "expected"),
    [
        ([PROMOTE, PROMOTE], PROMOTE),
        ([PROMOTE, INCONCLUSIVE], INCONCLUSIVE),
        ([INCONCLUSIVE, HOLD, PROMOTE], HOLD),
        ([HOLD, INVALID], INVALID),
        ([], INVALID),
    ],
)
def test_the_worst_decides(decisions: list[Decision], expected: Decision) -> None:
    assert worst(decisions) is expected


@given(st.lists(st.one_of(st.none(), st.floats(-80, 80)), max_size=60), st.sampled_from(list(Rule)))
def test_promote_needs_every_turn_and_a_bound_within_the_margin(drops: list[float | None], rule: Rule) -> None:
    result = judged(drops, one_class(rule=rule, min_turns=20, min_headroom=20))
    if result.decision is PROMOTE:
        assert None not in drops
        assert len(drops) >= 20
        if rule is Rule.DEFAULT:
            assert the_score(result).ci_upper is not None
            assert (the_score(result).ci_upper or 0.0) < 2
        else:
            assert not any(drop is not None and drop > 2 for drop in drops)
    if result.decision is HOLD and rule is Rule.ZERO_FLAGS:
        assert any(drop is not None and drop > 2 for drop in drops)


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=10), st.floats(0, 50))
def test_a_worse_candidate_is_never_judged_better(drops: list[float], more: float) -> None:
    """Every turn dropping further by the same amount cannot turn a HOLD into a PROMOTE."""
    first, second = judged(drops).decision, judged([drop + more for drop in drops]).decision
    assert (first, second) != (HOLD, PROMOTE)


@pytest.mark.parametrize(("n", "decision"), [(40, INCONCLUSIVE), (148, INCONCLUSIVE), (149, PROMOTE)])
def test_a_yes_no_score_without_a_flip_needs_149_turns_for_2_points(n: int, decision: Decision) -> None:
    """Zero discordant pairs of n: the upper bound is 100 (1 - 0.05 ** (1 / n)) points, 2.0 at 148 or 149 turns."""
    made = [delta(f"t{i:04}", 0.0, baseline=100.0, candidate=100.0) for i in range(n)]
    assert decide(made, one_class(), grounds(made)).decision is decision


def test_rare_breaks_cannot_be_ruled_out_by_a_few_quiet_conversations() -> None:
    """The spread of a yes/no score without a flip is 0 within conversations and between them: 60 turns leave 4.9
    points.
    """
    made = [delta(f"t{i:04}", 0.0, baseline=100.0, candidate=100.0, conversation_id=f"c{i % 10}") for i in range(60)]
    assert decide(made, one_class(), grounds(made)).decision is INCONCLUSIVE


def test_a_drop_that_is_no_number_is_never_promoted() -> None:
    """Not a number compares as no flag."""
    for rule in Rule:
        assert judged([math.nan, *NOISE], one_class(rule=rule)).decision is not PROMOTE
