"""Rules on arrays of drops: the project's, as ``gate.decide`` has them for one class, and those in use elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy import stats

from benchmarks.characteristics.sample import Floats, Sample
from kvquant_eval.core.inference import Estimate, estimate
from kvquant_eval.core.policy import Policy
from kvquant_eval.core.records import Decision
from kvquant_eval.core.stats import CONFIDENCE, Clusters, clustered, holm, sign_flip, unseen
from kvquant_eval.core.strata import Axis, groups

PROMOTE, HOLD, INCONCLUSIVE = Decision.PROMOTE, Decision.HOLD, Decision.INCONCLUSIVE
FLAG_OVER = 2.0
"""Points that one turn may drop."""
HOLD_LEVEL = Policy.hold_level
ANOMALOUS_GAIN = Policy.anomalous_gain
LARGEST_BREAK = Policy.largest_break
_RESAMPLES = 400


@dataclass(frozen=True)
class Facts:
    """A sample, and what several rules ask about it."""

    sample: Sample
    margin: float

    @cached_property
    def whole(self) -> Estimate:
        return self.part(range(len(self.sample.drops)))

    @cached_property
    def direction_p(self) -> float:
        signs = (self.sample.drops > FLAG_OVER).astype(float) - (self.sample.drops < -FLAG_OVER)
        return sign_flip(clustered(list(signs), self.sample.conversation.tolist()))

    @cached_property
    def beyond_p(self) -> float:
        return self.whole.beyond(self.margin, HOLD_LEVEL)

    def part(self, places: Sequence[int]) -> Estimate:
        """Of the turns at ``places``."""
        at, of = np.asarray(places), self.sample
        return estimate(of.drops[at].tolist(), of.baseline[at].tolist(), of.conversation[at].tolist(), LARGEST_BREAK)


def default(facts: Facts) -> Decision:
    """Of ``conf/gate/default.yaml``, but for the least numbers of turns."""
    return _non_inferior(facts, [facts.whole])


def custom(facts: Facts) -> Decision:
    """Of ``conf/gate/custom.yaml``: no break that was not seen is allowed for."""
    return _non_inferior(facts, [replace(facts.whole, largest=0.0)])


def strict(facts: Facts) -> Decision:
    """Of ``conf/gate/strict.yaml``, with strata by turn index alone."""
    parts = groups(facts.sample.index.tolist(), Axis.TURN_INDEX)
    return _non_inferior(facts, [facts.whole, *(facts.part(part) for part in parts if len(parts) > 1)])


def _non_inferior(facts: Facts, parts: Sequence[Estimate]) -> Decision:
    """The whole class comes first among ``parts``; the bound of a break is all that may differ from ``facts``."""
    charges = [facts.beyond_p, facts.direction_p, *(part.beyond(facts.margin, HOLD_LEVEL) for part in parts[1:])]
    if min(holm(charges)) < HOLD_LEVEL:
        return HOLD
    passed = all(part.below(facts.margin) for part in parts) and not parts[0].below(-ANOMALOUS_GAIN)
    return PROMOTE if passed else INCONCLUSIVE


def zero_flags(facts: Facts) -> Decision:
    """No turn drops by over 2 points."""
    return HOLD if bool((facts.sample.drops > FLAG_OVER).any()) else PROMOTE


def relative(facts: Facts) -> Decision:
    """The candidate's mean is within 1% of the baseline's."""
    return PROMOTE if facts.sample.drops.mean() < 0.01 * facts.sample.baseline.mean() else HOLD


def unpaired(facts: Facts) -> Decision:
    """No significant drop in a two-sided z test at 5% of two independent samples."""
    left, right = facts.sample.baseline, facts.sample.baseline - facts.sample.drops
    error = math.sqrt((left.var(ddof=1) + right.var(ddof=1)) / len(left))
    return HOLD if float(facts.sample.drops.mean()) > float(stats.norm.ppf(0.975)) * error else PROMOTE


def paired(facts: Facts) -> Decision:
    """Student's one-sided 95% bounds of the mean of all turns, as if they were independent and whatever moved."""
    drops = facts.sample.drops
    reach = float(stats.t.ppf(CONFIDENCE, len(drops) - 1)) * float(drops.std(ddof=1)) / math.sqrt(len(drops))
    return _settled(float(drops.mean()) - reach, float(drops.mean()) + reach, facts.margin)


def guarded(facts: Facts) -> Decision:
    """Tango's or the clustered t bounds; where fewer than 5 conversations moved by over 2 points, the upper one is at
    least that of a break that nobody saw.
    """
    plain, seen = replace(facts.whole, largest=0.0).interval, facts.whole.seen
    upper = plain.upper
    if int((np.abs(seen.sums / seen.sizes) > FLAG_OVER).sum()) < 5:
        upper = max(upper, facts.whole.largest * unseen(len(seen.sums)))
    return _settled(plain.lower, upper, facts.margin)


def bootstrap(facts: Facts) -> Decision:
    """Percentiles of the mean over conversations drawn with replacement."""
    means = _resampled(facts.whole.seen, np.random.default_rng(0))
    lower, upper = np.quantile(means, [1 - CONFIDENCE, CONFIDENCE])
    return _settled(float(lower), float(upper), facts.margin)


def _resampled(seen: Clusters, rng: np.random.Generator) -> Floats:
    count = len(seen.sums)
    often = rng.multinomial(count, np.full(count, 1 / count), size=_RESAMPLES)
    means: Floats = (often @ seen.sums) / (often @ seen.sizes)
    return means


def _settled(lower: float, upper: float, margin: float) -> Decision:
    if lower > margin:
        return HOLD
    return PROMOTE if upper < margin else INCONCLUSIVE


RULES: Mapping[str, Callable[[Facts], Decision]] = {
    "default": default,
    "custom": custom,
    "strict": strict,
    "zero_flags": zero_flags,
    "relative": relative,
    "unpaired": unpaired,
    "paired": paired,
    "guarded": guarded,
    "bootstrap": bootstrap,
}
