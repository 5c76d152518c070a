"""A report as one self-contained HTML page: no script, nothing loaded from elsewhere."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from kvquant_eval.core.records import Decision, Verdict
from kvquant_eval.io.report.blocks import Report
from kvquant_eval.io.report.svg import draw


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
    words = {str(word) for kind in (Decision, Verdict) for word in kind}
    return template.render(report=report, words=words, draw=lambda panel, caption: Markup(draw(panel, caption)))  # noqa: S704
