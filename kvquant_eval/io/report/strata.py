"""Where in a class the drops lie: strata, trends, and the direction of all conversations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvquant_eval.io.report.blocks import Block, Items, Section, Table
from kvquant_eval.io.report.names import interval, number

Data = Mapping[str, Any]
STEPS = {"turn_index": "points a turn", "context_tokens": "points with each doubling of the context"}
NOTE = (
    "Gating scores; the strata of others are in decision.json. The worst stratum of a score is the one of the highest "
    "lower bound. Under the rule strict every stratum decides, under others none does. A trend's p is one-sided, of no "
    "growth, before Holm."
)


def strata_sections(candidate: Data) -> list[Section]:
    """Sentences, then every stratum and every trend of the gating scores, where there are any."""
    blocks: list[Block] = [Items(tuple(_sentences(candidate)))]
    strata, trends = tuple(_strata(candidate)), tuple(_trends(candidate))
    if strata or trends:
        blocks.append(Items((NOTE,)))
    if strata:
        columns = ("class", "score", "stratum", "turns", "conversations", "mean drop", "bounds", "worst")
        blocks.append(Table(columns, "llwrrrrl", strata))
    if trends:
        blocks.append(Table(("class", "score", "drops grow by", "p"), "llwr", trends))
    return [Section(3, f"{candidate['name']}: where the drops lie", tuple(blocks))]


def _sentences(candidate: Data) -> Iterator[str]:
    """All cautions; the pooled direction is said in any case."""
    seen = candidate["pooled"]
    counts = f"{seen['worse']:,} of {seen['n_conversations']:,} conversations lose, {seen['better']:,} gain"
    yield f"all classes together: {counts} (p = {number(seen['p'], '.2g')}, one-sided); it decides nothing"
    yield from (f"caution: {caution['sentence']}" for caution in candidate["cautions"])


def _gating(candidate: Data) -> Iterator[tuple[str, str, Data]]:
    for workload, judged in candidate["classes"].items():
        for name, score in judged["scores"].items():
            if score["role"] == "gate":
                yield workload, name, score


def _strata(candidate: Data) -> Iterator[tuple[str, ...]]:
    for workload, name, score in _gating(candidate):
        for part in score["strata"]:
            yield (
                workload,
                name,
                part["name"],
                f"{part['n_turns']:,}",
                f"{part['n_conversations']:,}",
                number(part["mean_drop"], "+.2f"),
                interval(part["ci_lower"], part["ci_upper"]),
                "worst" if part == score["worst_stratum"] else "",
            )


def _trends(candidate: Data) -> Iterator[tuple[str, ...]]:
    for workload, name, score in _gating(candidate):
        for trend in score["trends"]:
            yield (
                workload,
                name,
                f"{number(trend['slope'], '+.3f')} {STEPS[trend['axis']]}",
                number(trend["p"], ".2g"),
            )
