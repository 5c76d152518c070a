"""Policies and settings that cannot mean anything are refused, with the place and the value."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from kvquant_eval.core.codec import DataError, from_data, to_data
from kvquant_eval.core.policy import Policy, Rule, ScorePolicy, ScoreRole
from kvquant_eval.core.records import Decision, Outcome, Sampling
from tests.fakes import gate
from tests.fakes.records import one_class


@pytest.mark.parametrize("value", [0, -1, 100.1, math.nan, math.inf])
@pytest.mark.parametrize("name", ["margin", "flag_over"])
def test_points_are_above_0_and_up_to_100(name: str, value: float) -> None:
    with pytest.raises(DataError, match=rf"^{name}: points above 0 and up to 100, got {value}; "):
        ScorePolicy(role=ScoreRole.GATE, **{"margin": 2.0, name: value})


def test_100_points_are_points() -> None:
    assert ScorePolicy(role=ScoreRole.GATE, margin=100).margin == 100


def test_the_hardest_class_is_one_of_the_classes() -> None:
    with pytest.raises(DataError, match=r"gate\.hardest: .*hard.* got 'harder'"):
        one_class(hardest="harder")


def test_every_class_needs_a_gating_score() -> None:
    with pytest.raises(DataError, match=r"workloads\.hard\.scores: at least one score with role gate"):
        one_class(role=ScoreRole.BOUND)


def test_a_policy_is_read_from_plain_data() -> None:
    data = to_data(one_class(rule=Rule.ZERO_FLAGS, require=("a",)))
    assert from_data(Policy, data, "gate") == one_class(rule=Rule.ZERO_FLAGS, require=("a",))


def test_defaults_are_the_protocols() -> None:
    policy = Policy(
        name="p", rule=Rule.DEFAULT, hardest="w", scores={"w": {"s": ScorePolicy(role=ScoreRole.GATE, margin=2.0)}}
    )
    assert (policy.min_turns, policy.min_headroom, policy.headroom_points) == (200, 30, 20.0)
    assert policy.scores["w"]["s"].flag_over == 2.0


@pytest.mark.parametrize(("decision", "status"), [("PROMOTE", 0), ("HOLD", 3), ("INCONCLUSIVE", 4), ("INVALID", 5)])
def test_exit_codes(decision: str, status: int) -> None:
    assert Decision(decision).exit_code == status


def test_only_skipped_and_infra_error_are_unscored() -> None:
    assert {outcome for outcome in Outcome if not outcome.scored} == {Outcome.SKIPPED, Outcome.INFRA_ERROR}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"candidates": {}}, r"^kv: at least one candidate"),
        ({"sampling": Sampling(temperature=0.005)}, r"^sampling\.temperature: 0 or at least 0\.01 .*got 0\.005"),
        ({"sampling": Sampling(temperature=-1)}, r"^sampling\.temperature"),
        ({"sampling": Sampling(epochs=0)}, r"^sampling\.epochs: at least 1"),
        ({"sampling": Sampling(epochs=3)}, r"^sampling\.epochs: 1 when greedy"),
        ({"block_requests": 1}, r"^block_requests: at least 2, got 1"),
        ({"policy": gate.policy(require=("gone",))}, r"^gate\.require: .*got 'gone'; choose from \['good'\]"),
    ],
)
def test_settings_that_cannot_work_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        gate.settings(tmp_path, changes.pop("candidates", gate.treatments("good")), **changes)


def test_settings_that_can_work_are_not(tmp_path: Path) -> None:
    warm = Sampling(temperature=0.01, epochs=3)
    made = gate.settings(tmp_path, gate.treatments("good"), sampling=warm, policy=gate.policy(require=("good",)))
    assert made.sampling.epochs == 3


@pytest.mark.parametrize("name", ["baseline", "repeat", "placebo", "baseline_eager"])
def test_a_candidate_must_not_take_the_name_of_another_arm(tmp_path: Path, name: str) -> None:
    """Two arms of one name would share a folder and a journal, and the later would hide the earlier."""
    with pytest.raises(DataError, match=name):
        gate.settings(tmp_path, gate.treatments(name))
