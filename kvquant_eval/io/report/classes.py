"""The verdict of every class on one candidate: the score it hangs on, its reasons, then all scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvquant_eval.io.report.blocks import Block, Items, Section, Table, Verdicts
from kvquant_eval.io.report.names import NONE, class_name, interval, measured, number
from kvquant_eval.io.report.plain import deciding

Data = Mapping[str, Any]
POINTS = (
    "Points of 100; drop is BF16 minus candidate, > 0 is worse. Of each class the score its verdict hangs on most; "
    "n counts turns with headroom, drops/gains all turns that move beyond the threshold."
)


def class_blocks(candidate: Data, baseline: str) -> list[Block]:
    """A row a class, then why each was judged so. ``baseline`` is what stands over the baseline's numbers."""
    classes = candidate["classes"]
    columns = (
        "class", "verdict", "score", "n", baseline, "candidate", "drop", "bounds", "margin", "recovery", "drops/gains",
        "placebo", "repeat",
    )  # fmt: skip
    rows = tuple((class_name(w, judged), judged["verdict"], *_hangs_on(judged)) for w, judged in classes.items())
    reasons = tuple((class_name(w, c), c["verdict"], "; ".join(c["reasons"])) for w, c in classes.items())
    return [
        Items((POINTS.replace("BF16", baseline),)),
        Table(columns, "lvl" + "r" * (len(columns) - 3), rows, stacks=True),
        Verdicts(reasons),
    ]


def score_section(candidate: Data, baseline: str) -> Section:
    """Every score of every class."""
    classes = candidate["classes"]
    columns = (
        "class", "score", "role, margin", "turns in conversations", baseline, "candidate", "mean drop", "bounds",
        "nats", "drops/gains", "placebo", "repeat", "recovery",
    )  # fmt: skip
    rows = [
        (class_name(workload, judged), name, *_score(score))
        for workload, judged in classes.items()
        for name, score in judged["scores"].items()
    ]
    counts = [
        f"{class_name(w, c)}: {c['n_turns']} turns, {c['n_headroom']} with headroom, {c['n_missing']} missing"
        for w, c in classes.items()
    ]
    table = Table(columns, "lll" + "r" * (len(columns) - 3), tuple(rows))
    blocks = (table, Items((*counts, *_noise(classes)))) if rows else (Items(tuple(counts)),)
    return Section(3, f"{candidate['name']}: all scores", blocks)


def _hangs_on(judged: Data) -> tuple[str, ...]:
    name = deciding(judged)
    if not name:
        return ("none", *[NONE] * 10)
    score = judged["scores"][name]
    return (
        *measured(name, score),
        f"{score['margin']:g}",
        _recovery(score),
        f"{score['drops_over']}/{score['gains_over']}",
        _control(score.get("placebo")),
        _control(score.get("repeat")),
    )


def _score(score: Data) -> tuple[str, ...]:
    gate = score["role"] == "gate"
    return (
        f"{score['role']}, {score['margin']:g}",
        (f"{score['n_headroom']} of " if gate else "") + f"{score['n_turns']} in {score['n_conversations']}",
        number(score["baseline_mean"], ".2f"),
        number(score["candidate_mean"], ".2f"),
        number(score["mean_drop"], "+.2f"),
        interval(score["ci_lower"], score["ci_upper"]),
        number(score["drop_nats"], "+.4f"),
        f"{score['drops_over']}/{score['gains_over']}",
        _control(score.get("placebo")),
        _control(score.get("repeat")),
        _recovery(score),
    )


def _recovery(score: Data) -> str:
    return number(score["recovery"], ".1f") + ("%" if score["recovery"] is not None else "")


def _control(score: Data | None) -> str:
    """A control's mean drop, and its drops/gains over the threshold."""
    return (
        NONE if score is None else f"{number(score['mean_drop'], '+.2f')} ({score['drops_over']}/{score['gains_over']})"
    )


def _noise(classes: Data) -> Iterator[str]:
    """What is known of the noise of who was asked, one sentence a score."""
    for workload, judged in classes.items():
        for name, score in judged["scores"].items():
            if (noise := score.get("noise")) and noise["n"]:
                differs = f"differs from itself by {noise['mean_difference']:.2f} points on average"
                over = f"by more than {score['flag_over']:g} in {noise['share_over']:.0%} of them"
                yield f"{workload}, {name}: {noise['who']} {differs} over {noise['n']} questions twice, {over}"
            elif noise:
                yield f"{workload}, {name}: {noise['who']} answered no question twice; its noise is not known"
