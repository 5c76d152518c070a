"""``kvquant-eval diff RUN_A RUN_B``: two decisions side by side."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvquant_eval.cli.table import STYLES
from kvquant_eval.core.diff import CandidateDiff, Diff, FlagChange, ScoreChange, diff
from kvquant_eval.core.text import head, one_line
from kvquant_eval.decision import DECISION
from kvquant_eval.io.decisions import DecisionDocument, read_decision
from kvquant_eval.io.report.names import NONE, counted, identity, number

ABOUT = "set two decisions side by side"
MOST_FLAGS, VALUE_CHARS, SHA_CHARS = 5, 64, 12
COLUMNS = ("class", "score", "n", "baseline", "drop A", "bounds A", "drop B", "bounds B", "change", "verdict")
OTHER_TURNS = "other golden turns: scores are of other questions, and a flag of one side may be of a turn it alone has"
NOISE = "change: drop of B minus drop of A, in points, > 0 is worse; *: both bounds do not touch, else it may be noise"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Two runs."""
    parser.add_argument("run_a", type=Path, help="a run's folder, or a decision.json")
    parser.add_argument("run_b", type=Path, help="another one")


def run(options: argparse.Namespace) -> int:
    """Show what differs. It is a report, and no decision: 0, whatever it says."""
    a, b = (read_decision(path / DECISION if path.is_dir() else path) for path in (options.run_a, options.run_b))
    with contextlib.suppress(OSError, SystemExit):  # the reader is gone
        show(a, b)
    return 0


def show(a: DecisionDocument, b: DecisionDocument, console: Console | None = None) -> None:
    """Print both heads, what was gated otherwise, and the candidates. Wide where the output is no terminal."""
    console = console or Console()
    if not console.is_terminal:
        console = Console(width=160, file=console.file)
    found = diff(a, b)
    for side, document in (("A", a), ("B", b)):
        mark = ", post hoc" if document["post_hoc"] else ""
        line = f"{side}: {document['run_id']}, {document['created_at']}: {document['decision']}{mark}"
        console.print(_text(line, STYLES[document["decision"]]), soft_wrap=True)
    if found.same:
        console.print(Text("the same decision, the same scores, the same flags", style="bold"))
        return
    _show_changes(found, console)
    for each in found.candidates:
        _show_candidate(each, a, b, console)
    for side, document, only in (("A", a, found.only_a), ("B", b, found.only_b)):
        for candidate in only:
            console.print(_text(f"only in {side}: {_named(document, candidate)}"), soft_wrap=True)
    if any(not each.same for each in found.candidates):
        console.print(Text(NOISE), soft_wrap=True)


def _show_changes(found: Diff, console: Console) -> None:
    changes = (*found.decisions, *found.identity)
    if changes:
        table = Table("what changed", "A", "B")
        for change in changes:
            cells = (head(change.key, VALUE_CHARS), *(_value(change.key, value) for value in (change.a, change.b)))
            table.add_row(*map(_text, cells))
        console.print(table)
    else:
        console.print(Text("the same model, engine, golden set, policy and KV treatments"))
    if found.other_turns:
        console.print(Text(OTHER_TURNS, style="bold yellow"), soft_wrap=True)


def _show_candidate(each: CandidateDiff, a: Mapping[str, Any], b: Mapping[str, Any], console: Console) -> None:
    sides = [(side, _named(document, of), of) for side, document, of in (("A", a, each.a), ("B", b, each.b))]
    if sides[0][1] == sides[1][1]:
        sides = [("A and B", *sides[0][1:])]
    for side, name, of in sides:
        console.print(_text(f"{side}: {name}", f"bold {STYLES[of['decision']]}"), soft_wrap=True)
    if each.same:
        console.print(Text("the same verdicts, scores and flags"))
        return
    if each.scores:
        console.print(_scores(each))
    for line in (*_only(each), *_flags(each)):
        console.print(_text(line), soft_wrap=True)


def _named(document: Mapping[str, Any], candidate: Mapping[str, Any]) -> str:
    """Candidate, model id and KV dtype, and what was decided."""
    return f"{candidate['name']}: {identity(document['model'], candidate['kv'])}: {candidate['decision']}"


def _scores(each: CandidateDiff) -> Table:
    table = Table()
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in ("class", "score", "verdict") else "right", no_wrap=True)
    verdicts = {change.key: change for change in each.verdicts}
    last = ""
    for score in each.scores:
        verdict = verdicts[score.workload]
        said = str(verdict.a) if verdict.a == verdict.b else f"{verdict.a} → {verdict.b}"
        first = score.workload != last
        table.add_row(*map(_text, (score.workload if first else "", *_row(score), said if first else "")))
        last = score.workload
    return table


def _row(score: ScoreChange) -> tuple[str, ...]:
    sides = (score.a, score.b)
    name = score.score if score.a["role"] == "gate" else f"{score.score} ({score.a['role']})"
    n, base = [counted(side) for side in sides], [side["baseline_mean"] for side in sides]
    drops = [cell for side in sides for cell in (number(side["mean_drop"], "+.2f"), _bounds(side))]
    return (
        name,
        n[0] if n[0] == n[1] else f"{n[0]} → {n[1]}",
        number(base[0], ".1f") if base[0] == base[1] else f"{number(base[0], '.1f')} → {number(base[1], '.1f')}",
        *drops,
        ("* " if score.apart else "") + number(score.change, "+.2f"),
    )


def _bounds(score: Mapping[str, Any]) -> str:
    low, high = (number(score.get(key), "+.2f") for key in ("ci_lower", "ci_upper"))
    return f"{low} to {high}" if {low, high} != {NONE} else NONE


def _only(each: CandidateDiff) -> Iterator[str]:
    for side, names in (("A", each.only_a), ("B", each.only_b)):
        if names:
            yield f"only in {side}: {', '.join(names)}"


def _flags(each: CandidateDiff) -> Iterator[str]:
    """How many flags came and went, and the worst of them."""
    gained, lost = each.gained, each.lost
    yield f"flags: {len(gained)} only in B, {len(lost)} only in A, {len(each.flags) - len(gained) - len(lost)} in both"
    for side, flags in (("B", gained), ("A", lost)):
        worst = ", ".join(_flag(flag) for flag in flags[:MOST_FLAGS])
        if worst:
            yield f"  worst only in {side}: {worst}"


def _flag(flag: FlagChange) -> str:
    return f"{head(flag.turn_id, VALUE_CHARS)} {flag.score} {flag.a if flag.b is None else flag.b:+.1f}"


def _value(key: str, value: Any) -> str:
    """A value of a document in a cell, cut."""
    if value is None:
        return NONE
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text[:SHA_CHARS] if key.endswith("sha256") else head(text, VALUE_CHARS)


def _text(line: str, style: str = "") -> Text:
    return Text(one_line(line), style=style)
