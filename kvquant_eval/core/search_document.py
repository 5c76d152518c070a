"""``search.json`` as plain data: what was ranked, chosen and confirmed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvquant_eval.core.codec import to_data
from kvquant_eval.core.document import policy_sha256
from kvquant_eval.core.mixed import keeping, native_of
from kvquant_eval.core.records import Decision, GoldenSet, Prepared
from kvquant_eval.core.scales import ScaleSource
from kvquant_eval.core.search import SENSITIVE, Found, Pass, Sensitivity
from kvquant_eval.core.settings import Settings
from kvquant_eval.core.treatment import KVTreatment, Realisation

SCHEMA_VERSION = 1
LIKELY = "the fewest bytes that are likely to pass on other conversations too"
PASSED = "the fewest bytes that pass here; none is likely to pass on other conversations"


@dataclass(frozen=True, kw_only=True)
class Searched:
    """What a search found out, on which golden set and model. ``kv`` is the candidate's dtype as it stands beside the
    model id; ``floors``: the KL (nats a token) of the placebo on the folds that ranked and on those that chose;
    ``all_kl``: of the candidate itself on the former; ``plain``: bytes a token of the baseline; ``passes``: of both.
    """

    treatment: KVTreatment
    kv: Mapping[str, str]
    golden: GoldenSet
    prepared: Prepared
    plain: float
    all_kl: float
    sensitivity: tuple[Sensitivity, ...]
    found: Found
    floors: tuple[float | None, float | None]
    passes: tuple[int, int]


def search_document(
    settings: Settings, searched: Searched, confirm: Mapping[str, Any] | None, notes: Sequence[str]
) -> dict[str, Any]:
    """``confirm`` is the ``decision.json`` of the gate on held-out conversations, whose decision it is; None where
    nothing was chosen, or nothing is confirmed yet.
    """
    found = searched.found
    decision, reasons = _decided(searched, confirm)
    return {
        "schema_version": SCHEMA_VERSION,
        "decision": str(decision),
        "exit_code": decision.exit_code,
        "reasons": reasons,
        "model": {
            "id": settings.model.id,
            "revision": settings.model.revision,
            "weights_sha256": searched.prepared.weights_sha256,
        },
        "kv": dict(searched.kv),
        "golden": {key: getattr(searched.golden, key) for key in ("name", "version", "sha256")},
        "policy": {"name": settings.policy.name, "sha256": policy_sha256(settings.policy)},
        "folds": {
            part: list(getattr(settings.search, f"{part}_folds")) for part in ("sensitivity", "choose", "confirm")
        },
        "passes": {
            "sensitivity": searched.passes[0],
            "choose": searched.passes[1],
            "confirm": len(confirm["arms"]) if confirm else 0,
        },
        "unit": str(settings.search.unit),
        "plain_bytes_per_token": searched.plain,
        "floors": list(searched.floors),
        "all_kl": searched.all_kl,
        "sensitivity": [
            {**to_data(each), "alone": _pass(each.alone), "spared": _pass(each.spared)} for each in searched.sensitivity
        ],
        "curve": {strategy: [_pass(each) for each in mine] for strategy, mine in found.curve.items()},
        "chosen": _pass(found.chosen) if found.chosen else None,
        "standard": (LIKELY if found.sure else PASSED) if found.chosen else None,
        "flags": flags(searched),
        "confirm": _confirmed(confirm, notes) if confirm else None,
    }


def flags(searched: Searched) -> str:
    """What to give vLLM for the chosen set; empty where there is none, where no engine dtype stores K and V so, and
    where the scales are others than vLLM takes by itself.
    """
    chosen, treatment = searched.found.chosen, searched.treatment
    if chosen is None or treatment.scales is not ScaleSource.CHECKPOINT:
        return ""
    mixed = keeping(treatment, chosen.kept, treatment.name)
    native = mixed if treatment.realisation is Realisation.NATIVE else native_of(mixed, treatment.name)
    if native is None:
        return ""
    skipped = " ".join(native.skip_layers)
    return f"--kv-cache-dtype {native.dtype}" + (f" --kv-cache-dtype-skip-layers {skipped}" if skipped else "")


def _decided(searched: Searched, confirm: Mapping[str, Any] | None) -> tuple[Decision, list[str]]:
    """Nothing is promoted by what chose it: without a gate on other conversations it is INCONCLUSIVE, and where nothing
    was chosen it is what the pass with the most units in BF16 came to.
    """
    if confirm:
        return Decision(confirm["decision"]), list(confirm["reasons"])
    if searched.found.chosen:
        return Decision.INCONCLUSIVE, ["what was chosen is not confirmed on other conversations"]
    return _most(searched.found).decision, [_nothing(searched)]


def _nothing(searched: Searched) -> str:
    """Why nothing was chosen: the most that was kept, and what it still lacked."""
    most = _most(searched.found)
    bound = "no bound" if most.worst_bound is None else f"{most.worst_bound:.2f} points"
    units = len(searched.sensitivity)
    times = "" if most.reach is None else f", {most.reach:.2f} times its margin"
    kept = f"with {len(most.kept)} of {units} units in BF16"
    return f"no mixed precision tried passes: {kept} {most.worst} still reaches {bound}{times} ({most.decision})"


def _pass(each: Pass) -> dict[str, Any]:
    """Without what each turn adds to its KL: that is many numbers, and for the ranking only."""
    return {key: value for key, value in to_data(each).items() if key != "shares"}


def _most(found: Found) -> Pass:
    return max(found.curve[SENSITIVE], key=lambda each: len(each.kept))


def _confirmed(confirm: Mapping[str, Any], notes: Sequence[str]) -> dict[str, Any]:
    return {
        "run_id": confirm["run_id"],
        "decision": confirm["decision"],
        "n_turns": confirm["golden"]["n_turns"],
        "notes": list(notes),
        "candidates": [_candidate(each) for each in confirm["candidates"]],
    }


def _candidate(candidate: Mapping[str, Any]) -> dict[str, Any]:
    """A candidate of the confirming gate: its bytes, and every gating score."""
    kv = candidate["kv"]
    return {
        "name": candidate["name"],
        "decision": candidate["decision"],
        "requested": kv["requested"],
        "realisation": kv["realisation"],
        "bytes_per_token": kv.get("nominal_bytes_per_token", kv.get("bytes_per_token")),
        "scores": [
            {
                "class": workload,
                "score": name,
                "drop": score["mean_drop"],
                "bound": score["ci_upper"],
                "margin": score["margin"],
                "verdict": judged["verdict"],
            }
            for workload, judged in candidate["classes"].items()
            for name, score in judged["scores"].items()
            if score["role"] == "gate"
        ],
    }
