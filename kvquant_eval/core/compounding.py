"""Whether errors compound: free-running replies by depth, beside those to the same turns behind the golden history."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kvquant_eval.core.modes import free_running
from kvquant_eval.core.records import Measure, Replay, Rollout, TurnScore

RIGHT = 50.0
"""Points from which a step counts as right."""


@dataclass(frozen=True, kw_only=True)
class Depth:
    """``depth`` is how many replies of the arm's own stand in the history; points (0..100) are means over ``n`` turns
    that both modes scored.
    """

    depth: int
    n: int
    golden_prefix: float
    free_running: float


@dataclass(frozen=True, kw_only=True)
class Compounding:
    """One score of one class in one arm.

    ``first_failing`` counts conversations by the depth of their first golden turn under ``RIGHT`` points free-running,
    ``never_failing`` those without one. Of the conversations that fail before their last golden turn
    (``could_recover``), ``recovered`` get a later one right. ``diverged`` counts those that left their recording.
    """

    curve: tuple[Depth, ...]
    n_conversations: int
    diverged: int
    first_failing: Mapping[int, int]
    never_failing: int
    could_recover: int
    recovered: int


def compounding(
    rollouts: Sequence[Rollout],
    workloads: Mapping[str, str],
    scores: Iterable[TurnScore],
    replays: Iterable[Replay],
    measured: Mapping[str, Sequence[str]],
) -> dict[str, dict[str, Compounding]]:
    """By class and task score. ``workloads`` are classes by turn id, ``measured`` the task scores of each class."""
    points = {(s.turn_id, s.scorer, s.epoch): s.points for s in scores if s.points is not None}
    left = {(r.turn_id, r.epoch) for r in replays if r.measure is Measure.FREE_RUNNING and r.divergence}
    grouped: dict[str, list[Rollout]] = defaultdict(list)
    for rollout in rollouts:
        grouped[workloads[rollout.steps[0].turn_id]].append(rollout)
    return {
        workload: {score: _score(mine, score, points, left) for score in measured[workload]}
        for workload, mine in grouped.items()
    }


def _score(
    rollouts: Sequence[Rollout],
    score: str,
    points: Mapping[tuple[str, str, int], float],
    left: set[tuple[str, int]],
) -> Compounding:
    """Turns that have nothing for the scorer are passed over."""
    at: dict[int, list[tuple[float, float]]] = defaultdict(list)
    first: Counter[int] = Counter()
    n = never = could = recovered = diverged = 0
    for rollout in rollouts:
        golden = [(depth, s.turn_id) for depth, s in enumerate(rollout.steps) if s.turn_id]
        path = []
        for depth, turn_id in golden:
            own = points.get((turn_id, free_running(score), rollout.epoch))
            beside = points.get((turn_id, score, rollout.epoch))
            if own is not None and beside is not None:
                at[depth].append((beside, own))
                path.append((depth, own >= RIGHT))
        if not path:
            continue
        n += 1
        diverged += any((turn_id, rollout.epoch) in left for _, turn_id in golden)
        failing = next((i for i, (_, right) in enumerate(path) if not right), None)
        if failing is None:
            never += 1
            continue
        first[path[failing][0]] += 1
        could += failing + 1 < len(path)
        recovered += any(right for _, right in path[failing + 1 :])
    return Compounding(
        curve=tuple(_depth(depth, pairs) for depth, pairs in sorted(at.items())),
        n_conversations=n,
        diverged=diverged,
        first_failing=dict(sorted(first.items())),
        never_failing=never,
        could_recover=could,
        recovered=recovered,
    )


def _depth(depth: int, pairs: Sequence[tuple[float, float]]) -> Depth:
    golden, own = (sum(side) / len(pairs) for side in zip(*pairs, strict=True))
    return Depth(depth=depth, n=len(pairs), golden_prefix=golden, free_running=own)
