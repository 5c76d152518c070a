"""How the controls moved: what an arm that loses nothing shows by chance. Stored, and planned with the next time."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass

import numpy as np

from kvquant_eval.core.codec import DataError, digest
from kvquant_eval.core.judge import Judgement
from kvquant_eval.core.policy import Policy
from kvquant_eval.core.records import Role, ScoreDelta
from kvquant_eval.core.settings import Settings
from kvquant_eval.core.stats import Array, clustered, standard_error
from kvquant_eval.core.summary import drop_of, has_drop

QUANTILES = (0.5, 0.9, 0.99)
_LARGEST = 100.0


@dataclass(frozen=True, kw_only=True)
class ScoreNoise:
    """One score of one class in a control, against its baseline, in points.

    ``disagreement`` is the share (0..1) of turns whose drop is over ``flag_over`` either way, ``turn_sd`` the standard
    deviation of a turn's drop, ``correlation`` that of drops within a conversation (-1..1), ``mean_sd`` the standard
    error of the mean drop (None: one conversation), ``quantiles`` those of a turn's absolute drop (``QUANTILES``). The
    rest is by turn: ``baseline`` (0..100) and ``drops`` (> 0 is worse).
    """

    n_turns: int
    n_conversations: int
    flag_over: float
    disagreement: float
    turn_sd: float
    correlation: float
    mean_sd: float | None
    quantiles: tuple[float, ...]
    turn_ids: tuple[str, ...]
    conversation_ids: tuple[str, ...]
    baseline: tuple[float, ...]
    drops: tuple[float, ...]

    def __post_init__(self) -> None:
        columns = (self.turn_ids, self.conversation_ids, self.baseline, self.drops)
        if {len(column) for column in columns} != {self.n_turns} or not self.n_turns:
            raise DataError(f"noise: a value for each of {self.n_turns} turns, got other counts; gate again")
        if not all(0 <= b <= _LARGEST and -_LARGEST <= d <= _LARGEST for b, d in zip(*columns[2:], strict=True)):
            raise DataError("noise: points of 0 to 100, got others; gate again")


@dataclass(frozen=True, kw_only=True)
class Noise:
    """``controls[control][class][score]``; ``fingerprint`` is of everything that can change them."""

    fingerprint: str
    controls: Mapping[str, Mapping[str, Mapping[str, ScoreNoise]]]


def fingerprint(settings: Settings, golden_sha256: str, arms: Mapping[str, str]) -> str:
    """Of ``arms`` (name to fingerprint, baselines and controls), the golden set and the scorers; limits of the policy
    change no noise.
    """
    scorers = {
        workload: {name: _scorer(settings.scorers[workload][name]) for name in rules}
        for workload, rules in settings.policy.scores.items()
    }
    return digest({"golden": golden_sha256, "arms": dict(arms), "scorers": scorers})


def measure(judgement: Judgement, policy: Policy, mark: str) -> Noise | None:
    """The noise of the controls that were judged; None where one of them did not come to its end."""
    controls = {name: record for name, record in judgement.arms.items() if record.arm.role is Role.CONTROL}
    if not controls or any(record.unfinished or record.error for record in judgement.arms.values()):
        return None
    return Noise(fingerprint=mark, controls={name: _classes(judgement.deltas[name], policy) for name in controls})


def score_noise(deltas: Sequence[ScoreDelta], flag_over: float) -> ScoreNoise:
    """Of one score; every delta has a drop."""
    drops, owners = [drop_of(d) for d in deltas], [d.conversation_id for d in deltas]
    sizes = np.abs(np.array(drops))
    error = standard_error(clustered(drops, owners))
    return ScoreNoise(
        n_turns=len(drops),
        n_conversations=len(set(owners)),
        flag_over=flag_over,
        disagreement=float((sizes > flag_over).mean()),
        turn_sd=float(np.std(drops, ddof=1)) if len(drops) > 1 else 0.0,
        correlation=correlation(drops, owners),
        mean_sd=error if math.isfinite(error) else None,
        quantiles=tuple(float(each) for each in np.quantile(sizes, QUANTILES)),
        turn_ids=tuple(d.turn_id for d in deltas),
        conversation_ids=tuple(owners),
        baseline=tuple(d.baseline or 0.0 for d in deltas),
        drops=tuple(drops),
    )


def correlation(drops: Sequence[float], conversations: Sequence[str]) -> float:
    """Of two drops of one conversation (-1..1), from the analysis of variance; 0 where nothing shows it.

    Fisher's intraclass correlation for groups of unequal size: Donner, International Statistical Review 54 (1986).
    """
    seen = clustered(drops, conversations)
    values, sizes = np.asarray(drops), seen.sizes
    turns, count = len(values), len(sizes)
    if count < 2 or turns <= count:
        return 0.0
    between = float((seen.sums**2 / sizes).sum()) - turns * seen.mean**2
    within = float((values**2).sum()) - float((seen.sums**2 / sizes).sum())
    usual = (turns - float((sizes**2).sum()) / turns) / (count - 1)
    a, b = between / (count - 1), within / (turns - count)
    total = a + (usual - 1) * b
    return max(-1.0, min(1.0, (a - b) / total)) if total > 1e-12 else 0.0


def by_conversation(found: ScoreNoise, least: float) -> tuple[Array, ...]:
    """The drops of each conversation; of turns with a baseline of at least ``least`` points."""
    drops: dict[str, list[float]] = defaultdict(list)
    for owner, base, drop in zip(found.conversation_ids, found.baseline, found.drops, strict=True):
        if base >= least:
            drops[owner].append(drop)
    return tuple(np.array(mine) for mine in drops.values())


def _classes(deltas: Sequence[ScoreDelta], policy: Policy) -> dict[str, dict[str, ScoreNoise]]:
    found: dict[str, dict[str, ScoreNoise]] = {}
    for workload, rules in policy.scores.items():
        for name, rule in rules.items():
            mine = [d for d in deltas if d.workload == workload and d.scorer == name and has_drop(d)]
            if mine:
                found.setdefault(workload, {})[name] = score_noise(mine, rule.flag_over)
    return found


def _scorer(scorer: object) -> str:
    """A scorer with its settings, the same in every process."""
    return repr(scorer) if is_dataclass(scorer) else f"{type(scorer).__module__}:{type(scorer).__qualname__}"
