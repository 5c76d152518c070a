"""One panel to an SVG that stands in the page: its colours are the page's, its bytes depend on its data alone."""

from __future__ import annotations

import re
import warnings
from html import escape
from io import StringIO
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from kvquant_eval.core.codec import digest
from kvquant_eval.core.text import head, one_line
from kvquant_eval.io.report.blocks import DROP, Panel

INK, BAND, LIMIT = "#010203", "#020304", "#030405"
SERIES = ("#040506", "#050607", "#060708", "#070809")
MARKERS = "os^D"
LABEL_CHARS = 40
_COLOURS = {INK: "currentColor", BAND: "var(--band)", LIMIT: "var(--limit)"} | {
    colour: f"var(--series-{number})" for number, colour in enumerate(SERIES)
}
_RC: Any = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9.0,
    "text.parse_math": False,
    "text.usetex": False,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def draw(panel: Panel, caption: str) -> str:
    """The panel as ``<svg>``; ``caption`` names it for those who cannot see it."""
    salt = digest([caption, panel.title, panel.x_label])
    with mpl.rc_context({**_RC, "svg.hashsalt": salt}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # the page's fonts show the text, not matplotlib's
        figure = Figure(figsize=(4.4, 3.0))
        FigureCanvasSVG(figure)
        _plot(panel, figure)
        page = StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(page, format="svg", transparent=True, metadata=nothing)
    return _inline(page.getvalue(), f"{panel.title}: {caption}")


def _plot(panel: Panel, figure: Figure) -> None:
    axes = figure.subplots()
    lines = panel.y_label != DROP
    bottom = 0.22 if panel.ticks else 0.16
    figure.subplots_adjust(left=0.2 if lines else 0.14, right=0.97, top=0.76 if lines else 0.82, bottom=bottom)
    if panel.band:
        axes.axhspan(*panel.band, color=BAND, alpha=0.25, linewidth=0, label="placebo")
    if panel.log:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")  # matplotlib's own are formulas, which are not parsed here
        axes.yaxis.set_minor_formatter("")
    else:
        axes.axhline(0.0, color=INK, linewidth=0.6)
    for name, height in panel.limits:
        axes.axhline(height, color=LIMIT, linewidth=1.0, linestyle="--")
        axes.annotate(_label(name), (0.01, height), xycoords=("axes fraction", "data"), fontsize=7, va="bottom")
    if panel.threshold is not None:
        axes.axhline(
            panel.threshold, color=LIMIT, linewidth=1.0, linestyle="--", label=f"threshold {panel.threshold:g}"
        )
    for number, (score, x, drops) in enumerate(panel.series):
        colour, marker = SERIES[number % len(SERIES)], MARKERS[number % len(MARKERS)] + "-" * lines
        axes.plot(x, drops, marker, color=colour, markersize=3.5, alpha=0.8, label=_label(score))
    axes.set_title(_label(panel.title), loc="left", fontsize=9, fontweight="bold", pad=34 if lines else 20)
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    if panel.ticks:
        axes.set_xticks(range(len(panel.ticks)), panel.ticks, fontsize=8)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.legend(
        fontsize=8,
        frameon=False,
        loc="lower left",
        bbox_to_anchor=(-0.02, 1.0),
        ncols=2 if lines else 4,
        handletextpad=0.4,
        columnspacing=1,
    )


def _label(name: str) -> str:
    """A class or score as there is room for it in a plot."""
    return head(one_line(name), LABEL_CHARS)


def _inline(page: str, label: str) -> str:
    """Without XML prologue, fixed sizes and the ids of groups, which would repeat in one page."""
    svg = re.sub(r'<g id="[^"]*">', "<g>", page[page.index("<svg") :])
    for colour, name in _COLOURS.items():
        svg = svg.replace(colour, name)
    head, rest = svg.split(">", 1)
    box = re.search(r'viewBox="[^"]*"', head)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" {box[0] if box else ""}'
    return f'{head} role="img" aria-label="{escape(label)}">{rest.strip()}'
