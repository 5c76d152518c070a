"""What a decision is about, and for how long it speaks: the terms under which a person may sign it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvquant_eval.core.treatment import Realisation


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What was gated. As soon as one of these is another, the decision says nothing.

    ``layers_skipped``: layers whose K and V stay as the model computes them; ``bytes_per_token``: K and V of all layers
    of one worker, None where nothing was read back; ``golden``: name, version and sha256 of the set.
    """

    model: str
    revision: str | None
    weights_sha256: str
    kv_requested: str
    kv_effective: str
    kv_realisation: str
    layers_skipped: tuple[int, ...]
    bytes_per_token: float | None
    engine: str
    engine_version: str | None
    attention_backend: str
    device: str
    policy: str
    policy_sha256: str
    golden: str


def terms(document: Mapping[str, Any], candidate: Mapping[str, Any]) -> Terms:
    """The terms of one candidate's decision, out of ``decision.json``."""
    model, kv, engine, golden = document["model"], candidate["kv"], document["engine"], document["golden"]
    return Terms(
        model=model["id"],
        revision=model["revision"],
        weights_sha256=model["weights_sha256"],
        kv_requested=kv["requested"],
        kv_effective=kv["effective"],
        kv_realisation=kv["realisation"],
        layers_skipped=tuple(kv.get("layers_skipped", ())),
        bytes_per_token=kv.get("bytes_per_token"),
        engine=engine["name"],
        engine_version=engine["version"],
        attention_backend=engine["attention_backend"],
        device=engine["device"],
        policy=document["policy"]["name"],
        policy_sha256=document["policy"]["sha256"],
        golden=f"{golden['name']} {golden['version']} {golden['sha256']}",
    )


def barred(document: Mapping[str, Any], candidate: Mapping[str, Any]) -> str:
    """Why a decision may move no alias and is nothing to serve by, as one word (empty: it is)."""
    bars = {
        "self_test": candidate["self_test"],
        "post_hoc": document["post_hoc"],
        "reference": candidate["kv"]["realisation"] == Realisation.REFERENCE,
        "part_of_the_golden_set": "folds" in document["golden"],
    }
    return next((name for name, on in bars.items() if on), "")


def vllm_flags(kv: Mapping[str, Any]) -> str:
    """What makes a vLLM server store K and V as a native candidate did; empty for a reference, which none stores, and
    where nothing was read back. ``kv`` is a candidate's in ``decision.json``.
    """
    if kv["realisation"] != Realisation.NATIVE or "layers_skipped" not in kv:
        return ""
    skipped = " ".join(map(str, kv["layers_skipped"]))
    return f"--kv-cache-dtype {kv['requested']}" + (f" --kv-cache-dtype-skip-layers {skipped}" if skipped else "")
