"""What MLflow is told: one flat run a KV dtype, as plain values read from a finished run folder. No MLflow here."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
from typing_extensions import TypedDict

from kvquant_eval.core.codec import canonical, digest, from_data
from kvquant_eval.core.records import Decision
from kvquant_eval.core.signoff import barred
from kvquant_eval.core.treatment import spans
from kvquant_eval.io import tables as stored
from kvquant_eval.io.decisions import DecisionDocument, read_decision
from kvquant_eval.io.runfolder import RunFolder
from kvquant_eval.io.runtables import evaluation_rows, note, reply_table, run_name, score_table, worst_turns

MAX_PARAM = 6000
COLOURS = {
    "BASELINE": ("#1565c0",),
    "PROMOTE": ("#2e7d32", "#81c784", "#1b5e20", "#a5d6a7"),
    "HOLD": ("#c62828", "#ef9a9a", "#7f0000", "#ff7043"),
    "INCONCLUSIVE": ("#f9a825", "#ffe082", "#c17900", "#fff176"),
    "INVALID": ("#6a1b9a", "#ce93d8", "#38006b", "#b39ddb"),
}
"""Hue by decision; shades tell the candidates of one decision apart."""
VALIDATION = {Decision.PROMOTE: "approved", Decision.HOLD: "rejected"}


class _Model(TypedDict):
    source: str


class _Config(TypedDict):
    model: _Model


@dataclass(frozen=True, kw_only=True)
class VersionCard:
    """A registered model version: a decision in the registry, without weights.

    ``alias`` is empty where the decision may not move one. ``decided_at`` is ISO 8601 in UTC, so that it sorts.
    """

    model: str
    source: str
    alias: str
    decision: Decision
    decided_at: str
    description: str
    tags: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class RunCard:
    """One MLflow run: metrics in points (all finite), one chart section a class; ``scores`` has one row a turn, turn id
    first and score second; ``replies`` has texts, and is None unless they were asked for; ``rows`` are an evaluation's
    (``runtables.evaluation_rows``). ``logged_at`` is in ms."""

    name: str
    logged_at: int
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    tags: Mapping[str, str]
    golden: Mapping[str, Any]
    scores: pd.DataFrame
    replies: pd.DataFrame | None
    rows: Sequence[Mapping[str, Any]]
    version: VersionCard | None


def read_cards(folder: Path, log_texts: bool, evaluation: bool = False) -> list[RunCard]:
    """The baseline's card, then one a candidate. Raises DataError, in one line, for a damaged folder."""
    document = read_decision(folder / "decision.json")
    tables = stored.read(folder)
    shown = shown_scores(document["candidates"])
    repeat: Mapping[str, Any] = document["controls"].get("repeat", {})
    baseline = {**repeat, "name": "baseline", "kv": document["baseline"]["kv"], "decision": "BASELINE"}
    run = RunFolder(folder)
    scheme = from_data(_Config, run.config(), f"{folder / 'config.yaml'}")["model"]["source"]
    worst = worst_turns(document["candidates"]) if evaluation else ()
    return [
        RunCard(
            name=run_name(document["model"], arm),
            logged_at=int(datetime.fromisoformat(document["created_at"]).timestamp() * 1000),
            params=_params(document, arm, shown),
            metrics=_metrics(document, arm, shown),
            tags=_tags(document, arm, log_texts),
            golden={key: document["golden"][key] for key in ("name", "version", "sha256", "n_turns")},
            scores=score_table(document, arm, shown, tables),
            replies=reply_table(document, arm, run) if log_texts else None,
            rows=evaluation_rows(arm, worst, run, tables, log_texts),
            version=None if arm is baseline else _version(document, arm, scheme),
        )
        for arm in (baseline, *document["candidates"])
    ]


def shown_scores(candidates: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """One gating score a class, the same in all runs so that they compare: the one whose upper bound comes closest to
    its margin, or goes furthest beyond it, in any candidate."""
    worst: dict[str, tuple[float, str]] = {}
    for candidate in candidates:
        for workload, judged in candidate.get("classes", {}).items():
            for name, score in judged["scores"].items():
                if score["role"] == "gate":
                    bound = math.inf if score["ci_upper"] is None else score["ci_upper"] / score["margin"]
                    worst[workload] = max(worst.get(workload, (-math.inf, "")), (bound, name))
    return {workload: name for workload, (_, name) in worst.items()}


def _metrics(document: DecisionDocument, arm: Mapping[str, Any], shown: Mapping[str, str]) -> dict[str, float]:
    """Finite values only: MLflow stores NaN as 0. The baseline is compared with its repeat."""
    replayed: Mapping[str, Any] = document["arms"].get(arm["name"], {})
    values: dict[str, Any] = {
        "kv/bytes_per_token": arm["kv"].get("bytes_per_token"),
        "kv/capacity_tokens": arm["kv"].get("capacity_tokens"),
        "kv/decoded_tokens_per_s": replayed.get("decoded_tokens_per_s"),
        "kv/prefix_cache_share": replayed.get("prefix_cache_share"),
    }
    compared = "repeat" if arm["decision"] == "BASELINE" else arm["name"]
    if (near := document.get("fidelity", {}).get(compared)) is not None:
        values |= {"fidelity/kl": near["all"]["kl"], "fidelity/top1": near["all"]["top1_agreement"]}
    if arm["decision"] != "BASELINE":
        values["gate/pass"] = int(arm["decision"] == Decision.PROMOTE)
    if (pooled := arm.get("pooled")) and pooled["n_conversations"]:
        values["gate/pooled_p"] = pooled["p"]
    values |= _class_metrics(arm, shown)
    return {name: float(value) for name, value in values.items() if value is not None and math.isfinite(value)}


def _class_metrics(arm: Mapping[str, Any], shown: Mapping[str, str]) -> dict[str, Any]:
    """A section a class, over its shown score; flags count turns, those confirmed where there was a second test."""
    values: dict[str, Any] = {}
    for workload, judged in arm.get("classes", {}).items():
        section = re.sub(r"[^\w.\- ]", "_", workload)
        score = judged["scores"].get(shown.get(workload), {})
        for metric, key in (
            ("mean_drop", "mean_drop"),
            ("baseline", "baseline_mean"),
            ("candidate", "candidate_mean"),
            ("bound", "ci_upper"),
            ("recovery", "recovery"),
        ):
            values[f"{section}/{metric}"] = score.get(key)
        values[f"{section}/worst_stratum_drop"] = (score.get("worst_stratum") or {}).get("mean_drop")
        flags = [f for f in arm["flagged_turns"] if f["class"] == workload]
        if judged["n_turns"]:
            values[f"{section}/flagged"] = len({f["turn_id"] for f in flags})
        if any(f.get("confirmed") is not None for f in flags):
            values[f"{section}/confirmed"] = len({f["turn_id"] for f in flags if f.get("confirmed")})
    return values


def _params(document: DecisionDocument, arm: Mapping[str, Any], shown: Mapping[str, str]) -> dict[str, str]:
    """The constants. A value that MLflow would cut silently is replaced by its hash."""
    sections: dict[str, Any] = {
        "model": _pick(document["model"], "id revision weights_sha256 dtype provenance chat_template_sha256"),
        "kv": _pick(arm["kv"], "requested effective realisation layers_quantized layers_skipped scales"),
        "golden": _pick(document["golden"], "name version sha256 n_turns n_skipped"),
        "policy": _pick(document["policy"], "name sha256 rule hardest"),
        "engine": _pick(document["engine"], "name version device attention_backend args"),
        "sampling": document["sampling"],
        "score": {re.sub(r"[^\w.\- ]", "_", workload): name for workload, name in shown.items()},
    }
    flat = {f"{section}.{key}": value for section, values in sections.items() for key, value in values.items()}
    return {key: _param(value) for key, value in flat.items()}


def _param(value: Any) -> str:
    text = value if isinstance(value, str) else canonical(value)
    if len(text) <= MAX_PARAM:
        return text
    return f"sha256 {hashlib.sha256(text.encode()).hexdigest()} of {len(text)} characters, see decision.json"


def _tags(document: DecisionDocument, arm: Mapping[str, Any], log_texts: bool) -> dict[str, str]:
    """``kv.signoff_id``, ``kv.arm`` and ``kv.policy_sha256`` find a run again; ``kv.content_sha256`` says whether it is
    still what the folder holds (ids and times apart)."""
    kv, model = arm["kv"], document["model"]
    content = {key: value for key, value in document.items() if key not in ("run_id", "created_at")}
    decided = {} if arm["decision"] == "BASELINE" else {"kv.decision": arm["decision"]}
    return {
        **decided,
        "kv.requested": kv["requested"],
        "kv.effective": kv["effective"],
        "kv.realisation": kv["realisation"],
        "kv.signoff_id": document["run_id"],
        "kv.signoff_decision": document["decision"],
        "kv.arm": arm["name"],
        "kv.role": "candidate" if decided else "baseline",
        "kv.self_test": _flag(arm.get("self_test", False)),
        "kv.post_hoc": _flag(document["post_hoc"]),
        "kv.policy_sha256": document["policy"]["sha256"],
        "kv.content_sha256": digest([content, log_texts]),
        "model.id": model["id"],
        "model.revision": str(model["revision"]),
        "model.weights_sha256": model["weights_sha256"],
        "mlflow.runColor": _colour(document, arm),
        "mlflow.source.name": "kvquant_eval",
        "mlflow.note.content": note(document, arm),
    }


def _colour(document: DecisionDocument, arm: Mapping[str, Any]) -> str:
    shades = COLOURS[arm["decision"]]
    alike = [each["name"] for each in document["candidates"] if each["decision"] == arm["decision"]]
    return shades[alike.index(arm["name"]) % len(shades) if arm["name"] in alike else 0]


def _version(document: DecisionDocument, arm: Mapping[str, Any], scheme: str) -> VersionCard:
    """``hf://<id>@<revision>``; a local folder is known by the hash of its weights, as its revision is only a word."""
    model, kv, decision = document["model"], arm["kv"], Decision(arm["decision"])
    at = model["weights_sha256"] if scheme == "folder" else model["revision"] or model["weights_sha256"]
    bar = barred(document, arm)
    return VersionCard(
        model=registered_name(model["id"]),
        # a server refuses a source without a path, such as hf://gpt2@main
        source=f"{'hf' if scheme == 'hub' else scheme}://{'' if '/' in model['id'] else '/'}{model['id']}@{at}",
        alias="" if bar else _alias(kv),
        decision=decision,
        decided_at=document["created_at"],
        description=run_name(model, arm),
        tags={
            "kv_cache_dtype_requested": kv["requested"],
            "kv_cache_dtype_effective": kv["effective"],
            "kv_realisation": kv["realisation"],
            "kv_layers_skipped": canonical(kv.get("layers_skipped", [])),
            "kv_decision": decision,
            "validation_status": bar or VALIDATION.get(decision, "pending"),
            "model_revision": str(model["revision"]),
            "weights_sha256": model["weights_sha256"],
            "golden": f"{document['golden']['name']} {document['golden']['version']} {document['golden']['sha256']}",
            "policy_sha256": document["policy"]["sha256"],
            "signoff_id": document["run_id"],
            "decided_at": document["created_at"],
            "decides_alias": "" if bar else _alias(kv),
        },
    )


def registered_name(model: str) -> str:
    """The model's name in the registry, which takes neither ``/`` nor ``:``."""
    return model.replace("/", "--").replace(":", "-")


def _alias(kv: Mapping[str, Any]) -> str:
    """``kv-fp8-e4m3-approved``; where layers are skipped they are named, for that is another thing to serve."""
    skipped: Sequence[int] = kv.get("layers_skipped", [])
    layers = f"-skip-{'-'.join(spans(skipped))}" if skipped else ""
    return re.sub(r"[^A-Za-z0-9-]", "-", f"kv-{kv['requested']}{layers}-approved")


def _pick(values: Mapping[str, Any], keys: str) -> dict[str, Any]:
    return {key: values[key] for key in keys.split() if values.get(key) is not None}


def _flag(value: bool) -> str:
    return "true" if value else "false"
