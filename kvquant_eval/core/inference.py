"""What paired drops of one score say about its mean drop: bounds, and how sure it is that it lies beyond a margin."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvquant_eval.core.stats import (
    CONFIDENCE,
    Clusters,
    Interval,
    allowing_breaks,
    beyond,
    clustered,
    clustered_t,
    more_needed,
    proven_below,
    sign_flip,
    spread,
    tango,
    tango_beyond,
)

PRACTICABLE = 100
"""Times the turns of a class beyond which it is no advice to write more."""
FEW = 8
"""Conversations from which on random weights cover a mean as well as Student's t does, whatever the drops (simulated:
95.2% for 8 normal drops, 92.1% for 5, with no break larger than the worst that was seen)."""
_WHOLE = 100.0


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The mean drop of a score whose turns come in conversations.

    ``flips`` counts (drops, gains) of yes/no scores, whose bounds are Tango's; None for graded ones, whose bounds are
    Student's. ``spread`` is the design effect of their conversations. ``largest`` is what a conversation may lose
    without having been seen to (points; 0: what was seen is all there is).
    """

    seen: Clusters
    flips: tuple[int, int] | None
    spread: float
    largest: float

    @property
    def interval(self) -> Interval:
        """One-sided 95% bounds. Where ``largest`` says so, the upper one allows for breaks that were not seen; from
        ``FEW`` conversations on it is good for any drops, and Student's has nothing to add.
        """
        plain = self._plain(self.seen)
        if not self.largest:
            return plain
        upper = allowing_breaks(self.seen, self.largest)
        return replace(plain, upper=max(upper, plain.upper) if self.seen.count < FEW else upper)

    def below(self, margin: float) -> bool:
        """Whether the upper bound is below ``margin``: as ``interval``, without finding where it lies."""
        return self._below(self.seen, margin)

    def beyond(self, margin: float, level: float) -> float:
        """One-sided p of a mean drop of at most ``margin``.

        It is 1 at least where arms that are the same would show such drops with a chance of ``level`` or more: with
        few conversations, or few flips, the bounds alone are not good enough to hold on.
        """
        if self.flips is not None and self.seen.count > 1:
            chance = tango_beyond(*self.flips, self.seen.turns, margin, self.spread, self.seen.degrees)
        else:
            chance = beyond(self.seen, margin)
        return 1.0 if chance < level and sign_flip(self.seen) >= level else chance

    def further_turns(self, margin: float) -> int | None:
        """Roughly how many more turns would bring a bound to the other side of ``margin``, were they like these; None
        where ``PRACTICABLE`` times as many would not.
        """
        below = self.seen.mean < margin

        def settled(more: Clusters) -> bool:
            return self._below(more, margin) if below else self._plain(more).lower > margin

        times = more_needed(self.seen, settled, PRACTICABLE) if self.seen.mean != margin else None
        return None if times is None else round((times - 1) * self.seen.turns)

    def _plain(self, seen: Clusters) -> Interval:
        if self.flips is None or len(seen.sums) < 2:
            return clustered_t(seen)
        drops, gains = (count * seen.repeats for count in self.flips)
        return tango(drops, gains, seen.turns, self.spread, seen.degrees)

    def _below(self, seen: Clusters, margin: float) -> bool:
        if self.largest and proven_below(seen, self.largest, margin) < CONFIDENCE:
            return False
        return bool(self.largest and seen.count >= FEW) or self._plain(seen).upper < margin


def estimate(
    drops: Sequence[float], baseline: Sequence[float], conversations: Sequence[Hashable], largest_break: float
) -> Estimate:
    """From ``drops`` (points, > 0 is worse) and ``baseline`` (points) of each turn, and its conversation;
    ``largest_break`` as ``Estimate.largest``. Raises ValueError for no drops.
    """
    seen = clustered(drops, conversations)
    flips = None
    if yes_no(drops, baseline):
        flips = sum(d > 0 for d in drops), sum(d < 0 for d in drops)
    return Estimate(
        seen=seen,
        flips=flips,
        spread=1.0 if flips is None else spread(seen, drops),
        largest=largest_break,
    )


def yes_no(drops: Sequence[float], baseline: Sequence[float]) -> bool:
    """Whether every turn has 0 or 100 points in both arms."""
    ends: set[Any] = {0.0, _WHOLE}
    return all(b in ends and b - d in ends for b, d in zip(baseline, drops, strict=True))
