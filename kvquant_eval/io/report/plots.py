"""Which points the plots show: per class the drops sorted, and the drops against the turn index."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kvquant_eval.core.judge import Judgement
from kvquant_eval.core.records import ScoreDelta
from kvquant_eval.io.report.blocks import Figure, Panel

BAND = (5.0, 95.0)
"""Percentiles of the placebo's per-turn drops that its band spans."""


def figures(candidate: Mapping[str, Any], name: str, baseline: str, judgement: Judgement) -> tuple[Figure, ...]:
    """Two figures over the gating scores, a panel a class; none where nothing could be paired."""
    deltas = judgement.deltas.get(candidate["name"], ())
    placebo = judgement.deltas.get("placebo", ())
    by_rank, by_index = [], []
    for workload, judged in candidate["classes"].items():
        gating = {score: data for score, data in judged["scores"].items() if data["role"] == "gate"}
        pairs = {score: _paired(deltas, workload, score) for score in gating}
        if not any(pairs.values()):
            continue
        limits = [data["flag_over"] for data in gating.values() if data.get("flag_over") is not None]
        threshold = min(limits, default=None)
        band = _band([d for score in gating for d in _paired(placebo, workload, score)])
        ranked = {score: sorted(found, key=lambda d: -_drop(d)) for score, found in pairs.items()}
        ranks = tuple((s, tuple(map(float, range(1, len(f) + 1))), tuple(map(_drop, f))) for s, f in ranked.items())
        places = tuple((s, tuple(float(d.turn_index) for d in f), tuple(map(_drop, f))) for s, f in pairs.items())
        by_rank.append(Panel(workload, "turns, worst first", ranks, threshold, band))
        by_index.append(Panel(workload, "turn index in the conversation", places, threshold, band))
    note = "Above 0 is worse."
    if any(panel.threshold is not None for panel in by_rank):
        note += " The dashed line is the threshold."
    if any(panel.band for panel in by_rank):
        note += f" The band holds {BAND[1] - BAND[0]:g}% of the placebo's drops."
    captions = tuple(
        f"{what}, in points. {name} against {baseline}. {note}"
        for what in ("Drop of every turn, sorted", "Drop against turn index")
    )
    plotted = zip(captions, (by_rank, by_index), strict=True)
    return tuple(Figure(caption, tuple(panels)) for caption, panels in plotted if panels)


def _paired(deltas: Sequence[ScoreDelta], workload: str, score: str) -> list[ScoreDelta]:
    return [d for d in deltas if d.workload == workload and d.scorer == score and d.drop is not None]


def _drop(delta: ScoreDelta) -> float:
    return delta.drop if delta.drop is not None else math.nan


def _band(placebo: Sequence[ScoreDelta]) -> tuple[float, float] | None:
    if not placebo:
        return None
    low, high = np.percentile([_drop(delta) for delta in placebo], BAND)
    return float(low), float(high)
