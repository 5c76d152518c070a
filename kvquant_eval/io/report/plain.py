"""Why a candidate was decided so, in one sentence for those who have not read the policy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from kvquant_eval.core.policy import Rule
from kvquant_eval.core.records import Decision, Verdict
from kvquant_eval.io.report.names import number

Data = Mapping[str, Any]
SCORES = {"gl_reply": "likelihood of the recorded replies", "gl_span": "likelihood of their decisive words"}
"""Scores whose names say little; the others are called as they are."""


def sentence(candidate: Data, policy: Data) -> str:
    """The most telling reason. Where no class tells it, the first that was recorded."""
    said = {
        Decision.HOLD: _lost,
        Decision.INCONCLUSIVE: _open,
        Decision.PROMOTE: _kept,
    }.get(Decision(candidate["decision"]))
    found = said(candidate) if said and policy["rule"] != Rule.ZERO_FLAGS else ""
    reasons = candidate["reasons"]
    others = len(reasons) - 1
    more = f" (and {others} more reason{'s' * (others > 1)} below)" if others > 0 and said is not _kept else ""
    return (found or (reasons[0] if reasons else "no reason is recorded")) + more


def deciding(judged: Data) -> str:
    """The score that a class's verdict hangs on most: of a class that fails one that fails it, else the gating score
    whose upper bound reaches furthest over its margin. Empty where there is none.
    """
    scores = judged["scores"]
    blamed = [name for name in scores if any(reason.startswith(f"{name}:") for reason in judged["reasons"])]
    failing = blamed if judged["verdict"] == Verdict.FAIL else []
    gating = [name for name, score in scores.items() if score["role"] == "gate"]
    return max(failing or gating, key=lambda name: _reach(scores[name], "ci_upper"), default="")


def _reach(score: Data, bound: str) -> float:
    """A bound in margins; none is as bad as can be."""
    return math.inf if score[bound] is None else float(score[bound] / score["margin"])


def _blamed(candidate: Data, verdict: Verdict, what: str) -> Iterator[tuple[str, str, Data]]:
    """(Class, score, its result) of the classes with this verdict that name the score in a reason which begins so and
    is one of the decision's: what a class says beside that decided nothing.
    """
    for workload, judged in candidate["classes"].items():
        counted = [reason for reason in judged["reasons"] if f"{workload}: {reason}" in candidate["reasons"]]
        for name, score in judged["scores"].items():
            begins = f"{name}: {what.format(**score)}"
            if judged["verdict"] == verdict and any(reason.startswith(begins) for reason in counted):
                yield workload, name, score


def _lost(candidate: Data) -> str:
    proven = [each for each in _blamed(candidate, Verdict.FAIL, "mean drop") if each[2]["ci_lower"] is not None]
    if proven:
        workload, name, score = max(proven, key=lambda each: _reach(each[2], "ci_lower"))
        loses = f"{workload} turns lose {score['mean_drop']:.1f} points of 100 on average ({SCORES.get(name, name)})"
        return f"{loses}, at least {score['ci_lower']:.1f}; {score['margin']:g} are allowed"
    for workload, name, score in _blamed(candidate, Verdict.FAIL, "{drops_over} turns drop"):
        drops = f"{score['drops_over']} {workload} turns drop by more than {score['flag_over']:g} points"
        return f"{drops} of 100 ({SCORES.get(name, name)}), and only {score['gains_over']} gain as much"
    return ""


def _open(candidate: Data) -> str:
    """Nothing where all bounds are below their margins: what is open there is another thing, such as a gain that is
    too good to be true.
    """
    found = _blamed(candidate, Verdict.INCONCLUSIVE, "mean drop")
    wide = [each for each in found if _reach(each[2], "ci_upper") >= 1]
    if not wide:
        return ""
    workload, _, score = max(wide, key=lambda each: _reach(each[2], "ci_upper"))
    upper = score["ci_upper"]
    much = "any number of" if upper is None else f"up to {upper:.1f}"
    count = score["n_conversations"]
    tested = "one conversation cannot tell" if count == 1 else f"{count} conversations cannot tell"
    return f"{workload} turns may lose {much} points of 100 and {score['margin']:g} are allowed: {tested}"


def _kept(candidate: Data) -> str:
    classes = candidate["classes"].items()
    critical = {w: judged for w, judged in classes if judged["tier"] == "critical" and deciding(judged)}
    if any(judged["scores"][deciding(judged)]["ci_upper"] is None for judged in critical.values()) or not critical:
        return ""
    name, score = max(
        ((w, judged["scores"][deciding(judged)]) for w, judged in critical.items()),
        key=lambda each: _reach(each[1], "ci_upper"),
    )
    worst = f"at worst {number(score['ci_upper'], '.1f')} points of 100 ({name}, 95% confidence)"
    return f"No critical class loses more than is allowed: {worst}, where {score['margin']:g} are allowed"
