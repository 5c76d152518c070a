"""Which points the plots show: drops sorted, along conversation and context, and the points of both arms."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from kvquant_eval.core.judge import Judgement, points_before
from kvquant_eval.core.records import Prepared, ScoreDelta
from kvquant_eval.core.strata import Axis
from kvquant_eval.core.summary import drop_of, has_drop
from kvquant_eval.io.report.blocks import Figure, Panel

BAND = (5.0, 95.0)
"""Percentiles of the placebo's per-turn drops that its band spans."""
TREND = "Lines: the trend of each score, through the mean of its turns with headroom."

Data = Mapping[str, Any]


@dataclass(frozen=True)
class _Class:
    """A class that has pairs: by gating score what the decision says of it, the pairs, and those of turns with
    headroom, which its means and trends are of; see ``Panel``.
    """

    name: str
    scores: Mapping[str, Data]
    pairs: Mapping[str, Sequence[ScoreDelta]]
    counted: Mapping[str, Sequence[ScoreDelta]]
    threshold: float | None
    band: tuple[float, float] | None


def figures(
    candidate: Data, name: str, baseline: str, judgement: Judgement, prepared: Prepared, headroom: float
) -> tuple[Figure, ...]:
    """Four figures over the gating scores, a panel a class; none where nothing could be paired.

    ``name`` is model id and KV dtype, ``baseline`` the KV dtype that it is compared with, ``headroom`` the points that
    a turn needs to count (``Policy.headroom_points``).
    """
    classes = list(_classes(candidate, judgement, headroom))
    if not classes:
        return ()
    contexts = {turn.turn_id: float(max(1, len(turn.prompt_ids))) for turn in prepared.turns}
    indices = {turn.turn_id: float(turn.turn_index) for turn in prepared.turns}
    against = f"{name} against {baseline}."
    worse = f"Above 0 is worse.{_note(classes)}"
    return (
        Figure(f"Drop of every turn, sorted, in points. {against} {worse}", tuple(map(_sorted, classes))),
        Figure(
            f"Drop against turn index, in points; scores stand beside each other. {against} {worse} {TREND}",
            tuple(_along(each, Axis.TURN_INDEX, indices) for each in classes),
        ),
        Figure(
            f"Drop against context, in points. {against} {worse} {TREND} The axis is logarithmic.",
            tuple(_along(each, Axis.CONTEXT, contexts) for each in classes),
        ),
        Figure(
            f"Points of every turn in both arms. {against} Below the diagonal is worse.{_note(classes, False)}",
            tuple(map(_paired, classes)),
        ),
    )


def _classes(candidate: Data, judgement: Judgement, headroom: float) -> Iterator[_Class]:
    before = points_before(judgement.scores, candidate["baseline"])
    deltas = [delta for delta in judgement.deltas.get(candidate["name"], ()) if has_drop(delta)]
    placebo = [delta for delta in judgement.deltas.get("placebo", ()) if has_drop(delta)]
    for workload, judged in candidate["classes"].items():
        gating = {score: data for score, data in judged["scores"].items() if data["role"] == "gate"}
        pairs = {score: _of(deltas, workload, score) for score in gating}
        if any(pairs.values()):
            limits = [data["flag_over"] for data in gating.values() if data.get("flag_over") is not None]
            band = _band([drop_of(d) for score in gating for d in _of(placebo, workload, score)])
            counted = {
                score: [d for d in found if before.get((d.turn_id, score), 0.0) >= headroom]
                for score, found in pairs.items()
            }
            yield _Class(workload, gating, pairs, counted, min(limits, default=None), band)


def _of(deltas: Sequence[ScoreDelta], workload: str, score: str) -> list[ScoreDelta]:
    return [d for d in deltas if d.workload == workload and d.scorer == score]


def _band(drops: Sequence[float]) -> tuple[float, float] | None:
    if not drops:
        return None
    low, high = np.percentile(drops, BAND)
    return float(low), float(high)


def _note(classes: Sequence[_Class], band: bool = True) -> str:
    """What lines, large marks and band mean, where there are any."""
    said = ""
    if any(each.threshold is not None for each in classes):
        said += " Dashed: the threshold; turns beyond it have large marks."
    if band and any(each.band for each in classes):
        said += f" The band holds {BAND[1] - BAND[0]:g}% of the placebo's drops."
    return said


def _sorted(each: _Class) -> Panel:
    ranked = {score: sorted(map(drop_of, found), reverse=True) for score, found in each.pairs.items()}
    series = tuple((s, tuple(map(float, range(1, len(drops) + 1))), tuple(drops)) for s, drops in ranked.items())
    return Panel(each.name, "turns, worst first", series, each.threshold, each.band)


def _along(each: _Class, axis: Axis, places: Mapping[str, float]) -> Panel:
    """Drops by the place of their turn on ``axis``, with the trend that the decision document has."""
    series = tuple(
        (score, tuple(places[d.turn_id] for d in found), tuple(map(drop_of, found)))
        for score, found in each.pairs.items()
    )
    trends = []
    for number, (score, found) in enumerate(each.counted.items()):
        slope = next((t["slope"] for t in each.scores[score].get("trends", ()) if t["axis"] == axis), None)
        if slope is not None and found:
            x, drops = [places[d.turn_id] for d in found], [drop_of(d) for d in found]
            middle, mean = fmean(_even(axis, value) for value in x), fmean(drops)
            ends = [(value, mean + slope * (_even(axis, value) - middle)) for value in (min(x), max(x))]
            trends.append((number, ends[0], ends[1]))
    if axis is Axis.TURN_INDEX:
        form: dict[str, Any] = {"x_label": "turn index in the conversation", "aside": True}
    else:
        form = {"x_label": "context, tokens before the reply", "log_x": True}
    return Panel(each.name, series=series, threshold=each.threshold, band=each.band, trends=tuple(trends), **form)


def _even(axis: Axis, place: float) -> float:
    """What a trend is linear in (``strata.trends``)."""
    return math.log2(place) if axis is Axis.CONTEXT else place


def _paired(each: _Class) -> Panel:
    series = tuple(
        (score, tuple(d.baseline or 0.0 for d in found), tuple(d.candidate or 0.0 for d in found))
        for score, found in each.pairs.items()
    )
    return Panel(each.name, "baseline, points", series, each.threshold, None, "candidate, points", paired=True)
