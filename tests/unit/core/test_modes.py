"""Scores of both replay modes under one policy."""

from __future__ import annotations

from kvquant_eval.core.modes import OwnHistory, in_mode
from kvquant_eval.core.policy import ModeRoles, ScorePolicy, ScoreRole
from kvquant_eval.core.records import Measure, ReplayMode
from kvquant_eval.core.scorers.likelihood import ReplyLikelihood
from kvquant_eval.core.scorers.text import Match, TokenF1
from tests.fakes.records import golden_turn, rendered_turn, reply

GATE, BOUND, REPORT = ScoreRole.GATE, ScoreRole.BOUND, ScoreRole.REPORT
RULES = {
    "gl": ScorePolicy(role=GATE, margin=2.0),
    "match": ScorePolicy(role=BOUND, margin=10.0, flag_over=3.0),
    "f1": ScorePolicy(role=REPORT, margin=5.0),
}
SCORERS = {"gl": ReplyLikelihood(), "match": Match(), "f1": TokenF1()}


def roles(golden_prefix: ScoreRole, free_running: ScoreRole, mode: ReplayMode) -> dict[str, ScoreRole]:
    rules, scorers = in_mode(RULES, SCORERS, ModeRoles(golden_prefix=golden_prefix, free_running=free_running), mode)
    assert rules.keys() == scorers.keys()
    return {name: rule.role for name, rule in rules.items()}


def test_one_mode_alone_leaves_everything_as_it_is() -> None:
    assert in_mode(RULES, SCORERS, ModeRoles(), ReplayMode.GOLDEN_PREFIX) == (RULES, SCORERS)


def test_free_running_scores_bound_by_default() -> None:
    rules, scorers = in_mode(RULES, SCORERS, ModeRoles(), ReplayMode.FREE_RUNNING)
    assert {name: rules[name] for name in RULES} == RULES
    assert rules["match.free_running"] == ScorePolicy(role=BOUND, margin=10.0, flag_over=3.0)
    assert rules["f1.free_running"].role is REPORT
    assert "gl.free_running" not in rules
    assert scorers["match.free_running"].measure is Measure.FREE_RUNNING


def test_the_policy_says_which_mode_gates() -> None:
    both = roles(BOUND, GATE, ReplayMode.FREE_RUNNING)
    assert both == {"gl": BOUND, "match": BOUND, "f1": REPORT, "match.free_running": GATE, "f1.free_running": REPORT}
    assert set(roles(REPORT, REPORT, ReplayMode.FREE_RUNNING).values()) == {REPORT}


def test_a_free_running_score_is_the_task_score_over_other_replies() -> None:
    turn = golden_turn(expected={"answers": ["5"]})
    for text in ("It is 5.", "It is 6."):
        heard = reply(text, measure=Measure.FREE_RUNNING)
        assert OwnHistory(Match())(heard, turn, rendered_turn()) == Match()(heard, turn, rendered_turn())
