"""What is found out beside the decision, and never decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvquant_eval.core.attribution import Attribution, Pair, attribute
from kvquant_eval.core.fidelity import TurnFidelity
from kvquant_eval.core.judge import Judgement
from kvquant_eval.core.range_profile import RangeProfile, profile


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """``fidelity``: each arm beside its baseline, by arm; ``attribution``: each native candidate, by name;
    ``ranges``: how large K and V are, None where that was not asked for.
    """

    fidelity: Mapping[str, Sequence[TurnFidelity]] = field(default_factory=dict)
    attribution: Mapping[str, Attribution] = field(default_factory=dict)
    ranges: RangeProfile | None = None


def diagnose(judgement: Judgement, near: Mapping[Pair, Sequence[TurnFidelity]]) -> Diagnosis:
    """``near`` has every arm beside its baseline, and every native arm beside its reference."""
    arms = judgement.arms
    return Diagnosis(
        fidelity={name: near[r.arm.baseline, name] for name, r in arms.items() if (r.arm.baseline, name) in near},
        attribution=attribute(arms, judgement.results, near),
        ranges=next((profile(record) for record in arms.values() if record.arm.profile), None),
    )
