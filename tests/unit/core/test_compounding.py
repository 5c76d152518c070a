"""Points by depth in both modes, the first failing step, and who recovers: known values."""

from __future__ import annotations

from collections.abc import Sequence

from kvquant_eval.core.compounding import Compounding, Depth, compounding
from kvquant_eval.core.records import Measure, OnDivergence, Outcome, Replay, Rollout, Step, TurnScore


def rollout(name: str, steps: Sequence[str], epoch: int = 0) -> Rollout:
    made = [
        Step(turn_id=turn_id, asked=(), recorded={}, calls=(), max_tokens=1, seed=0)
        for turn_id in (f"{name}{step}" if step else "" for step in steps)
    ]
    return Rollout(
        conversation_id=name,
        epoch=epoch,
        steps=tuple(made),
        tools=(),
        on_divergence=OnDivergence.STOP,
        temperature=0.0,
        top_p=1.0,
        top_k=0,
    )


def score(turn_id: str, points: float | None, scorer: str, epoch: int = 0) -> TurnScore:
    outcome = Outcome.OK if points is not None else Outcome.INFRA_ERROR
    return TurnScore(turn_id=turn_id, scorer=scorer, epoch=epoch, outcome=outcome, points=points)


def both(turn_id: str, golden: float, own: float | None, epoch: int = 0) -> list[TurnScore]:
    return [score(turn_id, golden, "match", epoch), score(turn_id, own, "match.free_running", epoch)]


def left(turn_id: str) -> Replay:
    return Replay(
        turn_id=turn_id, measure=Measure.FREE_RUNNING, epoch=0, outcome=Outcome.OK, divergence="no call of 'get'"
    )


def found(rollouts: Sequence[Rollout], scores: Sequence[TurnScore], replays: Sequence[Replay] = ()) -> Compounding:
    workloads = {s.turn_id: "math" for r in rollouts for s in r.steps}
    return compounding(rollouts, workloads, scores, replays, {"math": ["match"]})["math"]["match"]


def test_the_curve_is_by_replies_of_the_arm_in_the_history() -> None:
    scores = [*both("a0", 100, 100), *both("a2", 100, 40), *both("b0", 50, 100), *both("b1", 0, 20)]
    result = found([rollout("a", ["0", "", "2"]), rollout("b", ["0", "1"])], scores)
    assert result.curve == (
        Depth(depth=0, n=2, golden_prefix=75, free_running=100),
        Depth(depth=1, n=1, golden_prefix=0, free_running=20),
        Depth(depth=2, n=1, golden_prefix=100, free_running=40),
    )


def test_first_failing_step_and_recovery() -> None:
    scores = [
        *both("a0", 100, 100), *both("a1", 100, 49), *both("a2", 100, 50),  # fails at 1, recovers
        *both("b0", 100, 0), *both("b1", 100, 0), *both("b2", 100, 10),  # fails at 0, does not
        *both("c0", 100, 100), *both("c1", 100, 100), *both("c2", 100, 0),  # fails last: could not
        *both("d0", 100, 100), *both("d1", 100, 100), *both("d2", 100, 100),
    ]  # fmt: skip
    result = found([rollout(name, "012") for name in "abcd"], scores)
    assert result.first_failing == {0: 1, 1: 1, 2: 1}
    assert (result.n_conversations, result.never_failing, result.could_recover, result.recovered) == (4, 1, 2, 1)


def test_conversations_that_left_their_recording_are_counted_once() -> None:
    scores = [*both("a0", 100, 100), *both("a1", 100, 0), *both("b0", 100, 100)]
    result = found([rollout("a", "01"), rollout("b", "01")], scores, [left("a0"), left("a1")])
    assert (result.n_conversations, result.diverged) == (2, 1)


def test_what_is_unscored_in_one_mode_is_in_neither() -> None:
    scores = [*both("a0", 100, None), *both("a1", 100, 0)]
    result = found([rollout("a", "01")], scores)
    assert [(d.depth, d.n) for d in result.curve] == [(1, 1)]
    nothing = found([rollout("a", "01")], both("a0", 100, None))
    assert (nothing.curve, nothing.n_conversations) == ((), 0)


def test_epochs_are_conversations_of_their_own() -> None:
    scores = [*both("a0", 100, 100, 0), *both("a0", 100, 0, 1), *both("a1", 100, 100, 0), *both("a1", 100, 100, 1)]
    result = found([rollout("a", "01", 0), rollout("a", "01", 1)], scores)
    assert (result.n_conversations, result.never_failing, result.recovered) == (2, 1, 1)
    assert result.curve[0] == Depth(depth=0, n=2, golden_prefix=100, free_running=50)
