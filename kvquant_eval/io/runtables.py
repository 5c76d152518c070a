"""What people read in an MLflow run: its name, its note, and one table row a turn. No MLflow here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from kvquant_eval.core.records import Measure
from kvquant_eval.core.text import safe
from kvquant_eval.io.decisions import DecisionDocument
from kvquant_eval.io.report.markdown import escape
from kvquant_eval.io.report.names import kv_name
from kvquant_eval.io.runfolder import RunFolder

MAX_NOTE = 8000


def run_name(model: Mapping[str, Any], kv: Mapping[str, Any]) -> str:
    """Model id and KV dtype, requested and effective, native or reference."""
    return f"{model['id']} {kv_name(kv)}"


def note(document: DecisionDocument, arm: Mapping[str, Any]) -> str:
    """Markdown: the decision in the first line, the reasons, and the verdict of every class."""
    marks = [name for name, on in (("self test", arm.get("self_test")), ("post hoc", document["post_hoc"])) if on]
    if arm["decision"] == "BASELINE":
        lead = f"**BASELINE** of sign-off {document['run_id']}, which decided {document['decision']}"
        about = ["Its metrics compare it with its own repeat: what a change of nothing looks like."]
    else:
        lead = f"**{arm['decision']}**" + (f" ({', '.join(marks)})" if marks else "")
        about = [f"- {_plain(reason)}" for reason in arm["reasons"]]
    lines = [
        f"{lead}: {_plain(run_name(document['model'], arm['kv']))}",
        "",
        *about,
        "",
        "| class | verdict | score | turns | baseline | candidate | drop | bound | flagged |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        *(line for workload, judged in arm.get("classes", {}).items() for line in _rows(workload, judged)),
    ]
    text = "\n".join(lines)
    return text if len(text) <= MAX_NOTE else text[: MAX_NOTE - 30].rsplit("\n", 1)[0] + "\n\nThe rest: decision.json"


def _rows(workload: str, judged: Mapping[str, Any]) -> list[str]:
    rows = [
        f"| {_plain(workload)} | {judged['verdict']} | {_plain(name)} ({score['role']}) | "
        f"{score['n_headroom'] if score['role'] == 'gate' else score['n_turns']} | "
        f"{score['baseline_mean']:.1f} | {score['candidate_mean']:.1f} | {score['mean_drop']:+.2f} | "
        f"{'none' if score['ci_upper'] is None else format(score['ci_upper'], '+.2f')} | {score['drops_over']} |"
        for name, score in judged["scores"].items()
    ]
    return rows or [f"| {_plain(workload)} | {judged['verdict']} | none | 0 | | | | | |"]


def score_table(
    document: DecisionDocument, arm: Mapping[str, Any], shown: Mapping[str, str], tables: Mapping[str, pd.DataFrame]
) -> pd.DataFrame:
    """One row a turn, in the same order in every run: the class's shown score, its drop, and every score (points)."""
    turns, deltas = tables["turns"], tables["deltas"]
    if turns.empty or arm["name"] not in set(turns["arm"]):
        return pd.DataFrame()
    turns = turns[turns["arm"] == arm["name"]]
    key = ["turn_id", "workload", "turn_index"]
    wide = turns.groupby([*key, "scorer"])["points"].mean().unstack("scorer")
    outcomes = turns.groupby(key)["outcome"].agg(lambda values: "+".join(sorted(set(values))))
    drops = (
        {} if deltas.empty else deltas[deltas["arm"] == arm["name"]].set_index(["turn_id", "scorer"])["drop"].to_dict()
    )
    rows = []
    for (turn_id, workload, turn_index), points in wide.iterrows():
        name = shown.get(workload)
        rows.append(
            {
                "turn_id": turn_id,
                "score": points.get(name),
                "drop": drops.get((turn_id, name)),
                "score_name": name,
                "class": workload,
                "turn_index": turn_index,
                "outcome": outcomes[(turn_id, workload, turn_index)],
                **{f"points.{scorer}": value for scorer, value in points.items()},
                **_identity(document, arm),
            }
        )
    return pd.DataFrame(rows).sort_values(["class", "turn_id"], ignore_index=True)


def reply_table(document: DecisionDocument, arm: Mapping[str, Any], run: RunFolder) -> pd.DataFrame:
    """The flagged turns with both replies (first epoch)."""
    flagged = {} if arm["decision"] == "BASELINE" else {f["turn_id"]: f for f in reversed(arm["flagged_turns"])}
    texts = {name: _texts(run, name, flagged) for name in (arm.get("baseline", "baseline"), arm["name"])}
    first, second = texts.values() if len(texts) == 2 else (*texts.values(), {})
    rows = [
        {
            "turn_id": turn_id,
            "drop": flag["drop"],
            "score_name": flag["score"],
            "class": flag["class"],
            "baseline_reply": first.get(turn_id),
            "candidate_reply": second.get(turn_id),
            **_identity(document, arm),
        }
        for turn_id, flag in sorted(flagged.items())
    ]
    return pd.DataFrame(rows)


def _texts(run: RunFolder, arm: str, wanted: Iterable[str]) -> dict[str, str]:
    keep = set(wanted)
    return {
        replay.turn_id: safe(replay.text)
        for replay in (run.arm(arm).replays() if keep else ())
        if replay.turn_id in keep and replay.measure is Measure.GENERATED and replay.epoch == 0
    }


def _identity(document: DecisionDocument, arm: Mapping[str, Any]) -> dict[str, str]:
    kv = arm["kv"]
    return {
        "model": document["model"]["id"],
        "revision": str(document["model"]["revision"]),
        "kv_requested": kv["requested"],
        "kv_effective": kv["effective"],
        "kv_realisation": kv["realisation"],
        "arm": arm["name"],
    }


def _plain(text: str) -> str:
    """One line that Markdown shows as it is."""
    return escape(safe(str(text)))
