"""What people read in an MLflow run: its name, its note, and one table row a turn. No MLflow here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from kvquant_eval.core.codec import digest
from kvquant_eval.core.records import Measure, Replay
from kvquant_eval.core.text import safe
from kvquant_eval.io.decisions import DecisionDocument
from kvquant_eval.io.report.markdown import escape
from kvquant_eval.io.report.names import kv_name
from kvquant_eval.io.report.summary import HASH_CHARS, reply_mark
from kvquant_eval.io.runfolder import RunFolder

MAX_NOTE = 8000
MOST_ROWS = 50
UNITS = (
    "Points of 100; a drop > 0 is worse. Bound: the upper one of 95% of the mean drop. "
    "Flagged: turns that drop beyond the threshold."
)


def run_name(model: Mapping[str, Any], arm: Mapping[str, Any]) -> str:
    """The arm and its decision, then KV dtype, requested and effective, native or reference, and the model's id:
    MLflow's lists show only the beginning, where runs of one model have to differ.
    """
    decided = "" if arm["decision"] == "BASELINE" else f" {arm['decision']}"
    return f"{arm['name']}{decided}: {stored_as(model, arm)}"


def stored_as(model: Mapping[str, Any], arm: Mapping[str, Any]) -> str:
    """KV dtype and model id."""
    return f"{kv_name(arm['kv'])} of {model['id']}"


def note(document: DecisionDocument, arm: Mapping[str, Any]) -> str:
    """Markdown: the decision in the first line, the reasons, and the verdict of every class."""
    marks = [name for name, on in (("self test", arm.get("self_test")), ("post hoc", document["post_hoc"])) if on]
    if arm["decision"] == "BASELINE":
        lead = f"**BASELINE** of sign-off {document['run_id']}, which decided {document['decision']}"
        about = ["Its metrics compare it with its own repeat: what a change of nothing looks like."]
    else:
        lead = f"**{arm['decision']}**" + (f" ({', '.join(marks)})" if marks else "")
        about = [f"- {_plain(reason)}" for reason in arm["reasons"]]
    said = f"{arm['name']}, {stored_as(document['model'], arm)}"
    lines = [
        f"{lead}: {_plain(said)}",
        "",
        *about,
        "",
        UNITS,
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
    """One row a turn, in the same order in every run: the class's shown score, its drop, and every score (points, two
    decimals).
    """
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
    return pd.DataFrame(rows).round(2).sort_values(["class", "turn_id"], ignore_index=True)


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


def worst_turns(candidates: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The flag that puts each turn among the ``MOST_ROWS`` worst of all candidates, the largest drop first."""
    flags = sorted((flag for each in candidates for flag in each["flagged_turns"]), key=lambda flag: flag["drop"])
    worst = {flag["turn_id"]: flag for flag in flags}
    return sorted(worst.values(), key=lambda flag: (-flag["drop"], flag["turn_id"]))[:MOST_ROWS]


def evaluation_rows(
    arm: Mapping[str, Any],
    worst: Sequence[Mapping[str, Any]],
    run: RunFolder,
    tables: Mapping[str, pd.DataFrame],
    log_texts: bool,
) -> list[dict[str, Any]]:
    """One row a turn, the same turns with the same ``inputs`` in every arm, so that MLflow sets them side by side.

    ``outputs`` is the arm's reply, ``expectations`` has the baseline's; without ``log_texts`` both are ``reply_mark``.
    ``scores`` are the arm's points in the scores that all these turns have, or else in all. A prompt is known by
    the hash of its token ids.
    """
    if not worst or tables["turns"].empty:
        return []
    prompts = {turn.turn_id: digest(list(turn.prompt_ids))[:HASH_CHARS] for turn in run.plan().turns}
    names = dict.fromkeys((arm.get("baseline", "baseline"), arm["name"]))
    base, own = [_replies(run, name) for name in names] * (2 if len(names) == 1 else 1)
    mine = tables["turns"][tables["turns"]["arm"] == arm["name"]].dropna(subset=["points"])
    points = mine[mine["turn_id"].isin([flag["turn_id"] for flag in worst])].pivot_table("points", "turn_id", "scorer")
    everywhere = points.dropna(axis="columns") if points.notna().all().any() else points
    shown = (lambda reply: safe(reply.text) if reply else "") if log_texts else reply_mark
    return [
        {
            "inputs": {
                "turn_id": turn_id,
                "class": flag["class"],
                "turn_index": flag.get("turn_index"),
                "prompt_sha256": prompts.get(turn_id),
            },
            "outputs": shown(own.get(turn_id)),
            "expectations": {"baseline_reply": shown(base.get(turn_id))},
            "scores": everywhere.loc[turn_id].dropna().round(2).to_dict() if turn_id in everywhere.index else {},
        }
        for flag in worst
        for turn_id in (flag["turn_id"],)
    ]


def _replies(run: RunFolder, arm: str) -> dict[str, Replay]:
    """The generated replies of the first epoch."""
    replays = run.arm(arm).replays()
    return {each.turn_id: each for each in replays if each.measure is Measure.GENERATED and each.epoch == 0}


def _texts(run: RunFolder, arm: str, wanted: Iterable[str]) -> dict[str, str]:
    keep = set(wanted)
    return {
        turn_id: safe(each.text) for turn_id, each in (_replies(run, arm) if keep else {}).items() if turn_id in keep
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
