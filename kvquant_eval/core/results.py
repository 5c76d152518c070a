"""What a gate finds out, from one score of one class up to the decision over an arm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvquant_eval.core.compare import Key
from kvquant_eval.core.confirm import Confirmation
from kvquant_eval.core.policy import ScoreRole
from kvquant_eval.core.pooled import Pooled
from kvquant_eval.core.records import Decision, Finding, ScoreDelta, Verdict
from kvquant_eval.core.strata import Stratum, Trend, worst_of


@dataclass(frozen=True, kw_only=True)
class ScoreResult:
    """One score over one class. Means, bounds and drops are points; ``drop_nats`` is the mean drop of the log score,
    None where a score is 0; counts are turns. Gate scores count the turns with headroom only.

    ``beyond_p`` is the chance (one-sided, 0..1) of such drops were the mean drop within the margin, ``direction_p``
    that of such a surplus of drops over ``flag_over`` were both arms the same. ``further_turns`` would settle the
    margin (None: no practicable number). ``flagged_confirmed`` is None where flags are not put to a second test.
    """

    role: ScoreRole
    margin: float
    flag_over: float
    n_turns: int
    n_headroom: int
    n_conversations: int
    baseline_mean: float
    candidate_mean: float
    mean_drop: float
    ci_lower: float | None
    ci_upper: float | None
    beyond_p: float
    further_turns: int | None
    drop_nats: float | None
    recovery: float | None
    drops_over: int
    gains_over: int
    direction_p: float
    flagged_raw: int
    flagged_confirmed: int | None = None
    strata: tuple[Stratum, ...] = ()
    trends: tuple[Trend, ...] = ()

    @property
    def worst_stratum(self) -> Stratum | None:
        """As ``strata.worst_of``; None where the turns make no strata."""
        return worst_of(self.strata)


@dataclass(frozen=True, kw_only=True)
class ClassResult:
    """The verdict over one workload class, with its reasons. ``n_unscored`` turns lack a pair of scores, and with those
    that no arm could run ``n_missing`` are missing.
    """

    verdict: Verdict
    reasons: tuple[str, ...]
    n_turns: int
    n_headroom: int
    n_unscored: int
    n_missing: int
    scores: Mapping[str, ScoreResult]


@dataclass(frozen=True, kw_only=True)
class CandidateResult:
    """The decision over one arm. ``confirmations`` are those of its flags that were put to a second test; ``pooled`` is
    the direction of all its conversations, which decides nothing.
    """

    decision: Decision
    reasons: tuple[str, ...]
    classes: Mapping[str, ClassResult]
    flagged: tuple[ScoreDelta, ...] = ()
    findings: tuple[Finding, ...] = field(default=())
    confirmations: Mapping[Key, Confirmation] = field(default_factory=dict)
    pooled: Pooled = field(default_factory=Pooled)
