"""Free-running conversations beside the golden prefix: points by depth, first failing steps, and who recovers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvquant_eval.core.compounding import RIGHT
from kvquant_eval.io.report.blocks import Block, Figure, Items, Panel, Section, Table
from kvquant_eval.io.report.names import NONE, kv_name, number

Data = Mapping[str, Any]
CONTINUATIONS = {
    "stop": "a conversation that leaves its recording ends",
    "golden": "a conversation that leaves its recording goes on with the recorded reply",
    "error_message": "a reply that leaves the recording is answered with an error, once",
}


def compounding_sections(candidate: Data, name: str, baseline: str, document: Data) -> list[Section]:
    """One section for a candidate, none where no conversation was run with the arm's own replies.

    ``name`` is model id and KV dtype, ``baseline`` what stands over the baseline's numbers.
    """
    found = document["free_running"]
    if not found:
        return []
    arms = (candidate["baseline"], candidate["name"])
    said = (
        "golden: every turn behind the golden history; own: the same turns behind the arm's own earlier replies. Depth "
        f"counts these. A step is right from {RIGHT:g} points; {CONTINUATIONS[document['replay']['on_divergence']]}."
    )
    blocks: list[Block] = [Items((said,)), _curve(found, arms, baseline), *_figure(found, arms, name, baseline)]
    blocks.append(_failures(found, document["arms"]))
    return [Section(2, f"Free running: {name}", tuple(blocks))]


def _pairs(found: Data, arms: tuple[str, str]) -> Iterator[tuple[str, str, Data, Data]]:
    """(Class, score, the baseline's, the candidate's)."""
    left, right = (found.get(arm, {}) for arm in arms)
    for workload, scores in left.items():
        for score, mine in scores.items():
            yield workload, score, mine, right.get(workload, {}).get(score, {"curve": []})


def _curve(found: Data, arms: tuple[str, str], baseline: str) -> Table:
    rows = []
    for workload, score, *sides in _pairs(found, arms):
        left, right = ({point["depth"]: point for point in side["curve"]} for side in sides)
        for depth in sorted(left.keys() | right.keys()):
            points = [side.get(depth) for side in (left, right)]
            cells = [
                number(p[mode] if p else None, ".1f") for p in points for mode in ("golden_prefix", "free_running")
            ]
            n = "/".join(str(p["n"]) if p else "0" for p in points)
            rows.append((workload, score, str(depth), n, *cells))
    columns = (
        "class", "score", "depth", "turns",
        f"{baseline} golden", f"{baseline} own", "candidate golden", "candidate own",
    )  # fmt: skip
    return Table(columns, "llrrrrrr", tuple(rows))


def _figure(found: Data, arms: tuple[str, str], name: str, baseline: str) -> Iterator[Figure]:
    panels = []
    for workload, score, *sides in _pairs(found, arms):
        series = tuple(
            (f"{who} {label}", *_line(side, mode))
            for who, side in zip((baseline, "candidate"), sides, strict=True)
            for mode, label in (("golden_prefix", "golden"), ("free_running", "own"))
            if side["curve"]
        )
        if series:
            panels.append(Panel(f"{workload}, {score}", "own replies in the history", series, None, None, "points"))
    if panels:
        yield Figure(f"Mean points by depth, golden and own history. {name} against {baseline}.", tuple(panels))


def _line(side: Data, mode: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return tuple(float(p["depth"]) for p in side["curve"]), tuple(float(p[mode]) for p in side["curve"])


def _failures(found: Data, arms: Data) -> Table:
    rows = [
        (
            workload,
            score,
            f"{arm}: {kv_name(arms[arm])}",
            str(mine["n_conversations"]),
            str(mine["diverged"]),
            ", ".join(f"{depth}: {count}" for depth, count in mine["first_failing"].items()) or NONE,
            str(mine["never_failing"]),
            f"{mine['recovered']} of {mine['could_recover']}",
        )
        for arm, classes in found.items()
        for workload, scores in classes.items()
        for score, mine in scores.items()
    ]
    columns = (
        "class", "score", "arm", "conversations", "left the recording", "first failing step (depth: conversations)",
        "never failing", "recovered",
    )  # fmt: skip
    return Table(columns, "llwrrwrr", tuple(sorted(rows)))
