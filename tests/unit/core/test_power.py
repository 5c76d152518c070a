"""What a policy can see before anything runs: known values, and that more evidence never means less power."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import yaml

from kvquant_eval.core.codec import DataError
from kvquant_eval.core.draws import Averaged, Flips, Jitter, Replayed, Source
from kvquant_eval.core.inference import Estimate
from kvquant_eval.core.policy import Policy, Rule, ScorePolicy, ScoreRole
from kvquant_eval.core.power import Power, as_data, break_needs, foresee, refuse_hopeless, turns_needed
from kvquant_eval.core.records import Decision, Verdict
from kvquant_eval.core.results import CandidateResult, ClassResult
from kvquant_eval.core.stats import clustered, sign_flip
from kvquant_eval.core.targets import Target
from kvquant_eval.core.trials import draw, passes


def target(source: Source, sizes: tuple[int, ...], margin: float = 2.0, largest: float = 0.0, **more: Any) -> Target:
    rule = ScorePolicy(role=ScoreRole.GATE, margin=margin)
    critical = np.zeros(sum(sizes), dtype=bool)
    return Target(
        workload="math", name="gl", rule=rule, sizes=sizes, largest=largest, source=source, critical=critical, **more
    )


def policy(rule: Rule = Rule.DEFAULT, **changes: Any) -> Policy:
    scores = {"math": {"gl": ScorePolicy(role=ScoreRole.GATE, margin=2.0)}}
    return Policy(name="made", rule=rule, hardest="math", scores=scores, **changes)


def best(verdict: Verdict = Verdict.PASS, *reasons: str) -> CandidateResult:
    judged = ClassResult(
        verdict=verdict, reasons=reasons, n_turns=1, n_headroom=1, n_unscored=0, n_missing=0, scores={}
    )
    decision = Decision.PROMOTE if verdict is Verdict.PASS else Decision.INCONCLUSIVE
    return CandidateResult(decision=decision, reasons=reasons, classes={"math": judged})


def power(*targets: Target, rule: Rule = Rule.DEFAULT, **changes: Any) -> Power:
    return foresee(targets, policy(rule, **changes), best())


@pytest.mark.parametrize(
    ("share", "margin", "turns", "off"),
    [(0.05, 2, 773, 0.04), (0.1, 2, 1546, 0.04), (0.1, 5, 248, 0.06), (0.05, 3, 344, 0.09), (0.05, 5, 124, 0.12)],
)
def test_the_simulation_agrees_with_the_closed_formula(share: float, margin: float, turns: int, off: float) -> None:
    """Where a handful of turns flips, the score bound asks for a little more than the normal formula."""
    assert turns_needed(100.0**2 * share, margin, 0.8) == pytest.approx(turns, abs=1)
    made = target(Flips(share), (1,) * turns, margin)
    chance = passes(made, draw(made, 1000), policy()).mean()
    assert 0.8 - off <= chance <= 0.84


def test_turns_of_one_conversation_tell_less() -> None:
    assert turns_needed(500, 2, 0.8, size=5, correlation=0.25) == pytest.approx(2 * 773, abs=2)
    sticky = Replayed(tuple(np.full(4, drop) for drop in (0.0, 0.0, 6.0, 4.0)), yes_no=False)
    loose = Replayed(tuple(np.array([a, -a, b, -b]) for a, b in ((0.0, 6.0), (0.0, 4.0))), yes_no=False)
    assert power(target(sticky, (4,) * 10)).chance < power(target(loose, (4,) * 10)).chance


def test_what_was_not_seen_needs_conversations() -> None:
    assert break_needs(2.0, 100.0) == 149  # 100 (1 - 0.05^(1/149)) is the first under 2
    assert break_needs(2.0, 1.0) == 1
    few = foresee([target(Jitter(0.5), (4,) * 11, largest=100.0)], policy(), best(Verdict.INCONCLUSIVE, "few"))
    assert few.chance == 0.0
    why = "before a break in an unseen one can be ruled out to 2 points, or set gate.largest_break"
    assert few.advice == (f"math: 11 conversations; at least 149 are needed {why}",)
    needed = few.classes["math"].conversations
    assert needed is not None
    assert 149 <= needed <= 170
    assert power(target(Jitter(0.5), (4,) * needed, largest=100.0)).chance >= 0.8


def test_a_drop_that_can_be_detected_is_held_as_often_as_is_said() -> None:
    made = target(Jitter(1.5), (2,) * 12)
    found = power(made).classes["math"].detectable
    assert found is not None
    rng = np.random.default_rng(7)
    owners = [i for i in range(12) for _ in range(2)]
    held = 0
    for _ in range(100):
        drops = rng.normal(found, 1.5, 24)
        seen = Estimate(seen=clustered(list(drops), owners), flips=None, spread=1.0, largest=0.0)
        signs = clustered([float(d > 2) - (d < -2) for d in drops], owners)
        held += seen.beyond(2.0, 0.01) < 0.005 or sign_flip(signs) < 0.005
    assert 70 <= held <= 92


def test_with_few_conversations_no_drop_is_proven() -> None:
    assert power(target(Jitter(0.5), (10,) * 5)).classes["math"].detectable is None


def test_zero_flags_sees_the_largest_of_many_turns() -> None:
    """20 normal drops of SD 1: none over 2 with a chance of 0.977^20 = 63%; 80: 16%."""
    assert power(target(Jitter(1.0), (2,) * 10), rule=Rule.ZERO_FLAGS).chance == pytest.approx(0.63, abs=0.07)
    many = power(target(Jitter(1.0), (2,) * 40), rule=Rule.ZERO_FLAGS)
    assert many.chance == pytest.approx(0.16, abs=0.06)
    assert many.held == pytest.approx(1 - many.chance)
    assert many.classes["math"].conversations is None
    assert many.advice[0].startswith("math: a candidate that loses nothing has no flag with a chance of ")


def test_strata_of_strict_take_conversations_of_their_own() -> None:
    late = np.tile([False, True], 20)
    late[8:] = False
    plain = power(target(Jitter(1.5), (2,) * 20))
    strict = power(target(Jitter(1.5), (2,) * 20, strata=(late, ~late)), rule=Rule.STRICT)
    assert strict.chance < plain.chance == 1.0


def test_an_arm_that_loses_nothing_is_hardly_ever_held() -> None:
    assert power(target(Flips(0.1), (3,) * 12, margin=10.0)).held <= 0.02
    assert power(target(Jitter(3.0), (3,) * 12)).held <= 0.02


def test_a_critical_turn_that_moves_by_chance_holds() -> None:
    made = target(Jitter(2.0), (2,) * 20)
    critical = np.zeros(40, dtype=bool)
    critical[:2] = True
    other = Target(**{**vars(made), "critical": critical})
    assert power(other).held == pytest.approx(1 - 0.84**2, abs=0.07)
    assert power(made).held < 0.02


def test_sampled_scores_may_have_more_epochs_instead() -> None:
    found = power(target(Flips(0.3, 2), (2,) * 30, margin=5.0, sampled=True)).classes["math"]
    assert found.chance < 0.8
    assert found.epochs in (2, 4, 8)
    assert power(target(Averaged(Flips(0.3, 2), found.epochs), (2,) * 30, margin=5.0)).chance > found.chance  # type: ignore[arg-type]


def test_the_same_question_has_the_same_answer() -> None:
    assert power(target(Jitter(1.5), (2,) * 8)) == power(target(Jitter(1.5), (2,) * 8))


def test_a_hopeless_policy_is_refused_unless_it_is_allowed() -> None:
    few = foresee([target(Jitter(0.5), (4,) * 11, largest=100.0)], policy(), best(Verdict.INCONCLUSIVE, "few"))
    with pytest.raises(DataError) as refused:
        refuse_hopeless(few, policy())
    assert str(refused.value) == (
        "gate: at least an even chance to promote a candidate that loses nothing, got 0% under made (math: "
        "11 conversations; at least 149 are needed before a break in an unseen one can be ruled out to 2 points, or "
        "set gate.largest_break); add conversations, lower gate.largest_break, or set gate.allow_underpowered=true"
    )
    allowed = policy(allow_underpowered=True)
    refuse_hopeless(few, allowed)
    kept = as_data(few, allowed)
    assert kept == {
        "chance": 0.0,
        "held": few.held,
        "noise": "assumed",
        "run": "",
        "allowed": True,
        "classes": {"math": asdict(few.classes["math"])},
        "advice": list(few.advice),
    }
    assert json.loads(json.dumps(kept)) == yaml.safe_load(yaml.safe_dump(kept)) == kept


def test_what_keeps_even_an_unmoved_candidate_from_passing_is_said() -> None:
    stuck = foresee([target(Jitter(0.5), (4,) * 11)], policy(), best(Verdict.INCONCLUSIVE, "gl: no turn with headroom"))
    assert (stuck.chance, stuck.advice) == (0.0, ("math: gl: no turn with headroom",))
