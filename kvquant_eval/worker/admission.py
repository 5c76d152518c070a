"""Will vLLM take this model with these arguments and treatments? Asked of vLLM itself, without starting an engine."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from vllm import ModelRegistry
from vllm.config import ModelConfig, VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.platforms import current_platform

from kvquant_eval.core.codec import DataError, nearest
from kvquant_eval.core.treatment import KVTreatment, Realisation, canonical_dtype, is_skip_entry, skipped_index
from kvquant_eval.worker.chat import wants_code
from kvquant_eval.worker.errors import clause, message, printable
from kvquant_eval.worker.folder import read_object
from kvquant_eval.worker.formats import FORMATS

_ONE_FOLDER = "set model.path: weights, tokenizer and configuration come from one folder"
OWN_ARGS = {
    "model": "set model.id and model.path",
    "revision": "set model.revision",
    "model_weights": _ONE_FOLDER,
    "tokenizer": _ONE_FOLDER,
    "hf_config_path": _ONE_FOLDER,
    "trust_remote_code": "set model.trust_remote_code",
    "kv_cache_dtype": "choose candidates with kv=[...]",
    "kv_cache_dtype_skip_layers": "set kv.NAME.skip_layers",
    "worker_extension_cls": "remove it",
    "logits_processors": "remove it",
    "enable_trace_replay": "remove it",
    "logprobs_mode": "remove it: scores need raw log probabilities",
    "disable_log_stats": "remove it: preemptions are counted",
}
"""Engine arguments that the gate itself sets, and what to do instead."""

_PLAIN = (bool, int, float, str, bool | None, int | None, float | None, str | None)
_OTHER_WEIGHTS = ("dummy", "pt", "npcache")
"""Load formats that do not read the safetensors which were hashed: random weights, and pickles."""

_LISTED = "python -c 'import vllm; print(vllm.ModelRegistry.get_supported_archs())' lists them"


@dataclass(frozen=True, kw_only=True)
class Admitted:
    """What vLLM makes of the model: ``context`` in tokens, prompt and reply together; ``vocabulary`` in token ids."""

    context: int
    vocabulary: int


def admit(
    folder: Path, args: Mapping[str, Any], treatments: Sequence[KVTreatment], trust_remote_code: bool
) -> Admitted:
    """Build vLLM's configuration for every treatment (the baseline first), and check what vLLM would only find out
    later or never.

    Raises DataError. vLLM looks into an architecture once a machine (10 s) and keeps the answer in its own cache.
    """
    check_engine_args(args)
    check_formats(treatments)
    for treatment in treatments:
        config = _configured(folder, args, treatment, trust_remote_code).model_config
        _check_model(folder, config)
        _check_treatment(treatment, config)
    return Admitted(context=config.max_model_len, vocabulary=config.get_vocab_size())


def check_engine_args(args: Mapping[str, Any]) -> None:
    """Raise DataError for an argument that vLLM does not have, that the gate sets itself, or of another plain type."""
    known = {field.name: field.type for field in fields(EngineArgs)}
    for name, value in args.items():
        if name in OWN_ARGS:
            raise DataError(f"engine.args.{name}: not an argument that the gate sets itself, got it; {OWN_ARGS[name]}")
        if name not in known:
            raise DataError(
                f"engine.args.{name}: an engine argument of vLLM, got an unknown one; {nearest(name, known)}"
            )
        if known[name] in _PLAIN:
            _check_type(name, value, known[name])
    if args.get("load_format") in _OTHER_WEIGHTS:
        rule = "a format that reads the safetensors which are hashed"
        raise DataError(f"engine.args.load_format: {rule}, got {args['load_format']!r}; remove it")
    if args.get("max_model_len") == -1:
        raise DataError("engine.args.max_model_len: a context known before the start, got -1; set it in tokens")


def check_formats(treatments: Sequence[KVTreatment]) -> None:
    """Raise DataError for a reference format that is not there."""
    for treatment in treatments:
        if treatment.realisation is Realisation.REFERENCE:
            for key, name in (("dtype", treatment.dtype), ("k", treatment.k), ("v", treatment.v)):
                if name and canonical_dtype(name) not in {*FORMATS, "bfloat16"}:
                    hint = nearest(name, FORMATS)
                    raise DataError(f"kv.{treatment.name}.{key}: a reference format, got {name!r}; {hint}")


def _check_type(name: str, value: Any, kind: Any) -> None:
    try:
        TypeAdapter(kind).validate_python(value, strict=True)
    except ValidationError as error:
        said = message(error)
        raise DataError(f"engine.args.{name}: {said}, got {value!r}; correct it") from None


def _configured(folder: Path, args: Mapping[str, Any], treatment: KVTreatment, trust_remote_code: bool) -> VllmConfig:
    native = treatment.realisation is Realisation.NATIVE
    skipped = {"kv_cache_dtype_skip_layers": list(treatment.skip_layers)} if native and treatment.skip_layers else {}
    own = {"model": str(folder), "kv_cache_dtype": treatment.engine_dtype, "trust_remote_code": trust_remote_code}
    try:
        return EngineArgs(**{**args, **own, **skipped}).create_engine_config()
    except Exception as error:  # whatever vLLM, transformers or the model's own code raise
        raise _refusal(error, folder, args, treatment, trust_remote_code) from error


def _refusal(
    error: Exception, folder: Path, args: Mapping[str, Any], treatment: KVTreatment, trust_remote_code: bool
) -> DataError:
    """The error for what vLLM would not take: its place is the argument that vLLM names, else the model."""
    config = read_object(folder / "config.json")
    named = config.get("architectures") or []
    architectures = [str(name) for name in (named if isinstance(named, list) else [named])]
    supported = ModelRegistry.get_supported_archs()
    unknown = [name for name in architectures if name not in supported]
    foreign = len(unknown) == len(architectures)
    if "auto_map" in config and not trust_remote_code and (foreign or "trust_remote_code" in str(error)):
        return wants_code(folder, "model")
    if unknown and foreign:
        near = get_close_matches(unknown[0], supported, 1)
        remedy = f"did you mean {near[0]!r}?" if near else _LISTED
        found = printable(repr(unknown[0]))
        return DataError(f"{folder / 'config.json'}: an architecture that vLLM runs, got {found}; {remedy}")
    said = printable(message(error))
    if treatment.name != "baseline" and treatment.realisation is Realisation.NATIVE:  # the baseline passed before it
        rule = "a KV dtype that vLLM takes with this model"
        return DataError(f"kv.{treatment.name}.dtype: {rule}, got {treatment.dtype!r} ({said}); choose another")
    name = next((name for name in args if re.search(rf"\b{name.replace('_', '[ _]')}\b", said)), None)
    if isinstance(error, ValidationError) and (place := error.errors()[0]["loc"]) and place[0] in args:
        name = str(place[0])
    if name:
        return DataError(f"engine.args.{name}: a value that vLLM takes here, got {args[name]!r} ({said}); correct it")
    return DataError(f"{folder / 'config.json'}: a model that vLLM takes, got {clause(error)}; correct the model")


def _check_model(folder: Path, config: ModelConfig) -> None:
    where = folder / "config.json"
    if config.runner_type != "generate":
        found = f"{config.architectures[0]} ({config.runner_type})"
        raise DataError(f"{where}: a model that generates text, got {found}; choose another model")
    if config.is_attention_free:
        raise DataError(f"{where}: a model with a KV cache, got {config.architectures[0]}; choose another model")
    if current_platform.is_cpu() and not config.use_mla:
        from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

        sizes, size = CPUAttentionBackend.get_supported_head_sizes(), config.get_head_size()
        if size not in sizes:
            listed = ", ".join(map(str, sizes))
            raise DataError(f"{where}: a head size of vLLM's CPU attention ({listed}), got {size}; use a GPU")


def _check_treatment(treatment: KVTreatment, config: ModelConfig) -> None:
    """Heads and layers that the treatment cannot be applied to."""
    where = "baseline" if treatment.name == "baseline" else f"kv.{treatment.name}"
    size, layers = config.get_head_size(), config.get_total_num_hidden_layers()
    if treatment.realisation is Realisation.REFERENCE:
        if config.use_mla:
            raise _no_mla(treatment, config)
    elif current_platform.is_cpu() and not config.use_mla:
        _check_cpu_kernel(f"{where}.dtype", treatment.dtype, size)
    if treatment.layer_scales:
        _check_layer_scales(treatment, config)
    for entry in treatment.skip_layers:
        if not (is_skip_entry(entry) and (skipped_index(entry) or 0) < layers):
            raise DataError(
                f"{where}.skip_layers: layers 0 to {layers - 1}, or sliding_window, got {entry!r}; correct it"
            )


def _check_layer_scales(treatment: KVTreatment, config: ModelConfig) -> None:
    """Each layer that the model has, and one number or one a head."""
    where, layers = f"kv.{treatment.name}.scales_from", config.get_total_num_hidden_layers()
    heads, found = config.get_total_num_kv_heads(), {each.index: each for each in treatment.layer_scales}
    own = getattr(config.hf_text_config, "num_kv_shared_layers", None) or config.is_hybrid  # some have no K and V
    if max(found) >= layers or (len(found) < layers and not own):
        rule = f"scales of the model's {layers} layers"
        raise DataError(f"{where}: {rule}, got those of {len(found)} (up to layer {max(found)}); calibrate this model")
    for each in treatment.layer_scales:
        if wrong := next((n for n in (len(each.k), len(each.v)) if n not in (1, heads)), None):
            rule = f"one scale a layer, or one for each of its {heads} KV heads"
            raise DataError(f"{where}: {rule}, got {wrong} in layer {each.index}; calibrate this model")


def one_scale_a_layer() -> bool:
    """Whether the attention of this platform takes no scales of single heads."""
    return bool(current_platform.is_cpu())


def _check_cpu_kernel(where: str, dtype: str, size: int) -> None:
    """What vLLM asks when the first layer is built: FP8 needs AVX-512 or AMX, and heads of a multiple of 32."""
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    try:
        _get_attn_isa(torch.bfloat16, 32, size, dtype)
    except NotImplementedError as error:
        rule, found = "a KV dtype that this CPU's attention takes", f"{dtype!r} with heads of {size}"
        raise DataError(f"{where}: {rule}, got {found} ({message(error)}); use a GPU or a reference format") from None


def _no_mla(treatment: KVTreatment, config: ModelConfig) -> DataError:
    found = f"{config.architectures[0]}, which stores them as one latent (MLA)"
    if treatment.dtype == "placebo":
        return DataError(f"gate.placebo: separate K and V to jitter, got {found}; set gate.placebo=batch_limit")
    return DataError(
        f"kv.{treatment.name}.dtype: a reference format needs separate K and V, got {found}; use a native dtype"
    )
