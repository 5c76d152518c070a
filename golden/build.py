"""Builds the golden set ``agents-v2`` from its sources: ``python -m golden.build`` in the root of the project.

The same sources give the same bytes. A changed set is a new version: raise ``VERSION`` when the turns change.
"""

from __future__ import annotations

import json
from pathlib import Path

from golden.sources import coding, faq, long_context, math_chain, tool_calling
from kvquant_eval.io.golden import MANIFEST, pin

NAME = "agents-v2"
VERSION = "2.0.0"
FOLDER = Path(__file__).parent
SOURCES = (faq, coding, tool_calling, long_context, math_chain)
ABOUT = {
    "licence": "Apache-2.0",
    "provenance": "Written by the project: by hand, or by the seeded generators in golden/sources.",
}


def build(folder: Path) -> None:
    """Write ``<class>/agents-v2.jsonl`` for every class, and the manifest."""
    for source in SOURCES:
        turns = source.turns()
        path = folder / turns[0]["workload"] / f"{NAME}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = (json.dumps(turn, ensure_ascii=False) for turn in turns)
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    manifest = pin(folder, NAME, VERSION, ABOUT)
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    build(FOLDER)
