"""Which arms a gate runs, and the ingredients that say when an arm's replays may be used again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvquant_eval.core.codec import to_data
from kvquant_eval.core.engine import EngineFacts
from kvquant_eval.core.ranges import LayerRanges
from kvquant_eval.core.records import Prepared, Replay, Role
from kvquant_eval.core.scales import LayerScales, ScaleSource
from kvquant_eval.core.settings import PlaceboKind, Settings
from kvquant_eval.core.stored import StoredLayer
from kvquant_eval.core.treatment import KVTreatment, Realisation

PLACEBO = KVTreatment(name="placebo", dtype="placebo", realisation=Realisation.REFERENCE)
REPEAT_ORDER = 1
"""Seed of the order in which the ``repeat`` control runs the blocks."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One treatment to run over the plan.

    ``baseline`` names the arm it is compared with (itself for a baseline); ``order_seed`` shuffles the blocks when set;
    ``accept`` lists engine settings that differ from the baseline on purpose; ``profile`` and ``profile_scales`` as in
    ``EngineSpec``.
    """

    name: str
    role: Role
    treatment: KVTreatment
    args: Mapping[str, Any]
    baseline: str
    order_seed: int | None = None
    accept: tuple[str, ...] = ()
    profile: tuple[str, ...] = ()
    profile_scales: tuple[LayerScales, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ArmRecord:
    """What an arm left behind. ``error`` is how its engine died, ``unfinished`` what is still to do (empty: nothing of
    the kind); ``counts`` as ``io.runfolder.count``, ``stored`` and ``ranges`` as in ``BlockResult``.
    """

    arm: Arm
    facts: EngineFacts | None
    replays: tuple[Replay, ...]
    counts: Mapping[str, float]
    error: str = ""
    unfinished: str = ""
    stored: tuple[StoredLayer, ...] = ()
    ranges: tuple[LayerRanges, ...] = ()


def plan_arms(settings: Settings) -> tuple[Arm, ...]:
    """Baseline, controls, candidates. Reference arms need an eager engine: where the user's is compiled, they are
    compared with an eager baseline of their own, ``baseline_eager``. The eager baseline takes the range profile.
    """
    args = dict(settings.engine.args)
    base = Arm(name="baseline", role=Role.BASELINE, treatment=settings.baseline, args=args, baseline="baseline")
    eager = base
    if not args.get("enforce_eager"):
        eager = replace(base, name="baseline_eager", args={**args, "enforce_eager": True}, baseline="baseline_eager")
    repeat = replace(base, name="repeat", role=Role.CONTROL, order_seed=REPEAT_ORDER)
    placebo = _jitter(eager) if settings.placebo is PlaceboKind.JITTER else _other_batch(base)
    candidates = [
        replace(
            eager if candidate.realisation is Realisation.REFERENCE else base,
            name=name,
            role=Role.CANDIDATE,
            treatment=candidate,
        )
        for name, candidate in settings.candidates.items()
    ]
    compared = (repeat, placebo, *candidates)
    needed = any(arm.baseline != base.name for arm in compared)
    arms = (base, *([eager] if needed else []), *compared)
    if not settings.report.range_profile:
        return arms
    formats = tuple(dict.fromkeys(name for kv in settings.candidates.values() for name in kv.formats))
    return tuple(replace(arm, profile=formats) if arm.name == eager.name else arm for arm in arms)


def with_scales(arms: Sequence[Arm], scales: tuple[LayerScales, ...]) -> tuple[Arm, ...]:
    """The arms with the scales of the checkpoint as their own, where they take them from there.

    The range profile looks under the scales of the candidates that have any range, where they agree on one a layer;
    else under unit scales.
    """
    given = tuple(_with_scales(arm, scales) for arm in arms)
    used = {arm.treatment.layer_scales for arm in given if arm.role is Role.CANDIDATE and arm.treatment.takes_scales}
    profile = used.pop() if len(used) == 1 else ()
    single = all(len(half) == 1 for layer in profile for half in (layer.k, layer.v))
    return tuple(replace(arm, profile_scales=profile) if arm.profile and single else arm for arm in given)


def _with_scales(arm: Arm, scales: tuple[LayerScales, ...]) -> Arm:
    kv = arm.treatment
    taken = kv.takes_scales and kv.scales is ScaleSource.CHECKPOINT
    return replace(arm, treatment=replace(kv, layer_scales=scales)) if taken else arm


def _jitter(eager: Arm) -> Arm:
    return replace(eager, name="placebo", role=Role.CONTROL, treatment=PLACEBO)


def _other_batch(base: Arm) -> Arm:
    """The placebo where hooks cannot run: half as many sequences a batch."""
    args = {**base.args, "max_num_seqs": max(1, int(base.args.get("max_num_seqs") or 256) // 2)}
    return replace(base, name="placebo", role=Role.CONTROL, args=args, accept=("scheduler_config.max_num_seqs",))


def ingredients(
    arm: Arm, settings: Settings, prepared: Prepared, plan_sha256: str, golden_sha256: str, code_sha256: str
) -> dict[str, Any]:
    """Everything that can change an arm's replays, its role included: an arm is never compared with itself.

    ``plan_sha256`` stands for the blocks, ``code_sha256`` for the code that runs inside the arm. The digest of the
    whole is the arm's fingerprint.
    """
    return {
        **({"profile": list(arm.profile)} if arm.profile else {}),
        **({"profile_scales": [to_data(each) for each in arm.profile_scales]} if arm.profile_scales else {}),
        "role": str(arm.role),
        "treatment": to_data(arm.treatment),
        "args": dict(arm.args),
        "order_seed": arm.order_seed,
        "engine": settings.engine.engine,
        "env": dict(settings.engine.env),
        "top_logprobs": settings.engine.top_logprobs,
        "model": [settings.model.id, settings.model.revision],
        "weights": prepared.weights_sha256,
        "config": prepared.config_sha256,
        "template": prepared.template_sha256,
        "trust_remote_code": settings.model.trust_remote_code,
        "device": prepared.device,
        "versions": dict(prepared.versions),
        "golden": golden_sha256,
        "plan": plan_sha256,
        "code": code_sha256,
    }


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What changed between two arms' ingredients, a short clause each: ``versions.vllm: 0.31.0, now 0.32.0``."""
    left, right = _flat(then), _flat(now)
    return [
        f"{key}: {_short(left.get(key))}, now {_short(right.get(key))}"
        for key in sorted(left.keys() | right.keys())
        if left.get(key) != right.get(key)
    ]


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def _short(value: Any) -> str:
    """A value in a message: hashes by their first digits, the rest cut."""
    text = str(value)
    return text[:12] if len(text) == 64 else text[:60]
