"""What was asked for before the first token: what the policy could see, its limits, and the golden set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvquant_eval.core.folds import FOLDS
from kvquant_eval.core.power import LIKELY
from kvquant_eval.io.report.blocks import Block, Facts, Items, Section, Table
from kvquant_eval.io.report.names import NONE, number

Data = Mapping[str, Any]
LIMITS = {
    "rule": "rule",
    "hardest": "hardest class",
    "min_turns": "turns that a promotion needs, all classes together",
    "min_headroom": "turns with headroom that a class needs",
    "headroom_points": "headroom: points that a turn's baseline needs to count",
    "hold_level": "chance to hold a candidate that loses nothing, all reasons together",
    "largest_break": "points that an unseen conversation may lose",
    "anomalous_gain": "mean gain, in points, that is too good to be true",
    "critical_turns": "turns that may never drop",
    "confirm_epochs": "fresh epochs of flags of sampled replies",
    "early_stop": "a candidate that has surely lost is run no further",
    "allow_underpowered": "may run though it could hardly promote",
    "require": "candidates that count",
    "accept_differences": "settings that may differ between arms",
    "modes": "the most that a replay mode may decide",
}
"""The policy's limits in words; one that is not named here is shown by its own name."""
EMPTY = {"require": "all"}


def power_section(power: Data | None) -> Section:
    """What could be seen before the first token. Runs begun before all of it was kept have less."""
    if power is None:
        return Section(
            2,
            "Power",
            (Items(("nothing was foreseen: it was decided afterwards, or by a run from before that was kept",)),),
        )
    source = f"noise measured in run {power['run']}" if power.get("run") else f"noise {power['noise']}"
    chance = f"a candidate that loses nothing is promoted with a chance of {power['chance']:.0%}"
    held = f", and held with one of {power['held']:.1%}" if "held" in power else ""
    blocks: list[Block] = [Items((f"{chance}{held} ({source})", *power.get("advice", ())))]
    if classes := power.get("classes"):
        columns = (
            "class", "turns", "conversations", "lossless passes", "smallest drop held, points", "conversations needed",
        )  # fmt: skip
        blocks.append(Table(columns, "lrrrrr", tuple(_power(classes)), stacks=True))
        blocks.append(Items((f"smallest drop held: with a chance of {LIKELY:.0%}; needed: to pass with that chance",)))
    return Section(2, "Power", tuple(blocks))


def _power(classes: Data) -> Iterator[tuple[str, ...]]:
    for workload, seen in classes.items():
        yield (
            workload,
            f"{seen['n_turns']:,}",
            f"{seen['n_conversations']:,}",
            f"{seen['chance']:.0%}",
            number(seen["detectable"], ".1f"),
            NONE if seen["conversations"] is None else f"{seen['conversations']:,}",
        )


def policy_section(document: Data) -> Section:
    """The limits, how it was sampled and replayed, and the turns."""
    limits = {key: value for key, value in document["policy"].items() if key not in ("sha256", "tiers")}
    rows = [
        (LIMITS.get(key, key.replace("_", " ")), _plain(value) or EMPTY.get(key, "none"))
        for key, value in limits.items()
    ]
    rows += [("sampling", _plain(document["sampling"])), ("replay", _plain(document["replay"]))]
    golden = document["golden"]
    turns = f"{golden['n_turns']} turns, {golden['n_skipped']} of them skipped in all arms as they do not fit"
    rows.append(("golden set", f"{golden['name']} {golden['version']}: {turns}"))
    if "folds" in golden:
        rows.append(("folds of the golden set", f"{_plain(golden['folds'])} of 0 to {FOLDS - 1}"))
    columns = ("class", "tier", "gating scores (margin, points)", "bounding scores (margin, points)")
    margins = Table(columns, "llww", tuple(_margins(document["candidates"])))
    return Section(2, "Policy", (margins, Facts(tuple(rows))))


def _margins(candidates: Sequence[Data]) -> Iterator[tuple[str, ...]]:
    """What each class is judged by, of the scores that were found."""
    classes = {w: judged for candidate in reversed(candidates) for w, judged in candidate["classes"].items()}
    for workload, judged in classes.items():
        by_role = (
            [f"{name} ({score['margin']:g})" for name, score in judged["scores"].items() if score["role"] == role]
            for role in ("gate", "bound")
        )
        yield workload, judged["tier"], *(", ".join(scores) or NONE for scores in by_role)


def _plain(value: Any) -> str:
    """Empty for what holds nothing."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {inner}" for key, inner in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
