"""All cases by group, and docs/bad-input.md made of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.bad_input import config, golden, judge, models, power
from tests.bad_input.case import Case

GROUPS: tuple[tuple[str, Sequence[Case]], ...] = (
    ("Configuration", config.CASES),
    ("Golden sets", golden.CASES),
    ("Models and engine arguments", models.CASES),
    ("Judges", judge.CASES),
    ("Power", power.CASES),
)
PATH = Path(__file__).parents[2] / "docs" / "bad-input.md"
INTRO = """\
# Bad input

What `kvquant-eval` says to input that it cannot use: one line on stderr, `<where>: <rule>, got <value>; <remedy>`, and
exit status 2, before an engine starts. Each row is a test (`tests/bad_input`); `{folder}` is a folder of the user's.
`python -m tests.bad_input` writes this file.
"""


def text() -> str:
    """The document: one table a group."""
    return INTRO + "".join(f"\n## {title}\n\n{_table(cases)}" for title, cases in GROUPS)


def _table(cases: Sequence[Case]) -> str:
    rows = [f"| {_cell(case.what)} | `{_cell(case.line)}` |\n" for case in cases]
    return "".join(["| what is wrong | the line it gets |\n", "| --- | --- |\n", *rows])


def _cell(content: str) -> str:
    return content.replace("|", "\\|")
