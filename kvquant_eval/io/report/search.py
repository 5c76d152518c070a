"""What a search found: the flags to paste, which layers carry the damage, and what each byte buys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kvquant_eval.core.codec import DataError
from kvquant_eval.core.folds import FOLDS
from kvquant_eval.io.report import html, markdown
from kvquant_eval.io.report.blocks import Facts, Figure, Items, Panel, Report, Section, Table, Verdicts, clean
from kvquant_eval.io.report.names import NONE, identity, number, why
from kvquant_eval.io.searches import SEARCH, read_search

Data = Mapping[str, Any]
RANKED = """
brings: KL when only this unit is quantized; saves: what KL falls by when all are but this one. harm: the mean of \
both, each weighted by the inverse of its variance over turns, with its standard error.
KL in nats a token, drops in points (> 0 is worse) over all gating scores.
"""
CURVE = """
kept: units in BF16. The bound is that of the score that comes nearest to its margin or goes furthest beyond; reach: \
the share of the margin that it takes up, < 1 passes; predicted: the same for as many other turns.
sensitive: the units of most harm first. first, last, both ends: folk remedies on the same bytes.
"""


def write(folder: Path, document: Data) -> None:
    """Write ``search.md`` and ``search.html`` into the folder of a search. ``document`` is ``search.json``'s."""
    report = build(document)
    for name, text in (("search.md", markdown.render(report)), ("search.html", html.render(report))):
        (folder / name).write_text(text, encoding="utf-8", newline="\n")


def build(document: Data) -> Report:
    """The whole report; every string in it is safe to show, though not yet escaped for a format."""
    called = identity(document["model"], document["kv"])
    return clean(
        Report(
            title=f"{document['decision']}: mixed precision for {called}",
            heading=f"KV cache, mixed precision: {document['decision']}",
            sections=(
                _decision(document, called),
                _sensitivity(document, called),
                _curve(document, called),
                *_confirmed(document),
                _made_of(document),
            ),
        )
    )


def sections(folder: Path, model: Data) -> tuple[Section, ...]:
    """What the search that asked for this gate found, for the report of the gate: none where there was no search. One
    that cannot be read, or is of other weights than ``model``'s, is named and left out: it decides nothing.
    """
    path = folder / SEARCH
    if not path.exists():
        return ()
    try:
        document = read_search(path)
        if document["model"]["weights_sha256"] != model["weights_sha256"]:
            raise DataError(f"{path}: a search of the same weights, got others")
    except DataError as error:
        line = str(error).replace(str(path), SEARCH)  # the same bytes wherever the folder lies
        return (clean(Section(2, "Mixed precision", (Items((f"left out: {line}",)),))),)
    called = identity(document["model"], document["kv"])
    chosen = Section(2, f"Mixed precision: {called}", (Facts(_chosen(document)),))
    return clean((chosen, _sensitivity(document, called), _curve(document, called), _made_of(document)))


def _decision(document: Data, called: str) -> Section:
    rows = (("decision", f"{document['decision']} (exit status {document['exit_code']})"), *_chosen(document))
    return Section(2, "Decision", (Verdicts(((called, document["decision"], why(document["reasons"])),)), Facts(rows)))


def _chosen(document: Data) -> tuple[tuple[str, str], ...]:
    chosen = document["chosen"]
    if not chosen:
        return ()
    size = number(chosen["bytes_per_token"], ",.0f")
    none = "no engine stores K and V so by itself; a reference shows what it would do"
    return (
        ("stays in BF16", ", ".join(chosen["kept"]) or "nothing"),
        ("bytes a token", f"{size}; the baseline takes {number(chosen['compression'], '.2f')} times as much"),
        ("vLLM", document["flags"] or none),
    )


def _sensitivity(document: Data, called: str) -> Section:
    found = document["sensitivity"]
    everything = document["all_kl"]
    columns = ("unit", "harm", "error", "brings", "saves", "drop alone", "drop without it")
    rows = tuple(
        (
            each["unit"],
            number(each["harm"], ".5f"),
            number(each["error"], ".5f"),
            number(each["brings"], ".5f"),
            number(each["saves"], ".5f"),
            number(each["alone"]["drop"], "+.2f"),
            number(each["spared"]["drop"], "+.2f"),
        )
        for each in found
    )
    said = [*RANKED.strip().splitlines(), f"All quantized: {number(everything, '.5f')}; {_floor(document, 0)}."]
    return Section(
        2, f"Sensitivity: {called}", (Items(tuple(said)), *_bars(document, called), Table(columns, "lrrrrrr", rows))
    )


def _floor(document: Data, which: int) -> str:
    return f"the placebo, the floor of what can be told: {number(document['floors'][which], '.5f')}"


def _bars(document: Data, called: str) -> Iterator[Figure]:
    """Harm by layer, K and V apart where they were."""
    found = document["sensitivity"]
    halves = sorted({each["unit"].partition(".")[2] for each in found})
    series = tuple(
        (
            half.upper() or "layer",
            tuple(float(each["unit"].partition(".")[0]) for each in mine),
            tuple(each["harm"] for each in mine),
        )
        for half in halves
        for mine in [sorted((e for e in found if e["unit"].partition(".")[2] == half), key=_layer)]
    )
    if series:
        yield Figure(
            f"Harm of each layer, KL in nats a token. {called}. Higher is worse.",
            (Panel("harm", "layer", series, None, None, "KL, nats a token"),),
        )


def _layer(each: Data) -> int:
    return int(each["unit"].partition(".")[0])


def _curve(document: Data, called: str) -> Section:
    chosen = document["chosen"]
    columns = (
        "strategy",
        "kept",
        "bytes a token",
        "compression",
        "KL",
        "drop",
        "bound",
        "reach",
        "predicted",
        "verdict",
    )
    rows = tuple(
        (
            f"{strategy} (chosen)" if chosen and each["name"] == chosen["name"] else strategy,
            str(len(each["kept"])),
            number(each["bytes_per_token"], ",.0f"),
            number(each["compression"], ".2f"),
            number(each["kl"], ".5f"),
            number(each["drop"], "+.2f"),
            f"{number(each['worst_bound'], '+.2f')} {each['worst']}",
            number(each["reach"], ".2f"),
            number(each["predicted"], ".2f"),
            each["decision"],
        )
        for strategy, mine in document["curve"].items()
        for each in mine
    )
    figures = tuple(_trade_off(document, called))
    said = [*CURVE.strip().splitlines(), f"On the folds that chose: {_floor(document, 1)}."]
    return Section(2, f"Trade-off: {called}", (Items(tuple(said)), *figures, Table(columns, "lrrrrrrrrv", rows)))


def _trade_off(document: Data, called: str) -> Iterator[Figure]:
    panels = []
    for key, title, label, limits in (
        ("drop", "mean drop", "drop by bytes, points", ()),
        ("reach", "bound by margin", "share of the margin", (("passes below", 1.0),)),
    ):
        series = tuple(
            (
                strategy,
                tuple(float(each["bytes_per_token"]) for each in shown),
                tuple(float(each[key]) for each in shown),
            )
            for strategy, mine in document["curve"].items()
            for shown in [[each for each in mine if each["bytes_per_token"] and each[key] is not None]]
            if shown
        )
        if series:
            panels.append(Panel(title, "bytes a token", series, None, None, label, (), limits))
    if panels:
        yield Figure(f"What each byte buys. {called}. Lower is better.", tuple(panels))


def _confirmed(document: Data) -> Iterator[Section]:
    """The gate on the conversations that nothing was chosen on, the folk remedies beside it."""
    confirm = document["confirm"]
    if not confirm:
        return
    columns = ("candidate", "KV", "bytes a token", "class", "score", "drop", "bound", "margin", "verdict", "decision")
    rows = tuple(
        (
            candidate["name"],
            f"{candidate['requested']} ({candidate['realisation']})",
            number(candidate["bytes_per_token"], ",.0f"),
            score["class"],
            score["score"],
            number(score["drop"], "+.2f"),
            number(score["bound"], "+.2f"),
            number(score["margin"], "g"),
            score["verdict"],
            candidate["decision"],
        )
        for candidate in confirm["candidates"]
        for score in candidate["scores"]
    )
    folds = _listed(document["folds"]["confirm"])
    held_out = f"Run {confirm['run_id']}: {confirm['n_turns']} turns of folds {folds}, on which nothing was chosen."
    said = [f"{held_out} Its decision is the search's.", *confirm["notes"]]
    yield Section(2, "Confirmed on held-out conversations", (Items(tuple(said)), Table(columns, "llrllrrrvv", rows)))


def _made_of(document: Data) -> Section:
    folds = "; ".join(f"{part} {_listed(document['folds'][part])}" for part in ("sensitivity", "choose", "confirm"))
    passes = ", ".join(f"{part} {count}" for part, count in document["passes"].items())
    facts = (
        ("engine passes", passes),
        ("minutes", number(document["minutes"], ".1f")),
        ("golden set", f"{document['golden']['name']} {document['golden']['version']} {document['golden']['sha256']}"),
        ("folds", f"{folds} of 0 to {FOLDS - 1}"),
        ("policy", f"{document['policy']['name']}; limits on counts by the share of the folds"),
        ("weights", document["model"]["weights_sha256"]),
        ("runs", ", ".join(document["runs"])),
        ("chosen by", document["standard"] or NONE),
    )
    return Section(2, "How it was found", (Facts(facts),))


def _listed(folds: list[int]) -> str:
    return ", ".join(map(str, folds))
