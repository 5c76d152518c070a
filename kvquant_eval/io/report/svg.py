"""One panel to an SVG that stands in the page: its colours are the page's, its bytes depend on its data alone.

Marks of a series are one path, and those on the same place are drawn once: ten thousand turns take a few kilobytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from html import escape

from kvquant_eval.core.text import head, one_line
from kvquant_eval.io.report.blocks import DROP, Panel
from kvquant_eval.io.report.scale import Scale

WIDTH, RIGHT, TOP, BOTTOM = 360, 346, 8, 194
LABEL_CHARS = 40
CHAR, SMALLER = 6.2, ' style="font-size:9px"'
"""Width of a digit, and how numbers are written that stand close."""
DASHES = 'stroke="var(--limit)" stroke-dasharray="5 3"'

Places = list[tuple[int, int]]


@dataclass(frozen=True)
class Shape:
    """A mark: ``sign`` in the legend; in a path, ``up`` units above its place begins ``path``, stroked with ``cap``."""

    sign: str
    up: int
    path: str
    cap: str


SHAPES = (
    Shape("●", 0, "h0", "round"),
    Shape("■", 0, "h.1v.1h-.1z", "butt"),  # PDF shows nothing of a stroke without length and with square ends
    Shape("◆", 2, "l2 2-2 2-2-2z", "round"),
    Shape("▲", 2, "l2 4h-4z", "round"),
)
SMALL, LARGE = (4, 0.6), (6, 1)
"""Width and opacity of marks, and of those over the threshold."""
ASIDE = 6
"""Between series that stand beside each other."""


def draw(panel: Panel, caption: str) -> str:
    """Title, legend and ``<svg>`` of the panel; ``caption`` names it for those who cannot see it."""
    plot = _Plot.of(panel)
    label = escape(f"{panel.title}: {caption}")
    parts = "".join((*plot.frame(), *plot.limits(), *plot.series(), *plot.trends()))
    title = f"<b>{escape(_label(panel.title))}</b>"
    legend = " ".join(f"<span>{sign} {escape(name)}</span>" for sign, name in plot.legend())
    return (
        f'<div class="panel"><p>{title} {legend}</p><svg xmlns="http://www.w3.org/2000/svg" '
        f'viewBox="0 0 {WIDTH} {plot.height}" role="img" aria-label="{label}">{parts}</svg></div>'
    )


@dataclass(frozen=True)
class _Plot:
    """A panel on its two axes."""

    panel: Panel
    x: Scale
    y: Scale

    @classmethod
    def of(cls, panel: Panel) -> _Plot:
        ends = [end for _, *both in panel.trends for end in both]
        x = [value for _, values, _ in panel.series for value in values]
        y = [value for *_, values in panel.series for value in values] + [end[1] for end in ends]
        y += [height for _, height in panel.limits]
        if panel.paired:
            x = y = [*x, *y]
        else:
            y += [*(panel.band or ()), *(() if panel.threshold is None else (panel.threshold,))]
            y += () if panel.log else (0.0,)
        up = Scale.over(y, BOTTOM, TOP, log=panel.log)
        left = 22 + CHAR * max(len(name) for _, name in up.ticks())
        whole = not panel.log_x and not panel.paired and all(value.is_integer() for value in x)
        return cls(panel, Scale.over(x, left, RIGHT, log=panel.log_x, whole=whole), up)

    @property
    def height(self) -> int:
        """Below the axis stand numbers, of one or two lines, and what they are."""
        return BOTTOM + (44 if self.panel.ticks else 34)

    @property
    def joined(self) -> bool:
        """Whether marks are joined by lines: where they are no turns."""
        return self.panel.y_label != DROP and not self.panel.paired

    def frame(self) -> Iterator[str]:
        """Band, grid, axes and their labels."""
        panel, left = self.panel, _n(self.x.start)
        if panel.band:
            low, high = (self.y.at(value) for value in panel.band)
            size = f'width="{_n(RIGHT - self.x.start)}" height="{_n(max(low - high, 1))}"'
            yield f'<rect x="{left}" y="{_n(high)}" {size} fill="var(--band)" opacity=".25"/>'
        yield f'<path d="M{left} {TOP}V{BOTTOM}H{RIGHT}" fill="none" stroke="var(--soft)"/>'
        for value, name in self.y.ticks():
            at = _n(self.y.at(value))
            yield f'<path d="M{left} {at}H{RIGHT}" stroke="var(--rule)"/>'
            yield _text(self.x.start - 4, self.y.at(value) + 3.5, name, "end")
        marked = [(float(i), name) for i, name in enumerate(panel.ticks)] if panel.ticks else self.x.ticks()
        for value, name in marked:
            yield f'<path d="M{_n(self.x.at(value))} {BOTTOM}v3" stroke="var(--soft)"/>'
            for row, line in enumerate(name.split("\n")):
                yield _text(self.x.at(value), BOTTOM + 14 + 10 * row, line, more=SMALLER if panel.ticks else "")
        yield _text((self.x.start + RIGHT) / 2, self.height - 4, panel.x_label)
        middle = (TOP + BOTTOM) / 2
        yield _text(10, middle, panel.y_label, more=f' transform="rotate(-90 10 {_n(middle)})"')

    def limits(self) -> Iterator[str]:
        """Zero or the diagonal, the threshold, and named heights."""
        panel = self.panel
        if panel.paired:
            yield self._line((self.x.low, self.x.low), (self.x.high, self.x.high), 'stroke="currentColor"')
        elif not panel.log:
            yield self._line((self.x.low, 0.0), (self.x.high, 0.0), 'stroke="currentColor"')
        if panel.threshold is not None:
            low, high = (self.x.low, self.x.high)
            over = panel.threshold
            ends = ((low + over, low), (high, high - over)) if panel.paired else ((low, over), (high, over))
            yield self._line(*ends, DASHES)
        for name, height in panel.limits:
            yield self._line((self.x.low, height), (self.x.high, height), DASHES)
            yield _text(self.x.start + 4, self.y.at(height) - 3, _label(name), "start")

    def series(self) -> Iterator[str]:
        """Marks, those over the threshold last; or lines with marks."""
        for large in (False, True):
            for number, (_, x, y) in enumerate(self.panel.series):
                if self.joined and not large:
                    corners = " ".join(f"{_n(self.x.at(a))} {_n(self.y.at(b))}" for a, b in zip(x, y, strict=True))
                    yield f'<path d="M{corners}" fill="none" stroke="{_colour(number)}" stroke-width="1.5"/>'
                width, opacity = (5, 1) if self.joined else LARGE if large else SMALL
                places = [] if self.joined and large else self.places[number][large]
                if places:
                    shape = SHAPES[number % len(SHAPES)]
                    width -= {"●": 0, "■": 1}.get(shape.sign, 3)
                    style = f'stroke="{_colour(number)}" stroke-linecap="{shape.cap}" stroke-width="{width}"'
                    fill = f'fill="{_colour(number)}"' if shape.up else 'fill="none"'
                    yield f'<path d="{_path(places, shape)}" {fill} {style} opacity="{opacity:g}"/>'

    def trends(self) -> Iterator[str]:
        """The lines of trends, each in the colour of its series."""
        for number, one, other in self.panel.trends:
            yield self._line(one, other, f'stroke="{_colour(number)}" stroke-width="2"')

    def legend(self) -> Iterator[tuple[str, str]]:
        """(Sign, name) of what is drawn; where over a tenth of the marks fall together, how many are left."""
        for number, (name, x, _) in enumerate(self.panel.series):
            shown = sum(map(len, self.places[number]))
            fewer = f" ({shown:,} marks for {len(x):,} turns)" if shown < 0.9 * len(x) and not self.joined else ""
            sign = SHAPES[number % len(SHAPES)].sign
            yield f'<i style="color:{_colour(number)}" aria-hidden="true">{sign}</i>', f"{_label(name)}{fewer}"
        if self.panel.threshold is not None:
            yield _sign("limit", "┅"), f"threshold {self.panel.threshold:g}"
        if self.panel.band:
            yield _sign("band", "▒"), "placebo"

    @cached_property
    def places(self) -> tuple[tuple[Places, Places], ...]:
        """Where the marks of each series stand, each place once: those of most turns, and those over the threshold."""
        over = math.inf if self.panel.threshold is None else self.panel.threshold
        found = []
        for number, (_, x, y) in enumerate(self.panel.series):
            aside = round(ASIDE * (number - (len(self.panel.series) - 1) / 2)) if self.panel.aside else 0
            sides: tuple[set[tuple[int, int]], set[tuple[int, int]]] = (set(), set())
            for a, b in zip(x, y, strict=True):
                drop = a - b if self.panel.paired else b
                sides[drop > over].add((round(self.x.at(a)) + aside, round(self.y.at(b))))
            found.append((sorted(sides[0]), sorted(sides[1])))
        return tuple(found)

    def _line(self, start: tuple[float, float], end: tuple[float, float], style: str) -> str:
        one, other = (f"{_n(self.x.at(a))} {_n(self.y.at(b))}" for a, b in (start, end))
        return f'<path d="M{one}L{other}" {style}/>'


def _path(places: Iterable[tuple[int, int]], shape: Shape) -> str:
    """Every mark relative to the one before: a dot without length, or a small outline."""
    parts: list[str] = []
    before = (0, 0)
    for x, y in places:
        across, down = x - before[0], y - before[1] - (0 if parts else shape.up)
        parts.append(f"m{across}{down if down < 0 else f' {down}'}{shape.path}")
        before = x, y
    return "".join(parts)


def _text(x: float, y: float, text: str, anchor: str = "middle", more: str = "") -> str:
    return f'<text x="{_n(x)}" y="{_n(y)}" text-anchor="{anchor}"{more}>{escape(text)}</text>'


def _label(name: str) -> str:
    """A class or score as there is room for it in a plot."""
    return head(one_line(name), LABEL_CHARS)


def _colour(number: int) -> str:
    return f"var(--series-{number % len(SHAPES)})"


def _sign(colour: str, sign: str) -> str:
    return f'<i style="color:var(--{colour})" aria-hidden="true">{sign}</i>'


def _n(value: float) -> str:
    """A coordinate, to a tenth."""
    return f"{round(value, 1):g}"
