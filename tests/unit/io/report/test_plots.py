"""Which points, lines and bands the plots of a decided gate show, and how large a report of many turns gets."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvquant_eval.io.report.blocks import Figure, Panel
from kvquant_eval.io.report.plots import figures

MakeCase = Callable[..., Any]


def drawn(case: Any, headroom: float = 20.0) -> tuple[Figure, ...]:
    (candidate,) = case.document["candidates"]
    return figures(candidate, "acme/tiny KV fp8", "KV bfloat16", case.judgement, case.prepared, headroom)


def panels(case: Any, headroom: float = 20.0) -> dict[str, Panel]:
    """The panel of the class ``faq`` in each figure."""
    names = ("sorted", "turn_index", "context_tokens", "paired")
    return {
        name: next(p for p in figure.panels if p.title == "faq")
        for name, figure in zip(names, drawn(case, headroom), strict=True)
    }


def test_every_caption_names_model_dtype_and_baseline(case: MakeCase) -> None:
    assert [figure.caption.split(".")[0].split(",")[0] for figure in drawn(case(9.0))] == [
        "Drop of every turn", "Drop against turn index", "Drop against context", "Points of every turn in both arms",
    ]  # fmt: skip
    assert all("acme/tiny KV fp8 against KV bfloat16." in figure.caption for figure in drawn(case(9.0)))


def test_drops_come_sorted_with_threshold_and_band(case: MakeCase) -> None:
    panel = panels(case(9.0))["sorted"]
    ((score, ranks, drops),) = panel.series
    assert (score, len(drops)) == ("gl_reply", 40)
    assert list(drops) == sorted(drops, reverse=True)
    assert drops[0] == pytest.approx(9.0)
    assert ranks == tuple(map(float, range(1, 41)))
    assert panel.threshold == 2.0
    assert panel.band == pytest.approx((0.0, 0.0))


def test_the_band_leaves_the_placebos_ends_out(case: MakeCase) -> None:
    """Its drops in ``faq`` are made 0 to 39 points: 5% lie below 1.95, 5% above 37.05."""
    made = case(9.0)
    faq = [d for d in made.judgement.deltas["placebo"] if d.workload == "faq"]
    deltas = {**made.judgement.deltas, "placebo": tuple(replace(d, drop=float(n)) for n, d in enumerate(faq))}
    made = replace(made, judgement=replace(made.judgement, deltas=deltas))
    assert panels(made)["sorted"].band == pytest.approx((1.95, 37.05))


def test_the_threshold_is_that_of_the_score_that_flags_first(case: MakeCase) -> None:
    made = case(9.0)
    scores = made.document["candidates"][0]["classes"]["faq"]["scores"]
    scores["gl_span"] = {**scores["gl_reply"], "flag_over": 1.5}
    assert panels(made)["sorted"].threshold == 1.5


def test_points_of_both_arms_are_paired(case: MakeCase) -> None:
    panel = panels(case(9.0))["paired"]
    ((_, base, candidate),) = panel.series
    assert panel.paired
    assert all(a - b == pytest.approx(9.0) for a, b in zip(base, candidate, strict=True))


def test_a_trend_has_the_slope_of_the_decision_and_runs_through_the_mean(case: MakeCase) -> None:
    made = case(9.0)
    scores = made.document["candidates"][0]["classes"]["faq"]["scores"]
    scores["gl_reply"]["trends"] = [{"axis": "turn_index", "slope": 1.5, "p": 0.01}]
    panel = panels(made)["turn_index"]
    ((number, (x0, y0), (x1, y1)),) = panel.trends
    assert (number, x0, x1) == (0, 0.0, 4.0)
    assert (y1 - y0) / (x1 - x0) == pytest.approx(1.5)
    assert (y0 + y1) / 2 == pytest.approx(9.0)  # turns are even over 0 to 4
    assert panels(made)["context_tokens"].trends == ()


def test_a_trend_runs_through_the_turns_with_headroom_alone(case: MakeCase) -> None:
    """A third of the baseline's turns has 82 points: they drop by 9 as before, the others by nothing."""
    made = case(9.0)
    scores = made.document["candidates"][0]["classes"]["faq"]["scores"]
    scores["gl_reply"]["trends"] = [{"axis": "turn_index", "slope": 0.0, "p": 0.5}]
    changed = tuple(d if round(d.baseline) == 82 else replace(d, drop=0.0) for d in made.judgement.deltas["fp8_e4m3"])
    deltas = {**made.judgement.deltas, "fp8_e4m3": changed}
    made = replace(made, judgement=replace(made.judgement, deltas=deltas))
    panel = panels(made, 81.5)["turn_index"]
    assert [end[1] for _, *ends in panel.trends for end in ends] == pytest.approx([9.0, 9.0])
    assert len(panel.series[0][1]) == 40
    assert panels(made, 99.0)["turn_index"].trends == ()


def test_the_trend_along_the_context_is_by_doubling(case: MakeCase) -> None:
    made = case(9.0)
    long = tuple(replace(turn, prompt_ids=(1,) * (100 * 2 ** (turn.turn_index % 2))) for turn in made.prepared.turns)
    made = replace(made, prepared=replace(made.prepared, turns=long))
    scores = made.document["candidates"][0]["classes"]["faq"]["scores"]
    scores["gl_reply"]["trends"] = [{"axis": "context_tokens", "slope": 3.0, "p": 0.01}]
    panel = panels(made)["context_tokens"]
    ((_, (x0, y0), (x1, y1)),) = panel.trends
    assert (x0, x1) == (100.0, 200.0)
    assert y1 - y0 == pytest.approx(3.0)
    assert panel.log_x


def test_a_score_without_a_trend_has_no_line(case: MakeCase) -> None:
    made = case(9.0)
    for judged in made.document["candidates"][0]["classes"].values():
        for score in judged["scores"].values():
            score["trends"] = []
    assert all(panel.trends == () for figure in drawn(made) for panel in figure.panels)


def many(made: Any, turns: int) -> Any:
    """The case with so many turns more in the class ``faq``, all flagged, of random drops and contexts."""
    draw = random.Random(0)
    (candidate,) = made.document["candidates"]
    name, like, turn = candidate["name"], candidate["flagged_turns"][0], made.prepared.turns[0]
    deltas, rendered = [*made.judgement.deltas[name]], [*made.prepared.turns]
    for number in range(turns):
        base, drop = draw.uniform(20, 90), draw.gauss(3, 8)
        new = {"turn_id": f"more-{number}", "turn_index": draw.randrange(30)}
        deltas.append(replace(deltas[0], **new, workload="faq", baseline=base, candidate=base - drop, drop=drop))
        rendered.append(replace(turn, **new, prompt_ids=(1,) * int(2 ** draw.uniform(6, 12))))
        candidate["flagged_turns"].append({**like, **new, "class": "faq"})
    judgement = replace(made.judgement, deltas={**made.judgement.deltas, name: tuple(deltas)})
    return replace(made, judgement=judgement, prepared=replace(made.prepared, turns=tuple(rendered)))


def test_ten_thousand_turns_stay_far_under_five_megabytes(case: MakeCase, tmp_path: Path) -> None:
    files = many(case(9.0), 10_000).write(tmp_path)
    assert len(files["report.html"].encode()) < 500_000
    assert len(files["report.md"].encode()) < 100_000
    assert re.search(r"marks for 10,040 turns", files["report.html"])
    assert "10,080 turns drop over the threshold" in files["report.html"]
