"""What is said although it decides nothing: the pooled direction, a stratum that its class hides, trends."""

from __future__ import annotations

from typing import Any

import pytest

from kvquant_eval.core.cautions import About, cautions
from kvquant_eval.core.gate import decide
from kvquant_eval.core.policy import Policy, ScorePolicy, ScoreRole
from kvquant_eval.core.pooled import Pooled, pooled
from kvquant_eval.core.records import Decision, ScoreDelta
from kvquant_eval.core.results import CandidateResult
from kvquant_eval.core.strata import Axis
from tests.fakes.records import delta, deltas, grounds, one_class

WIDE = {"s": ScorePolicy(role=ScoreRole.GATE, margin=2.0, flag_over=50.0)}


def said(result: CandidateResult, policy: Policy) -> dict[About, list[str]]:
    found = cautions(result, policy)
    return {about: [caution.sentence for caution in found if caution.about is about] for about in About}


def decided(made: list[ScoreDelta], policy: Policy, **changes: Any) -> CandidateResult:
    return decide(made, policy, grounds(made, **changes))


def placed(made: list[ScoreDelta]) -> dict[str, dict[Axis, int]]:
    ones = dict.fromkeys(Axis, 1)
    return {d.turn_id: {**ones, Axis.TURN_INDEX: d.turn_index} for d in made}


def test_conversations_are_counted_by_the_sign_of_their_mean_drop() -> None:
    """One whose turns cancel out counts on neither side; 2 against 1 of equal chances: 4 of 8."""
    made = [
        delta("a1", 1.0, conversation_id="a"), delta("a2", 1.0, conversation_id="a"),
        delta("b1", 9.0, conversation_id="b"), delta("b2", -1.0, conversation_id="b"),
        delta("c1", 1.0, conversation_id="c"), delta("c2", -1.0, conversation_id="c"), delta("d1", -0.1),
        delta("e1", None),
    ]  # fmt: skip
    assert pooled(made) == Pooled(n_conversations=4, worse=2, better=1, p=0.5)
    assert pooled([]) == Pooled()


def test_a_slight_loss_everywhere_is_a_signal_that_no_class_shows() -> None:
    policy = one_class(scores={"hard": WIDE, "easy": WIDE})
    made = deltas([0.2] * 6 + [-0.2]) + [delta(f"e{i}", 0.2, workload="easy") for i in range(7)]
    result = decided(made, policy)
    assert result.decision is Decision.PROMOTE
    assert result.pooled == Pooled(n_conversations=14, worse=13, better=1, p=pytest.approx(15 / 2**14))
    assert said(result, policy)[About.POOLED] == [
        "13 of 14 conversations lose and 1 gain (p = 0.00092): no single class shows it"
    ]


def test_where_classes_show_it_they_are_named() -> None:
    policy = one_class(scores={"hard": WIDE, "easy": WIDE})
    made = deltas([9.0, 8.0] * 10) + [delta(f"e{i}", 9.0 + i % 2, workload="easy") for i in range(20)]
    (sentence,) = said(decided(made, policy), policy)[About.POOLED]
    assert sentence.endswith(": hard, easy show it alone too")


def test_turns_without_headroom_and_scores_that_do_not_gate_are_not_pooled() -> None:
    scores = {**WIDE, "kl": ScorePolicy(role=ScoreRole.REPORT, margin=2.0)}
    made = deltas([0.1] * 20) + deltas([9.0] * 20, scorer="kl")
    policy = one_class(scores={"hard": scores})
    assert decided(made, policy).pooled.worse == 20
    assert decide(made, policy, grounds(made, 10.0)).pooled == Pooled()


def test_a_chance_surplus_is_not_said() -> None:
    made = deltas([0.2] * 6)
    assert decided(made, one_class()).pooled.p == pytest.approx(2**-6)
    assert said(decided(made, one_class()), one_class())[About.POOLED] == []


def test_a_stratum_over_the_margin_in_a_class_that_is_not_is_named_with_its_numbers() -> None:
    made = [delta(f"t{i:02}", 0.0, turn_index=0) for i in range(40)]
    made += [delta(f"u{i:02}", 4.0 + i % 2, turn_index=7) for i in range(20)]
    policy = one_class(scores={"hard": WIDE})
    result = decided(made, policy, positions=placed(made))
    worst = result.classes["hard"].scores["s"].worst_stratum
    assert worst is not None
    assert worst.mean_drop == 4.5
    bounds = f"[{worst.ci_lower:.2f}, {worst.ci_upper:.2f}]"
    (sentence,) = said(result, policy)[About.STRATUM]
    assert sentence == (
        f"hard s, turn index 7: mean drop 4.50 points {bounds} in 20 turns is over the margin of 2, the class's 1.50 "
        "is not"
    )


def test_a_class_over_the_margin_hides_no_stratum() -> None:
    made = [delta(f"t{i:02}", 9.0 + i % 2, turn_index=7 * (i % 2)) for i in range(40)]
    policy = one_class(scores={"hard": WIDE})
    assert said(decided(made, policy, positions=placed(made)), policy)[About.STRATUM] == []


def growing(slope: float) -> list[ScoreDelta]:
    return [delta(f"t{i:03}", slope * (i % 8) + (i // 8 % 2) - 0.5, turn_index=i % 8) for i in range(80)]


def test_drops_that_grow_with_the_turn_are_said_in_points_a_turn() -> None:
    policy, made = one_class(scores={"hard": WIDE}), growing(1.2)
    (sentence,) = said(decided(made, policy, positions=placed(made)), policy)[About.TREND]
    assert sentence.startswith("hard s: drops grow by 1.2 points a turn (p = ")
    assert said(decided(growing(0.0), policy, positions=placed(made)), policy)[About.TREND] == []


def test_trends_are_one_family() -> None:
    """A trend of p between 0.005 and 0.01 is said alone, and not beside another."""
    alone = one_class(scores={"hard": WIDE})
    beside = one_class(scores={"hard": WIDE, "easy": WIDE})
    made, flat = growing(0.06), growing(0.0)
    other = [delta(f"e{d.turn_id}", d.drop, turn_index=d.turn_index, workload="easy") for d in flat]
    one = decided(made, alone, positions=placed(made))
    two = decided(made + other, beside, positions=placed(made + other))
    assert 0.005 < one.classes["hard"].scores["s"].trends[0].p < 0.01
    assert len(said(one, alone)[About.TREND]) == 1
    assert said(two, beside)[About.TREND] == []
