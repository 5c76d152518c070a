"""What is asked of a candidate: thresholds and margins per workload class, and the rule that joins them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from pydantic import ConfigDict

from kvquant_eval.core.codec import DataError, nearest
from kvquant_eval.core.limits import check_name, check_number

DISASTER = 3.0
"""Margins beyond which a drop, once proven, needs no more turns."""


class ScoreRole(StrEnum):
    """``GATE`` decides both ways; ``BOUND`` can only hold (its drop proven beyond its margin); ``REPORT`` never
    decides.
    """

    GATE = "gate"
    BOUND = "bound"
    REPORT = "report"


class Rule(StrEnum):
    """``ZERO_FLAGS``: no raw flag in the hardest class. ``DEFAULT``: non-inferior in every class, see
    ``gate.decide``. ``STRICT``: that in every stratum of every class too.
    """

    ZERO_FLAGS = "zero_flags"
    DEFAULT = "default"
    STRICT = "strict"


class Tier(StrEnum):
    """How a class counts: ``CRITICAL`` must pass; ``SUPPORTING`` must not fail; ``ADVISORY`` decides nothing."""

    CRITICAL = "critical"
    SUPPORTING = "supporting"
    ADVISORY = "advisory"


@dataclass(frozen=True, kw_only=True)
class ScorePolicy:
    """How one score of a class counts: ``margin`` bounds the mean drop, ``flag_over`` the drop of one turn (points)."""

    role: ScoreRole
    margin: float
    flag_over: float = 2.0

    def __post_init__(self) -> None:
        for name, value in (("margin", self.margin), ("flag_over", self.flag_over)):
            if not 0 < value <= 100:
                raise DataError(f"{name}: points above 0 and up to 100, got {value}; correct the class's scores")


@dataclass(frozen=True, kw_only=True)
class ModeRoles:
    """The most that a score may decide, by replay mode."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    golden_prefix: ScoreRole = ScoreRole.GATE
    free_running: ScoreRole = ScoreRole.BOUND


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The rule and its limits.

    ``scores[workload][score]`` and ``tiers[workload]`` (critical where none is named); ``min_headroom`` turns with a
    baseline of ``headroom_points`` or more are needed in each class. ``hold_level`` is the chance (0..1) with which an
    arm that loses nothing may be held, over all reasons to hold together. ``largest_break`` is how many points a
    conversation may lose without one being seen to (0: none that was not seen; 100: all it has), which is what makes
    few conversations prove little. ``critical_turns`` may not drop over the threshold, whatever the rest does. Flags of
    sampled scores are run again ``confirm_epochs`` times. With ``early_stop`` a candidate whose drop is proven beyond
    ``DISASTER`` margins is run no further. ``allow_underpowered``: also where an arm that loses nothing would hardly be
    promoted. A mean gain proven beyond ``anomalous_gain`` points is no success. ``require`` names the candidates that
    count (empty: all); ``accept_differences`` the engine settings that may differ between arms.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    rule: Rule
    hardest: str
    scores: Mapping[str, Mapping[str, ScorePolicy]]
    min_turns: int = 200
    min_headroom: int = 30
    headroom_points: float = 20.0
    hold_level: float = 0.01
    largest_break: float = 100.0
    critical_turns: tuple[str, ...] = ()
    confirm_epochs: int = 56
    early_stop: bool = False
    allow_underpowered: bool = False
    tiers: Mapping[str, Tier] = field(default_factory=dict)
    anomalous_gain: float = 5.0
    require: tuple[str, ...] = ()
    accept_differences: tuple[str, ...] = ()
    modes: ModeRoles = ModeRoles()

    def __post_init__(self) -> None:
        check_number("gate.min_turns", self.min_turns, at_least=0, usual=200)
        check_number("gate.min_headroom", self.min_headroom, at_least=1, usual=30)
        check_number("gate.headroom_points", self.headroom_points, at_least=0, up_to=100, usual=20.0)
        check_number("gate.hold_level", self.hold_level, above=0, below=1, usual=0.01)
        check_number("gate.largest_break", self.largest_break, at_least=0, up_to=100, usual=100)
        check_number("gate.confirm_epochs", self.confirm_epochs, at_least=2, up_to=1000, usual=56)
        check_number("gate.anomalous_gain", self.anomalous_gain, above=0, up_to=100, usual=5.0)
        if not self.scores:
            raise DataError("workload: at least one class, got none; name one, such as workload=[faq]")
        for workload, scores in self.scores.items():
            check_name("workloads", workload)
            for score in scores:
                check_name(f"workloads.{workload}.scores", score)
        if self.hardest not in self.scores:
            classes = sorted(self.scores)
            raise DataError(
                f"gate.hardest: one of the workload classes ({', '.join(classes)}), got {self.hardest[:80]!r}; "
                f"{nearest(self.hardest, classes)}"
            )
        if self.tier(self.hardest) is not Tier.CRITICAL:
            rule = f"critical for the hardest class, got {str(self.tier(self.hardest))!r}"
            raise DataError(f"workloads.{self.hardest}.tier: {rule}; name another gate.hardest, or leave the tier out")
        for workload, scores in self.scores.items():
            if not any(score.role is ScoreRole.GATE for score in scores.values()):
                capped = self.modes.golden_prefix is not ScoreRole.GATE
                remedy = "let the other mode of gate.modes gate, and run it" if capped else "add one"
                raise DataError(f"workloads.{workload}.scores: at least one score with role gate, got none; {remedy}")

    def tier(self, workload: str) -> Tier:
        return self.tiers.get(workload, Tier.CRITICAL)
