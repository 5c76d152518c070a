"""What a person signs and CI reads of one decided run: ``report.md``, ``report.html``, ``summary.md``, ``junit.xml``,
and the part of a model card that says what was promoted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvquant_eval.core.judge import Judgement
from kvquant_eval.core.records import GoldenSet, Prepared
from kvquant_eval.io.report import html, junit, markdown, model_card, search, summary
from kvquant_eval.io.report.view import build

__all__ = ["write"]


def write(
    folder: Path,
    document: Mapping[str, Any],
    judgement: Judgement,
    golden: GoldenSet,
    prepared: Prepared,
    signatures: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Write the files into the run's folder. ``document`` is ``core.document.document``'s, with id and time;
    ``signatures`` are those of ``signoff.json``. A model card that nothing is promoted by any more is removed. What a
    search found, whose gate this is, stands behind the rest.
    """
    report = build(document, judgement, golden, prepared, signatures)
    report = replace(report, sections=(*report.sections, *search.sections(folder, document["model"])))
    for name, text in (
        ("report.md", markdown.render(report)),
        ("report.html", html.render(report)),
        (summary.FILE, summary.render(document, judgement)),
        ("junit.xml", junit.render(document)),
        (model_card.NAME, model_card.render(document)),
    ):
        if text:
            (folder / name).write_text(text, encoding="utf-8", newline="\n")
        else:
            (folder / name).unlink(missing_ok=True)
