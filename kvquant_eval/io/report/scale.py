"""An axis of a plot: where a value lies, and which values are named."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

TICKS = 7
"""Named values of an axis, at most by about one."""
MARGIN = 0.04
"""Of the span, on both sides."""


@dataclass(frozen=True)
class Scale:
    """Values from ``low`` to ``high`` stand at ``start`` to ``end``; ``log``: evenly by logarithm; ``whole``: only
    whole numbers are named.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    whole: bool = False

    @classmethod
    def over(cls, values: Iterable[float], start: float, end: float, log: bool = False, whole: bool = False) -> Scale:
        """The axis that has room for all ``values``; for a logarithmic one only those over 0 count."""
        shown = [value for value in values if math.isfinite(value) and (value > 0 or not log)] or [1.0]
        low, high = (math.log2(end) if log else end for end in (min(shown), max(shown)))
        room = MARGIN * (high - low) or 0.5
        low, high = low - room, high + room
        return cls(2.0**low if log else low, 2.0**high if log else high, start, end, log, whole)

    def at(self, value: float) -> float:
        """The place of ``value``, that of the nearest end where it lies beyond."""
        low, high = self._even(self.low), self._even(self.high)
        share = (self._even(value) - low) / (high - low)
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)

    def ticks(self) -> list[tuple[float, str]]:
        """Round values inside the axis, with their names."""
        found = list(self._decades((1, 2, 5)) if self.log else self._steps())
        if self.log and len(found) > TICKS:
            found = list(self._decades((1,)))
        elif self.log and len(found) < 3:
            found = list(self._steps())
        return [(value, f"{value:,.10g}") for value in found]

    def _even(self, value: float) -> float:
        return math.log2(max(value, self.low)) if self.log else value

    def _decades(self, factors: tuple[int, ...]) -> Iterator[float]:
        """Powers of ten inside, times each factor."""
        first, last = (math.floor(math.log10(end)) for end in (self.low, self.high))
        values = (factor * 10.0**power for power in range(first, last + 1) for factor in factors)
        return (value for value in values if self.low <= value <= self.high)

    def _steps(self) -> Iterator[float]:
        """Multiples of 1, 2 or 5 times a power of ten."""
        rough = (self.high - self.low) / TICKS
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
        step = max(step, 1.0) if self.whole else step
        first, last = math.ceil(self.low / step), math.floor(self.high / step)
        return (round(number * step, 12) for number in range(first, last + 1))
