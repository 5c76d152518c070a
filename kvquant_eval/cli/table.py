"""The last thing a gate prints: one table a candidate, the decision, its reasons, and where the report is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

STYLES = {"PASS": "green", "PROMOTE": "green", "FAIL": "red", "HOLD": "red", "INVALID": "red", "INCONCLUSIVE": "yellow"}
COLUMNS = ("class", "score", "n", "BF16", "candidate", "drop", "bound", "drops/gains", "placebo", "recovery", "verdict")


def show(document: Mapping[str, Any], folder: Path, console: Console | None = None) -> None:
    """Print the decision. Wide enough for all columns where the output is no terminal."""
    console = console or Console()
    if not console.is_terminal:
        console = Console(width=160, file=console.file)
    for candidate in document["candidates"]:
        console.print(_table(document["model"], candidate))
        console.print(Text(_memory(candidate["kv"])))
    for name, control in document["controls"].items():
        console.print(Text(f"control {name}: {control['decision']}"), style=STYLES[control["decision"]])
    decision = document["decision"]
    console.print(Text(f"\n{decision} (exit status {document['exit_code']})", style=f"bold {STYLES[decision]}"))
    for reason in document["reasons"]:
        console.print(Text(f"  {reason}"))
    console.print(Text(f"report: {folder / 'report.md'}"), soft_wrap=True)


def _table(model: Mapping[str, Any], candidate: Mapping[str, Any]) -> Table:
    kv = candidate["kv"]
    stored = f"KV {kv['requested']} (effective {kv['effective']}, {kv['realisation']})"
    title = f"{model['id']}  {stored}: {candidate['decision']}"
    table = Table(title=Text(title), title_justify="left")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in ("class", "score", "verdict") else "right", no_wrap=True)
    for workload, judged in candidate["classes"].items():
        verdict = Text(judged["verdict"], style=STYLES[judged["verdict"]])
        for position, (name, score) in enumerate(judged["scores"].items()):
            table.add_row(*_row(workload if position == 0 else "", name, score), verdict if position == 0 else "")
        table.add_section()
    return table


def _row(workload: str, name: str, score: Mapping[str, Any]) -> tuple[str, ...]:
    placebo = score.get("placebo")
    return (
        workload,
        name if score["role"] == "gate" else f"{name} ({score['role']})",
        str(score["n_headroom"] if score["role"] == "gate" else score["n_turns"]),
        f"{score['baseline_mean']:.1f}",
        f"{score['candidate_mean']:.1f}",
        f"{score['mean_drop']:+.2f}",
        "none" if score["ci_upper"] is None else f"<{score['ci_upper']:+.2f}",
        f"{score['drops_over']}/{score['gains_over']}",
        f"{placebo['drops_over']}/{placebo['gains_over']}" if placebo else "",
        "" if score["recovery"] is None else f"{score['recovery']:.1f}%",
    )


def _memory(kv: Mapping[str, Any]) -> str:
    if "bytes_per_token" not in kv:
        return "KV cache: not read back"
    return (
        f"KV cache: {kv['bytes_per_token']:,.0f} bytes a token ({kv['bytes_ratio']:.2f} of the baseline), "
        f"room for {kv['capacity_tokens']:,} tokens ({kv['capacity_ratio']:.2f} of the baseline), "
        f"{kv['layers_quantized']} layers quantized"
    )
