"""``decision.json`` as plain data: what other tools read. The schema is versioned."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from kvquant_eval.core.arms import ArmRecord
from kvquant_eval.core.attest import (
    bytes_per_token,
    effective_dtype,
    extremes,
    layers_quantized,
    quantized_scales,
    settings_that_differ,
)
from kvquant_eval.core.attribution import as_data as attribution_data
from kvquant_eval.core.codec import digest, to_data
from kvquant_eval.core.diagnosis import Diagnosis
from kvquant_eval.core.engine import EngineFacts
from kvquant_eval.core.fidelity import as_data as fidelity_data
from kvquant_eval.core.judge import Judgement
from kvquant_eval.core.policy import Policy
from kvquant_eval.core.range_profile import as_data as range_data
from kvquant_eval.core.records import Decision, GoldenSet, Prepared, Role
from kvquant_eval.core.result_document import degeneration_data, result_data
from kvquant_eval.core.results import CandidateResult
from kvquant_eval.core.scales import ScaleSource
from kvquant_eval.core.settings import Settings
from kvquant_eval.core.size import nominal_bytes
from kvquant_eval.core.soundness import is_self_test
from kvquant_eval.core.treatment import KVTreatment, Realisation

SCHEMA_VERSION = 1


def policy_sha256(policy: Policy) -> str:
    """sha256 over every limit and role of the policy."""
    return digest(to_data(policy))


def document(
    judgement: Judgement,
    settings: Settings,
    prepared: Prepared,
    golden: GoldenSet,
    post_hoc: bool,
    diagnosis: Diagnosis,
    power: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The decision without what belongs to one run only (id, times): equal replays and policy give equal bytes.

    ``post_hoc``: the policy is not the one that was hashed before the first token. ``identity_sha256`` is equal for
    runs that ask the same question: model, golden set, policy, engine version and candidates. The
    ``diagnosis`` is shown beside the decision, which was made without it. ``power`` is what was foreseen before the
    first token (``core.power.as_data``; None in runs that were begun before that was kept).
    """
    arms = judgement.arms
    base = arms["baseline"]
    controls = {n: judgement.results[n] for n, r in arms.items() if r.arm.role is Role.CONTROL}
    candidates = [
        _candidate(record, arms[record.arm.baseline], _compared(judgement, settings.policy, name, controls))
        for name, record in arms.items()
        if record.arm.role is Role.CANDIDATE
    ]
    return {
        "decision": str(judgement.decision),
        "exit_code": judgement.decision.exit_code,
        "reasons": list(judgement.reasons),
        "post_hoc": post_hoc,
        "power": None if power is None else dict(power),
        "identity_sha256": _identity(settings, prepared, golden),
        "model": _model(judgement, settings, prepared),
        "engine": _engine(base, settings, prepared),
        "golden": _golden(golden, prepared, settings),
        "policy": _policy(settings.policy),
        "sampling": to_data(settings.sampling),
        "replay": to_data(settings.replay),
        "baseline": {"kv": _kv(base, None)},
        "controls": {n: {"kv": _kv(arms[n], base), **_compared(judgement, settings.policy, n, {})} for n in controls},
        "candidates": candidates,
        "ranking": _ranking(candidates),
        "free_running": _free_running(judgement),
        "fidelity": {
            name: {"baseline": arms[name].arm.baseline, **fidelity_data(turns)}
            for name, turns in diagnosis.fidelity.items()
        },
        "attribution": attribution_data(diagnosis.attribution),
        **({"ranges": range_data(diagnosis.ranges)} if diagnosis.ranges else {}),
        "arms": {n: _arm(r, arms[r.arm.baseline]) for n, r in arms.items()},
    }


def _compared(
    judgement: Judgement, policy: Policy, name: str, controls: Mapping[str, CandidateResult]
) -> dict[str, Any]:
    """What was found out of an arm, with ``controls`` beside its scores."""
    return {
        **result_data(judgement.results[name], policy, controls, judgement.noise),
        "degeneration": degeneration_data(judgement.degeneration[name]),
    }


def _free_running(judgement: Judgement) -> dict[str, Any]:
    return {
        name: {
            workload: {score: to_data(found) for score, found in scores.items()} for workload, scores in classes.items()
        }
        for name, classes in judgement.compounding.items()
        if classes
    }


def _model(judgement: Judgement, settings: Settings, prepared: Prepared) -> dict[str, Any]:
    """The model, with the dtypes of every arm beside its id."""
    facts = judgement.arms["baseline"].facts
    return {
        "id": settings.model.id,
        "revision": settings.model.revision,
        "weights_sha256": prepared.weights_sha256,
        "dtype": facts.model_dtype if facts else None,
        "provenance": settings.model.provenance,
        "trust_remote_code": settings.model.trust_remote_code,
        "chat_template_sha256": prepared.template_sha256,
        "kv": {n: kv_names(r) for n, r in judgement.arms.items()},
    }


def _golden(golden: GoldenSet, prepared: Prepared, settings: Settings) -> dict[str, Any]:
    return {
        "name": golden.name,
        "version": golden.version,
        "sha256": golden.sha256,
        "n_turns": len(golden.turns),
        "n_skipped": sum(bool(turn.skip) for turn in prepared.turns),
        **({"folds": list(settings.folds)} if settings.folds else {}),
    }


def _policy(policy: Policy) -> dict[str, Any]:
    """The policy's name, hash and limits; the limits of each score stand beside its result."""
    limits: dict[str, Any] = to_data(policy)
    del limits["scores"]
    return {"name": limits.pop("name"), "sha256": policy_sha256(policy), "hardest": limits.pop("hardest"), **limits}


def _ranking(candidates: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The candidates that may be promoted, the fewest bytes a token first: those that a reference format itself takes.
    One whose bytes are not known comes last.
    """
    sizes = {
        each["name"]: each["kv"].get("nominal_bytes_per_token", each["kv"].get("bytes_per_token"))
        for each in candidates
        if each["decision"] == Decision.PROMOTE
    }
    order = sorted(sizes, key=lambda name: (math.inf if sizes[name] is None else sizes[name], name))
    return [{"name": name, "bytes_per_token": sizes[name]} for name in order]


def _candidate(record: ArmRecord, baseline: ArmRecord, result: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": record.arm.name,
        "self_test": is_self_test(record, baseline),
        "baseline": baseline.arm.name,
        "kv": _kv(record, baseline),
        **result,
    }


def _identity(settings: Settings, prepared: Prepared, golden: GoldenSet) -> str:
    treatments = {name: _asked(treatment) for name, treatment in settings.candidates.items()}
    weights = [settings.model.id, settings.model.revision, prepared.weights_sha256, prepared.versions.get("vllm")]
    turns = [golden.sha256, *([list(settings.folds)] if settings.folds else [])]
    return digest([weights, *turns, policy_sha256(settings.policy), _asked(settings.baseline), treatments])


def _asked(treatment: KVTreatment) -> dict[str, Any]:
    """The treatment without what is not asked for: a question stays the same when treatments can say more."""
    usual = {"k": "", "v": "", "scales": ScaleSource.CHECKPOINT, "layer_scales": []}
    return {key: value for key, value in to_data(treatment).items() if key not in usual or value != usual[key]}


def kv_names(record: ArmRecord) -> dict[str, str]:
    """Requested and effective dtype and the realisation, as they stand beside the model id everywhere."""
    treatment: KVTreatment = record.arm.treatment
    return {
        "requested": treatment.requested,
        "effective": effective_dtype(record.facts) if record.facts else "not read back",
        "realisation": str(treatment.realisation),
    }


def _kv(record: ArmRecord, baseline: ArmRecord | None) -> dict[str, Any]:
    """Capacity is in tokens. A reference format stores BF16, so it saves nothing here: ``nominal_bytes_per_token`` is
    what the format itself takes.
    """
    facts = record.facts
    if facts is None:
        return dict(kv_names(record))
    quantized, plain = layers_quantized(facts)
    size = bytes_per_token(facts)
    first = baseline.facts if baseline else None
    return {
        **kv_names(record),
        "scales": _scales(record.arm.treatment, facts),
        "layers_quantized": len(quantized),
        "layers_skipped": plain if quantized else [],
        "bytes_per_token": size,
        **_nominal(record, first),
        "bytes_ratio": _ratio(size, bytes_per_token(first) if first else 0.0),
        "capacity_tokens": facts.capacity_tokens,
        "capacity_ratio": _ratio(facts.capacity_tokens, first.capacity_tokens if first else 0.0),
        "second_rounding_share": facts.second_rounding[0] / facts.second_rounding[1]
        if facts.second_rounding[1]
        else 0.0,
    }


def _nominal(record: ArmRecord, plain: EngineFacts | None) -> dict[str, float]:
    if plain is None or record.arm.treatment.realisation is not Realisation.REFERENCE:
        return {}
    size = nominal_bytes(record.arm.treatment, plain)
    return {} if size is None else {"nominal_bytes_per_token": size}


def _ratio(size: float, of: float) -> float:
    """1.0 where there is nothing to compare with."""
    return size / of if of else 1.0


def _scales(treatment: KVTreatment, facts: EngineFacts) -> dict[str, Any]:
    """Where the scales of the quantized layers come from, and the least and largest of them; nothing else is scaled."""
    k, v = (quantized_scales(facts, half) for half in ("k", "v"))
    unit = {*k, *v} <= {1.0}
    return {"kind": "unit" if unit else str(treatment.scales), "k": extremes(k), "v": extremes(v)}


def _engine(base: ArmRecord, settings: Settings, prepared: Prepared) -> dict[str, Any]:
    facts = base.facts
    return {
        "name": facts.engine if facts else settings.engine.engine,
        "version": facts.version if facts else prepared.versions.get("vllm"),
        "device": prepared.device,
        "attention_backend": _backends(facts) if facts else "",
        "args": dict(settings.engine.args),
        "settings": dict(facts.settings) if facts else {},
        "versions": dict(prepared.versions),
    }


def _arm(record: ArmRecord, baseline: ArmRecord) -> dict[str, Any]:
    """How an arm ran. ``attested`` is what its workers said, None where nothing was read back; ``differs`` what is not
    its KV treatment and yet not as in its baseline: [the baseline's, its own] by name.
    """
    counts = dict(record.counts)
    prompt, seconds = counts["prompt_tokens"], counts["seconds"]
    return {
        "role": str(record.arm.role),
        "baseline": baseline.arm.name,
        **kv_names(record),
        "attested": _attested(record),
        "differs": _differs(record.facts, baseline.facts),
        **counts,
        "replays": len(record.replays),
        "prefix_cache_share": counts["cached_tokens"] / prompt if prompt else 0.0,
        "decoded_tokens_per_s": counts["decoded_tokens"] / seconds if seconds else 0.0,
        "outcomes": _outcomes(record),
        "error": record.error.splitlines()[0] if record.error else "",
    }


def _attested(record: ArmRecord) -> dict[str, Any] | None:
    """``layers`` counts those with attention; capacity is in tokens, bytes are those of one worker."""
    facts = record.facts
    if facts is None:
        return None
    quantized, plain = layers_quantized(facts)
    return {
        "engine": facts.engine,
        "version": facts.version,
        "device": facts.device,
        "model_dtype": facts.model_dtype,
        "attention_backend": _backends(facts),
        "workers": len(facts.layers),
        "layers": len(quantized) + len(plain),
        "layers_quantized": len(quantized),
        "layers_skipped": plain if quantized else [],
        "scales": _scales(record.arm.treatment, facts),
        "bytes_per_token": bytes_per_token(facts),
        "capacity_tokens": facts.capacity_tokens,
    }


def _backends(facts: EngineFacts) -> str:
    return "+".join(sorted({layer.attention for worker in facts.layers for layer in worker}))


def _differs(facts: EngineFacts | None, baseline: EngineFacts | None) -> dict[str, list[Any]]:
    if facts is None or baseline is None:
        return {}
    return {key: list(sides) for key, sides in settings_that_differ(baseline, facts).items()}


def _outcomes(record: ArmRecord) -> dict[str, int]:
    counted: dict[str, int] = {}
    for replay in record.replays:
        counted[str(replay.outcome)] = counted.get(str(replay.outcome), 0) + 1
    return dict(sorted(counted.items()))
