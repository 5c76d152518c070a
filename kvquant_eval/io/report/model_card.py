"""``model-card.md``: what a model card says of the KV caches that the model may serve with. Front matter as Hugging
Face's Hub reads it, then the same for people.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from kvquant_eval.core.records import Decision
from kvquant_eval.core.signoff import barred, terms, vllm_flags
from kvquant_eval.core.text import one_line
from kvquant_eval.io.report.blocks import Block, Code, Items, Report, Section, Table, clean
from kvquant_eval.io.report.markdown import render as markdown
from kvquant_eval.io.report.names import baseline_name, class_name, counted, identity, interval, number
from kvquant_eval.io.report.plain import deciding, sentence
from kvquant_eval.io.report.signoff import voids

Data = Mapping[str, Any]
NAME = "model-card.md"
TASK = "text-generation"
METRICS = (
    ("baseline_mean", "kv_baseline_points", "baseline, points of 100"),
    ("candidate_mean", "kv_candidate_points", "candidate, points of 100"),
    ("mean_drop", "kv_drop_points", "mean drop, points of 100 (> 0 is worse)"),
    ("recovery", "kv_recovery_percent", "recovery, %"),
)
"""(Key of a score, type of the metric, its name): of the score that a class's verdict hangs on."""


def render(document: Data) -> str:
    """The file's text; empty where no candidate may serve."""
    promoted = [each for each in document["candidates"] if _may_serve(document, each)]
    if not promoted:
        return ""
    front = yaml.safe_dump(
        _front(document, promoted), sort_keys=False, allow_unicode=True, default_flow_style=None, width=100
    )
    sections = tuple(_section(document, candidate) for candidate in promoted)
    page = Report(title="", heading="KV cache", sections=sections)
    return f"---\n{front}---\n\n{markdown(clean(page))}"


def _may_serve(document: Data, candidate: Data) -> bool:
    return candidate["decision"] == Decision.PROMOTE and not barred(document, candidate)


def _front(document: Data, promoted: list[Data]) -> dict[str, Any]:
    model = one_line(document["model"]["id"])
    treatments = [
        {
            "requested": one_line(candidate["kv"]["requested"]),
            "effective": one_line(candidate["kv"]["effective"]),
            "realisation": candidate["kv"]["realisation"],
            "layers_skipped": list(candidate["kv"].get("layers_skipped", [])),
        }
        for candidate in promoted
    ]
    return {
        "base_model": model,
        "tags": ["kv-cache", *dict.fromkeys(f"kv-cache-{each['requested']}" for each in treatments)],
        "kv_cache_dtype": treatments,
        "model-index": [
            {"name": model, "results": [each for candidate in promoted for each in _results(document, candidate)]}
        ],
    }


def _results(document: Data, candidate: Data) -> Iterator[dict[str, Any]]:
    """One result a class. KV dtype and candidate stand in its arguments, so that two candidates stay apart."""
    golden, kv = document["golden"], candidate["kv"]
    for workload, judged in candidate["classes"].items():
        if not (name := deciding(judged)):
            continue
        score = judged["scores"][name]
        yield {
            "task": {"type": TASK, "name": "golden agent turns"},
            "dataset": {
                "name": one_line(f"{golden['name']} {golden['version']}"),
                "type": one_line(golden["name"]),
                "config": one_line(workload),
                "revision": golden["sha256"],
                "args": {
                    "version": one_line(golden["version"]),
                    "candidate": one_line(candidate["name"]),
                    "kv_cache_dtype_requested": one_line(kv["requested"]),
                    "kv_cache_dtype_effective": one_line(kv["effective"]),
                },
            },
            "metrics": [
                {"type": kind, "value": float(score[key]), "name": one_line(f"{name}, {said}")}
                for key, kind, said in METRICS
                if score[key] is not None
            ],
        }


def _section(document: Data, candidate: Data) -> Section:
    kv, against = candidate["kv"], document["model"]["kv"][candidate["baseline"]]
    golden = document["golden"]
    turns = f"{golden['n_turns']} golden turns ({golden['name']} {golden['version']})"
    gated = f"{turns} were replayed with {baseline_name(against)} and with this KV cache, under policy"
    said = (
        f"{gated} {document['policy']['name']}: {candidate['decision']}. {sentence(candidate, document['policy'])}",
        f"void as soon as one of these changes: {voids(terms(document, candidate))}",
    )
    columns = ("class", "verdict", "score", "n", baseline_name(against), "candidate", "drop", "bounds", "recovery")
    table = Table(columns, "lvl" + "r" * 6, tuple(_rows(candidate)))
    blocks: tuple[Block, ...] = (Items(said), table, Code(vllm_flags(kv)))
    return Section(2, identity(document["model"], kv), blocks)


def _rows(candidate: Data) -> Iterator[tuple[str, ...]]:
    for workload, judged in candidate["classes"].items():
        if name := deciding(judged):
            score = judged["scores"][name]
            yield (
                class_name(workload, judged),
                judged["verdict"],
                name,
                counted(score),
                number(score["baseline_mean"], ".1f"),
                number(score["candidate_mean"], ".1f"),
                number(score["mean_drop"], "+.2f"),
                interval(score["ci_lower"], score["ci_upper"]),
                number(score["recovery"], ".1f") + ("%" if score["recovery"] is not None else ""),
            )
