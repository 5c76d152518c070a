"""A report as one self-contained HTML page: no script, nothing loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from kvquant_eval.core.records import Decision, Verdict
from kvquant_eval.io.report.blocks import DIFFERS, Report
from kvquant_eval.io.report.svg import draw

SHAPES: Mapping[str, str] = {
    Decision.PROMOTE: "yes",
    Decision.HOLD: "no",
    Decision.INCONCLUSIVE: "open",
    Decision.INVALID: "void",
    Verdict.PASS: "yes",
    Verdict.FAIL: "no",
}
"""The shape beside each word, for those who see no colours."""


def render(report: Report) -> str:
    """The page; equal reports give equal bytes."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = environment.get_template("report.html.jinja")
    words = {"shapes": SHAPES, "differs": DIFFERS}
    return template.render(report=report, **words, draw=lambda panel, caption: Markup(draw(panel, caption)))  # noqa: S704
