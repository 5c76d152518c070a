"""Engine facts to findings: did each arm run the dtype it was asked for, and does nothing else differ?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kvquant_eval.core.codec import DataError, nearest
from kvquant_eval.core.engine import EngineFacts, LayerFacts
from kvquant_eval.core.records import Finding
from kvquant_eval.core.treatment import (
    SLIDING_WINDOW,
    UNQUANTIZED,
    KVTreatment,
    Realisation,
    canonical_dtype,
    skipped_index,
    together,
)

NATIVE_DTYPES = (
    "auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla", "nvfp4_ds_mla",
    "turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc", "ultraquant_4bit",
    "int4_per_token_head", "int8_per_token_head", "fp8_per_token_head", "nvfp4", "nvfp4_4over6",
)  # fmt: skip
"""vLLM 0.32, config/cache.py: CacheDType."""

ALLOWED: Mapping[str, frozenset[str]] = {
    "CPU_ATTN": frozenset({"auto", "bfloat16", "float16", "fp8_e4m3", "fp8_e5m2"}),
    "FLASH_ATTN": frozenset({"auto", "bfloat16", "float16", "fp8_e4m3"}),
    "FLASHINFER": frozenset({"auto", "bfloat16", "float16", "fp8_e4m3", "fp8_e5m2", "nvfp4", "nvfp4_4over6"}),
    "TRITON_ATTN": frozenset(
        {"auto", "bfloat16", "float16", "fp8_e4m3", "fp8_e5m2"}
        | {"int4_per_token_head", "int8_per_token_head", "fp8_per_token_head"}
    ),
}
"""Which cache dtypes a backend really implements; backends that are not listed are judged by the engine's own checks.
The CPU backend starts with the others without a word and decodes wrong tokens (seen on vLLM 0.32)."""


def refuse_impossible(treatment: KVTreatment, platform: str) -> None:
    """Raise DataError for a native dtype that is known not to work on ``platform`` (``cpu`` or ``gpu``), before an
    engine starts. Reference formats are checked where they live, by the preparer.
    """
    if treatment.realisation is Realisation.REFERENCE:
        return
    where = f"kv.{treatment.name}.dtype"
    if treatment.dtype not in NATIVE_DTYPES:
        raise DataError(
            f"{where}: a KV dtype of vLLM, got {treatment.dtype!r}; {nearest(treatment.dtype, NATIVE_DTYPES)}"
        )
    if platform == "cpu" and canonical_dtype(treatment.dtype) not in ALLOWED["CPU_ATTN"]:
        raise DataError(
            f"{where}: a dtype that vLLM's CPU backend implements ({', '.join(sorted(ALLOWED['CPU_ATTN']))}), got "
            f"{treatment.dtype!r}, which it would accept and decode wrongly; use a GPU or a reference format"
        )


def effective_dtype(facts: EngineFacts) -> str:
    """What the layers really store, e.g. ``fp8_e4m3``, ``int8 in bfloat16`` or ``bfloat16+fp8_e4m3`` when layers
    differ.
    """
    return "+".join(sorted({_effective(layer) for layer in _layers(facts)})) or "none"


def layers_quantized(facts: EngineFacts) -> tuple[list[int], list[int]]:
    """Indices of the layers with and without a quantized cache (reference formats count as quantized)."""
    quantized = {layer.index for layer in _layers(facts) if _is_quantized(layer)}
    return sorted(quantized), sorted({layer.index for layer in _layers(facts)} - quantized)


def bytes_per_token(facts: EngineFacts) -> float:
    """K and V of all layers of one worker, in bytes."""
    return sum(layer.bytes_per_token for layer in facts.layers[0]) if facts.layers else 0.0


def judge_arm(arm: str, treatment: KVTreatment, facts: EngineFacts) -> list[Finding]:
    """What is wrong with an arm by itself: dtype per layer, coverage, scales, backend."""
    layers = list(_layers(facts))
    if not layers:
        return [_invalid(arm, "no attention layer could be read back")]
    return [
        *_coverage(arm, treatment, layers),
        *(_scales(arm, layers) or _asked_scales(arm, treatment, facts) or _same_scales(arm, layers)),
        *_backends(arm, layers),
    ]


def judge_baseline(arm: str, facts: EngineFacts) -> list[Finding]:
    """A quantized baseline would hide what quantization does."""
    quantized, _ = layers_quantized(facts)
    what = f"a baseline must not be quantized, {len(quantized)} layers run {effective_dtype(facts)}"
    return [_invalid(arm, what)] if quantized else []


def judge_pair(arm: str, baseline: EngineFacts, facts: EngineFacts, accepted: Iterable[str] = ()) -> list[Finding]:
    """Every difference between an arm and its baseline that is not the KV treatment."""
    accepted = set(accepted)
    return [
        Finding(
            where=arm,
            what=f"{key} differs from the baseline: {left!r} against {right!r}"
            + (" (accepted)" if key in accepted else "; list it in gate.accept_differences if it is meant"),
            invalid=key not in accepted,
        )
        for key, (left, right) in settings_that_differ(baseline, facts).items()
    ]


def settings_that_differ(baseline: EngineFacts, facts: EngineFacts) -> dict[str, tuple[Any, Any]]:
    """What is not the KV treatment and not the same in both, by name: (the baseline's, the arm's), None for none."""
    left, right = _identity(baseline), _identity(facts)
    return {
        key: (left.get(key), right.get(key))
        for key in sorted(left.keys() | right.keys())
        if left.get(key) != right.get(key)
    }


def _coverage(arm: str, treatment: KVTreatment, layers: Sequence[LayerFacts]) -> list[Finding]:
    """Each layer runs the requested dtype, or is left alone because it was listed.

    Which layers have a sliding window is not read back: with ``sliding_window`` any layer may be left alone.
    """
    indices = {layer.index for layer in layers}
    windowed = SLIDING_WINDOW in treatment.skip_layers
    problems = [
        f"skip_layers entry {entry!r} matches no layer (0..{len(indices) - 1})"
        for entry in treatment.skip_layers
        if skipped_index(entry) not in {*indices, None}
    ]
    wrong: dict[str, list[int]] = {}
    for layer in layers:
        wanted, runs = _wanted(treatment, layer.index), _effective(layer)
        whole = str(layer.index) in treatment.skip_layers
        if runs == wanted or ((windowed or whole) and not _is_quantized(layer)):
            continue
        if whole:
            problems.append(f"layer {layer.index} should be skipped, runs {runs}")
        else:
            wrong.setdefault(runs, []).append(layer.index)
    problems += [
        f"requested {treatment.requested}, but {len(at)} of {len(layers)} layers run {dtype} (first: layer {at[0]})"
        for dtype, at in sorted(wrong.items())
    ]
    if treatment.requested not in UNQUANTIZED and not any(_is_quantized(layer) for layer in layers):
        problems.append(f"requested {treatment.requested}, but no layer is quantized")
    return [_invalid(arm, problem) for problem in problems]


def _wanted(treatment: KVTreatment, layer: int) -> str:
    """What ``_effective`` must say of this layer. ``auto`` means: as the model computes, not quantized."""
    asked = together(*treatment.at(layer))
    if treatment.realisation is Realisation.REFERENCE and asked != "bfloat16":
        return f"{asked} in bfloat16"
    return "bfloat16" if asked == "auto" else asked


def _effective(layer: LayerFacts) -> str:
    """The cache dtype's name, unless the storage contradicts it (quantized caches are stored as bytes)."""
    named = canonical_dtype(layer.kv_dtype)
    storage = canonical_dtype(layer.storage)
    stored = storage if named in UNQUANTIZED or storage in UNQUANTIZED else named
    return f"{layer.format} in {stored}" if layer.format else stored


def _is_quantized(layer: LayerFacts) -> bool:
    return bool(layer.format) or _effective(layer) not in UNQUANTIZED


def _scales(arm: str, layers: Sequence[LayerFacts]) -> list[Finding]:
    """Scales that cannot be right; the tensor and its float copy must agree."""
    findings = []
    for layer in layers:
        pairs = (("k", layer.k_scale, layer.k_scale_tensor), ("v", layer.v_scale, layer.v_scale_tensor))
        for name, *copies in pairs:
            given = [scale for scale in copies if scale is not None]
            wrong = [scale for scale in given if not 0 < scale < math.inf]
            where = f"layer {layer.index}: {name}_scale is"
            if wrong:
                findings.append(_invalid(arm, f"{where} {wrong[0]}"))
            elif given and not math.isclose(given[0], given[-1], rel_tol=1e-6):
                findings.append(_invalid(arm, f"{where} {given[0]} in one place and {given[-1]} in another"))
    return findings


def _asked_scales(arm: str, treatment: KVTreatment, facts: EngineFacts) -> list[Finding]:
    """Every scale of a quantized layer is the one that was asked for, or stands in the checkpoint: an engine that lost
    one runs 1.0 without a word.
    """
    wrong = list(_strange_scales(treatment, facts))
    found = f"{len(wrong)} scales are not those that were asked for ({treatment.scales}), lost or changed on the way"
    return [_invalid(arm, f"{found}: {wrong[0]}")] if wrong else []


def _strange_scales(treatment: KVTreatment, facts: EngineFacts) -> Iterable[str]:
    for index in layers_quantized(facts)[0]:
        asked = treatment.scales_at(index)
        if asked is None:
            if treatment.layer_scales:
                yield f"layer {index}: none for it"
            continue
        for half, name, wanted in zip(("k", "v"), treatment.at(index), (asked.k, asked.v), strict=True):
            found = running_scales(facts, index, half)
            if name not in UNQUANTIZED and not _same(found, wanted):
                yield f"layer {index}: {half}_scale is {_listed(found)} and should be {_listed(wanted)}"


def running_scales(facts: EngineFacts, index: int, half: str) -> tuple[float, ...]:
    """What K (``half``: ``k``) or V of a layer is divided by, in the order of the workers."""
    mine = [layer for layer in _layers(facts) if layer.index == index]
    alone = [getattr(layer, f"{half}_scale") for layer in mine]
    several = [scale for layer in mine for scale in getattr(layer, f"{half}_scales")]
    return tuple(several or [scale for scale in alone if scale is not None])


def quantized_scales(facts: EngineFacts, half: str) -> list[float]:
    """What K (``half``: ``k``) or V of all quantized layers is divided by."""
    return [scale for index in layers_quantized(facts)[0] for scale in running_scales(facts, index, half)]


def extremes(values: Iterable[float]) -> list[float]:
    """Least and largest of the finite values (JSON has no others); empty where there is none."""
    finite = [value for value in values if math.isfinite(value)]
    return [min(finite), max(finite)] if finite else []


def _same(found: Sequence[float], wanted: Sequence[float]) -> bool:
    """One for all, or one a head, which stands on several workers where there are more of them than heads."""
    times, rest = divmod(len(found), len(wanted))
    expected = [scale for scale in wanted for _ in range(times)]
    return (
        not rest and times > 0 and all(math.isclose(a, b, rel_tol=1e-6) for a, b in zip(found, expected, strict=True))
    )


def _listed(scales: Sequence[float]) -> str:
    return "/".join(f"{scale:g}" for scale in scales) or "none"


def _same_scales(arm: str, layers: Sequence[LayerFacts]) -> list[Finding]:
    """Calibrated scales differ between layers; one that is the same in all of them is a stub (llm-compressor#2117)."""
    if len({layer.index for layer in layers}) < 2:
        return []
    found = {"k_scale": {layer.k_scale for layer in layers}, "v_scale": {layer.v_scale for layer in layers}}
    same = [f"{name} {value}" for name, values in found.items() if len(values) == 1 for value in values - {None, 1.0}]
    what = f"{' and '.join(same)} in every layer: no calibration gives that"
    return [Finding(where=arm, what=what, invalid=False)] if same else []


def _backends(arm: str, layers: Sequence[LayerFacts]) -> list[Finding]:
    return [
        _invalid(arm, f"{backend} does not implement {dtype}")
        for backend, dtype in sorted({(layer.backend, canonical_dtype(layer.kv_dtype)) for layer in layers})
        if backend in ALLOWED and dtype not in ALLOWED[backend]
    ]


def _identity(facts: EngineFacts) -> dict[str, Any]:
    """Everything that must be equal in all arms, by name."""
    layers = list(_layers(facts))
    return {
        "engine": f"{facts.engine} {facts.version}",
        "device": facts.device,
        "model_dtype": facts.model_dtype,
        "block_size": facts.block_size,
        "workers": len(facts.layers),
        "layers": sorted({layer.index for layer in layers}),
        "attention_backend": sorted({layer.attention for layer in layers}),
        **facts.settings,
        **{f"versions.{name}": value for name, value in facts.versions.items()},
    }


def _layers(facts: EngineFacts) -> Iterable[LayerFacts]:
    return (layer for worker in facts.layers for layer in worker)


def _invalid(arm: str, what: str) -> Finding:
    return Finding(where=arm, what=what, invalid=True)
