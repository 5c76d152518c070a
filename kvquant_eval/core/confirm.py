"""Flags of noisy scores, put to a second test: fresh epochs of the flagged turns alone, in both arms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from kvquant_eval.core.compare import Key
from kvquant_eval.core.policy import Policy, ScoreRole
from kvquant_eval.core.records import ScoreDelta, TurnScore
from kvquant_eval.core.stats import holm

LISTED = 0.10
"""Share of false ones among the flags that the reading list names (Benjamini and Hochberg)."""


@dataclass(frozen=True, kw_only=True)
class Confirmation:
    """A flag's second test. ``drop`` (points) is that of the fresh epochs alone, ``p`` one-sided, ``holm`` the same
    over all flags of the arm, which decides: ``confirmed``; ``q`` orders the reading list (``listed``).
    """

    epochs: int
    drop: float
    p: float
    holm: float
    q: float
    confirmed: bool

    @property
    def listed(self) -> bool:
        return self.q <= LISTED


def to_confirm(deltas: Iterable[ScoreDelta], policy: Policy, noisy: Mapping[str, frozenset[str]]) -> tuple[Key, ...]:
    """The (turn, score) pairs that the policy wants to know of, whose drop is over the threshold: of the hardest class,
    and turns that may never regress; of scores that decide and that ``noisy`` names by class. The data of this first
    stage is used for nothing else.
    """
    critical = {*policy.critical_turns}

    def wanted(d: ScoreDelta) -> bool:
        rule = policy.scores[d.workload][d.scorer]
        asked = d.workload == policy.hardest or d.turn_id in critical
        return asked and rule.role is not ScoreRole.REPORT and d.drop is not None and d.drop > rule.flag_over

    return tuple(sorted((d.turn_id, d.scorer) for d in deltas if d.scorer in noisy.get(d.workload, ()) and wanted(d)))


def confirm(
    flags: Sequence[Key], baseline: Iterable[TurnScore], arm: Iterable[TurnScore], level: float
) -> dict[Key, Confirmation]:
    """Test every flag on fresh epochs; one without as many scored epochs in both arms stays out.

    The p value is Fisher's exact one of yes/no scores, Mann and Whitney's of others (by its normal approximation, but
    for up to 8 epochs without ties).
    """
    left, right = _points(baseline), _points(arm)
    sides = {key: (left.get(key, []), right.get(key, [])) for key in flags}
    tested = {key: (a, b) for key, (a, b) in sides.items() if len(a) == len(b) > 0}
    chances = {key: _chance(a, b) for key, (a, b) in tested.items()}
    strict = holm(list(chances.values()))
    shares = stats.false_discovery_control(list(chances.values())) if chances else []
    return {
        key: Confirmation(
            epochs=min(map(len, tested[key])),
            drop=float(np.mean(tested[key][0]) - np.mean(tested[key][1])),
            p=p,
            holm=adjusted,
            q=float(q),
            confirmed=adjusted < level,
        )
        for (key, p), adjusted, q in zip(chances.items(), strict, shares, strict=True)
    }


def _points(scores: Iterable[TurnScore]) -> dict[Key, list[float]]:
    """Points by turn and score; none where an epoch is unscored: no evidence confirms nothing, and clears nothing."""
    grouped: dict[Key, list[float | None]] = {}
    for score in scores:
        grouped.setdefault((score.turn_id, score.scorer), []).append(score.points)
    return {key: [p for p in points if p is not None] for key, points in grouped.items() if None not in points}


def _chance(baseline: Sequence[float], arm: Sequence[float]) -> float:
    if {*baseline, *arm} <= {0.0, 100.0}:
        right = [sum(points > 0 for points in side) for side in (baseline, arm)]
        table = [[right[0], len(baseline) - right[0]], [right[1], len(arm) - right[1]]]
        return float(stats.fisher_exact(table, alternative="greater").pvalue)
    if len({*baseline, *arm}) == 1:
        return 1.0
    return float(stats.mannwhitneyu(baseline, arm, alternative="greater").pvalue)
