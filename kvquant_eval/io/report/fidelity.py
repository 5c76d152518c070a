"""How near each arm's next-token distributions stay to its baseline's: a table, and KL by position beside the floor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvquant_eval.io.report.blocks import Figure, Items, Panel, Section, Table
from kvquant_eval.io.report.names import identity, kv_name, number

Data = Mapping[str, Any]
DIAGNOSTIC = "Diagnostic, never deciding"
SAID = f"""
Forced decoding of the golden replies, an arm against its baseline. The controls are the floor: what moves where the \
dtype does not. {DIAGNOSTIC}: no rule of the gate reads any of this, and near the baseline KL says how much moved, not \
whether it got worse.
KL(baseline || arm), nats a token, over the tokens that both arms list and all others as one: a lower bound of the KL \
over the vocabulary. Lumped is the baseline's mean probability of these others.
Top-1: positions with the same most probable token. Golden drop: probability of the golden token, baseline minus arm, \
in points; > 0 is worse. Perplexity: arm by baseline; > 1 is worse.
First divergence: the first position of the golden reply (from 0) where the most probable tokens differ; the median is \
over the turns that have one. Left out: turns without a scored replay on both sides.
"""
COLUMNS = (
    "class", "arm", "KV dtype", "turns", "left out", "tokens", "KL, nats", "lumped", "top-1", "golden drop",
    "perplexity", "turns that never diverge", "median first divergence",
)  # fmt: skip


def fidelity_sections(document: Data) -> list[Section]:
    """One section, none where no arm was compared."""
    found = document["fidelity"]
    if not found:
        return []
    table = Table(COLUMNS, "llw" + "r" * (len(COLUMNS) - 3), tuple(_rows(found, document["model"]["kv"])))
    return [Section(2, "Fidelity", (Items(tuple(SAID.strip().splitlines())), table, *_figure(document)))]


def _rows(found: Data, kv: Data) -> Iterator[tuple[str, ...]]:
    """All turns first, then by class; within each the arms in their order, controls first."""
    yield from (("all", name, kv_name(kv[name]), *_numbers(arm["all"])) for name, arm in found.items())
    for workload in dict.fromkeys(w for arm in found.values() for w in arm["classes"]):
        for name, arm in found.items():
            yield workload, name, kv_name(kv[name]), *_numbers(arm["classes"][workload])


def _numbers(near: Data) -> tuple[str, ...]:
    return (
        f"{near['n_turns']:,}",
        f"{near['n_left_out']:,}",
        f"{near['n_tokens']:,}",
        number(near["kl"], ".5f"),
        number(near["rest_mass"], ".2%"),
        number(near["top1_agreement"], ".2%"),
        number(near["golden_drop"], "+.3f"),
        number(near["perplexity_ratio"], ".4f"),
        number(near["never_diverged"], ".1%"),
        number(near["median_first_divergence"], "g"),
    )


def _figure(document: Data) -> Iterator[Figure]:
    """A panel a candidate: its mean KL by position, and the controls'."""
    found, controls, model = document["fidelity"], document["controls"], document["model"]
    panels = []
    for name in (name for name in found if name not in controls):
        positions = found[name]["all"]["by_position"]
        lines = [(arm, found[arm]["all"]["by_position"]) for arm in (name, *controls)]
        series = tuple(
            (arm, tuple(map(float, range(len(line)))), tuple(at["kl"] for at in line)) for arm, line in lines if line
        )
        if positions:
            ticks = tuple(f"{at['first']}\n{at['n_tokens']:,}" for at in positions)
            label = "first position of each group; below it, tokens"
            panels.append(Panel(name, label, series, None, None, "KL, nats", ticks))
    if panels:
        pairs = [(panel.title, found[panel.title]["baseline"]) for panel in panels]
        kv = model["kv"]
        named = [f"{name}: {identity(model, kv[name])} against {kv_name(kv[base])}" for name, base in pairs]
        said = f"Mean KL by position in the golden reply. {'; '.join(named)}. The controls are the floor. {DIAGNOSTIC}."
        yield Figure(said, tuple(panels))
