"""What a gate prints at its end: one table a candidate, the decision, its reasons, the report; and what a plan says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvquant_eval.calibrate import Calibrated
from kvquant_eval.core.cautions import About
from kvquant_eval.core.forecast import Forecast
from kvquant_eval.core.power import LIKELY, ClassPower
from kvquant_eval.core.records import Decision
from kvquant_eval.core.text import one_line, safe
from kvquant_eval.core.treatment import together
from kvquant_eval.io.report.names import class_name, kv_name, model_name, ranking

STYLES = {"PASS": "green", "PROMOTE": "green", "FAIL": "red", "HOLD": "red", "INVALID": "red", "INCONCLUSIVE": "yellow"}
COLUMNS = ("class", "score", "n", "BF16", "candidate", "drop", "bound", "drops/gains", "placebo", "recovery", "verdict")
PLAN_COLUMNS = (
    "class", "turns", "conversations", "longest (tokens)", "skipped", "smallest drop held", "lossless passes",
    "conversations needed", "epochs needed",
)  # fmt: skip
MOST_REASONS = 20
MOST_UNITS = 10


def show(document: Mapping[str, Any], folder: Path, console: Console | None = None) -> None:
    """Print the decision. Wide enough for all columns where the output is no terminal."""
    console = console or Console()
    if not console.is_terminal:
        console = Console(width=160, file=console.file)
    for candidate in document["candidates"]:
        console.print(_table(document["model"], candidate))
        console.print(Text(_memory(candidate["kv"])))
        for line in _looked_for(candidate):
            console.print(Text(one_line(line)), style="yellow")
    for name, control in document["controls"].items():
        console.print(Text(f"control {name}: {control['decision']}"), style=STYLES[control["decision"]])
    decision = document["decision"]
    if len(document["ranking"]) > 1:
        console.print(Text(one_line(f"promoted, the fewest bytes a token first: {ranking(document['ranking'])}")))
    console.print(Text(f"\n{decision} (exit status {document['exit_code']})", style=f"bold {STYLES[decision]}"))
    if document["post_hoc"]:
        console.print(Text(one_line(_post_hoc(document)), style="bold yellow"))
    reasons = document["reasons"]
    for reason in reasons[:MOST_REASONS]:
        console.print(Padding.indent(Text(safe(reason)), 2))  # a line that goes on is indented too
    if len(reasons) > MOST_REASONS:
        console.print(Text(f"  and {len(reasons) - MOST_REASONS} reasons more, in the report"))
    console.print(Text(f"report: {one_line(str(folder / 'report.md'))}"), soft_wrap=True)


def _post_hoc(document: Mapping[str, Any]) -> str:
    policy = f"policy {document['policy']['name']} {document['policy']['sha256'][:8]}"
    why = f"scored again after the run, by {policy}" if document.get("rescored") else f"{policy} came after the run"
    return f"POST HOC: {why}; it stands beside the run's own decision and moves no alias"


def show_search(document: Mapping[str, Any], folder: Path, console: Console | None = None) -> None:
    """Print what a search came to: the units of most harm, what each number of them buys, what to paste."""
    console = console or Console()
    if not console.is_terminal:
        console = Console(width=160, file=console.file)
    worst = ", ".join(f"{each['unit']} {each['harm']:.4f}" for each in document["sensitivity"][:MOST_UNITS])
    console.print(Text(safe(f"{document['model']['id']}  {kv_name(document['kv'])}: mixed precision")), style="bold")
    console.print(Text(f"most harm (KL, nats a token; the placebo {document['floors'][0] or 0:.4f}): {worst}"))
    table = Table()
    for column in ("strategy", "kept", "bytes a token", "KL", "drop", "bound", "of the margin", "verdict"):
        table.add_column(column, justify="left" if column in ("strategy", "verdict") else "right")
    for strategy, mine in document["curve"].items():
        for each in mine:
            size = "" if each["bytes_per_token"] is None else f"{each['bytes_per_token']:,.0f}"
            bound = "none" if each["worst_bound"] is None else f"<{each['worst_bound']:+.2f}"
            numbers = (str(len(each["kept"])), size, f"{each['kl']:.4f}", f"{each['drop']:+.2f}", bound)
            verdict = Text(each["decision"], style=STYLES[each["decision"]])
            reach = "" if each["reach"] is None else f"{each['reach']:.2f}"
            table.add_row(strategy, *numbers, reach, verdict)
    console.print(table)
    decision, chosen = document["decision"], document["chosen"]
    if chosen:
        size = "" if chosen["bytes_per_token"] is None else f", {chosen['bytes_per_token']:,.0f} bytes a token"
        kept = ", ".join(chosen["kept"]) or "nothing"
        console.print(Text(f"stays in BF16: {kept}{size}"))
    if document["flags"]:
        console.print(Text(f"vLLM: {document['flags']}"), soft_wrap=True)
    console.print(Text(f"\n{decision} (exit status {document['exit_code']})", style=f"bold {STYLES[decision]}"))
    for reason in document["reasons"][:MOST_REASONS]:
        console.print(Padding.indent(Text(safe(reason)), 2))
    for note in (document["confirm"] or {"notes": []})["notes"]:
        console.print(Text(safe(note)), soft_wrap=True)
    console.print(Text(f"report: {one_line(str(folder / 'search.md'))}"), soft_wrap=True)


def show_calibration(found: Calibrated, console: Console | None = None) -> None:
    """Print what the scales are, where they stand, and how a gate takes them."""
    console, made = console or Console(), found.calibration
    seen = f"{len(made.conversations)} conversations, {len(made.layers)} layers, one scale a {made.per}"
    lines = [f"{made.model}: scales for {together(made.k_format, made.v_format)} of {seen}"]
    for half in ("k", "v"):
        halves = [getattr(layer, half) for layer in made.layers]
        scales, largest = ([n for each in halves for n in getattr(each, key)] for key in ("scales", "largest"))
        ends = f"{min(largest):.4g} to {max(largest):.4g}", f"{min(scales):g} to {max(scales):g}"
        lines.append(f"  |{half.upper()}| of a head reaches {ends[0]}, scales are {ends[1]}")
    lines.append(f"as reference: kv.NAME.scales=calibrated kv.NAME.scales_from={found.scales}")
    native = f"natively: model=folder model.id={made.model} model.path={found.checkpoint}"
    lines.append(f"no checkpoint: {found.not_exported}" if found.not_exported else native)
    console.print(Text(safe("\n".join(lines))), soft_wrap=True)


def show_plan(plan: Forecast, console: Console | None = None) -> int:
    """Print what a gate would take and could see; return the exit status: that of INCONCLUSIVE where a candidate that
    loses nothing would rather not be promoted.
    """
    console = console or Console()
    if not console.is_terminal:
        console = Console(width=160, file=console.file)
    table = Table(title=f"{plan.blocks} blocks an arm, a context of {plan.context:,} tokens", title_justify="left")
    for column in PLAN_COLUMNS:
        table.add_column(column, justify="left" if column == "class" else "right")
    for workload, lengths in plan.classes.items():
        numbers = (lengths.n_turns, lengths.n_conversations, lengths.longest, lengths.n_skipped)
        table.add_row(Text(workload), *(f"{n:,}" for n in numbers), *_seen(plan.power.classes.get(workload)))
    console.print(table)
    todo = ", ".join(f"{arm} {count}" for arm, count in plan.todo.items())
    time = (
        "no earlier run here to tell the minutes from" if plan.minutes is None else f"about {plan.minutes:.0f} minutes"
    )
    console.print(Text(f"blocks to run: {todo}; at most {plan.tokens:,} tokens to compute, {time}"), soft_wrap=True)
    power = plan.power
    source = f"measured in {power.noise}" if power.noise else "assumed: no control of these turns was run here yet"
    console.print(Text(f"noise {source}"), soft_wrap=True)
    chances = f"promoted with a chance of {power.chance:.0%}, held with one of {power.held:.1%}"
    style = STYLES["PASS" if power.enough else "INCONCLUSIVE"]
    console.print(Text(f"a candidate that loses nothing: {chances}", style=f"bold {style}"))
    for sentence in power.advice:
        console.print(Padding.indent(Text(safe(sentence)), 2))
    return 0 if power.enough else Decision.INCONCLUSIVE.exit_code


def _seen(power: ClassPower | None) -> tuple[Text | str, ...]:
    """What can be seen of a class; nothing of one that does not decide."""
    if power is None:
        return ("", "", "", "")
    needed = (f"{power.conversations:,}" if power.conversations else "", f"{power.epochs}x" if power.epochs else "")
    style = STYLES["PASS" if power.chance >= LIKELY else "INCONCLUSIVE"]
    drop = "none" if power.detectable is None else f"{power.detectable:.1f}"
    return (drop, Text(f"{power.chance:.0%}", style=style), *needed)


def _table(model: Mapping[str, Any], candidate: Mapping[str, Any]) -> Table:
    title = f"{model_name(model)}  {kv_name(candidate['kv'])}: {candidate['decision']}"
    table = Table(title=Text(one_line(title)), title_justify="left")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in ("class", "score", "verdict") else "right", no_wrap=True)
    for workload, judged in candidate["classes"].items():
        verdict = Text(judged["verdict"], style=STYLES[judged["verdict"]])
        for position, (name, score) in enumerate(judged["scores"].items()):
            cells = _row(class_name(workload, judged) if position == 0 else "", name, score)
            table.add_row(*(Text(one_line(cell)) for cell in cells), verdict if position == 0 else "")
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


def _looked_for(candidate: Mapping[str, Any]) -> Iterator[str]:
    """The candidate's worst stratum, the highest lower bound in margins, where it is over the margin; and the direction
    of all classes together, where it is no chance.
    """
    found = [
        (workload, name, score["margin"], part)
        for workload, judged in candidate["classes"].items()
        for name, score in judged["scores"].items()
        if score["role"] == "gate" and (part := score["worst_stratum"]) and part["ci_lower"] is not None
    ]
    if found:
        workload, name, margin, part = max(found, key=lambda each: each[3]["ci_lower"] / each[2])
        if part["mean_drop"] > margin:
            drop = f"mean drop {part['mean_drop']:.2f} points, at least {part['ci_lower']:.2f}, margin {margin:g}"
            yield f"worst stratum: {workload} {name}, {part['name']}: {drop}"
    yield from (each["sentence"] for each in candidate["cautions"] if each["about"] == About.POOLED)


def _memory(kv: Mapping[str, Any]) -> str:
    if "bytes_per_token" not in kv:
        return "KV cache: not read back"
    return (
        f"KV cache: {kv['bytes_per_token']:,.0f} bytes a token ({kv['bytes_ratio']:.2f} of the baseline), "
        f"room for {kv['capacity_tokens']:,} tokens ({kv['capacity_ratio']:.2f} of the baseline), "
        f"{kv['layers_quantized']} layers quantized"
        + (f"; the format takes {kv['nominal_bytes_per_token']:,.0f}" if "nominal_bytes_per_token" in kv else "")
    )
