"""What runs inside every vLLM worker: read back each attention layer, and put a reference format in front of its cache.

vLLM mixes this class into its worker (``worker_extension_cls``) and calls it by ``collective_rpc``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size

from kvquant_eval.core.codec import from_data, to_data
from kvquant_eval.core.scales import LayerScales
from kvquant_eval.core.stored import StoredLayer
from kvquant_eval.core.treatment import SLIDING_WINDOW, KVTreatment, canonical_dtype, together
from kvquant_eval.worker.formats import FORMATS, scaled
from kvquant_eval.worker.linear import widen
from kvquant_eval.worker.ranges import RangeProbe
from kvquant_eval.worker.stored import DTYPES, StoredAudit


class KVExtension:
    """Methods callable on a vLLM worker; ``model_runner`` and ``cache_config`` are the worker's own."""

    model_runner: Any
    cache_config: Any

    def kv_facts(self) -> dict[str, Any]:
        """Every attention layer of this worker, plus the number of cache blocks and tokens a block."""
        blocks, block_size = self.cache_config.num_gpu_blocks, self.cache_config.block_size
        layers = [_facts(name, layer, blocks * block_size) for name, layer in self._layers()]
        return {"layers": layers, "num_blocks": blocks, "block_size": block_size}

    def kv_widen(self) -> int:
        """See ``linear.widen``."""
        return widen(self.model_runner.model)

    def kv_install(self, data: dict[str, Any]) -> int:
        """Round K and V of every layer as a reference treatment asks, and no longer as one before did; return the
        number of layers hooked.

        ``data`` is the KVTreatment as plain data. Raises ValueError for a layer that does not pass K and V as
        [num_tokens, num_kv_heads * head_size] (MLA), and for one that the treatment has no scales for.
        """
        treatment, hooked = from_data(KVTreatment, data, "treatment"), 0
        for name, layer in self._layers():
            _unhook(layer)
            k, v = treatment.at(_index(name))
            scales = treatment.scales_at(_index(name))
            windowed = SLIDING_WINDOW in treatment.skip_layers and getattr(layer, "sliding_window", None)
            if windowed or (k, v) == ("bfloat16", "bfloat16"):
                continue
            if not _has_k_and_v(layer):
                raise ValueError(f"{name}: reference formats need separate K and V, got {type(layer).__name__}")
            if scales is None:
                raise ValueError(f"{name}: scales of every layer that is rounded, got none of layer {_index(name)}")
            device = self.model_runner.device
            halves = (_half(layer, *each, device) for each in ((k, scales.k), (v, scales.v)))
            layer.kvquant_rounding = _Rounding(layer, *halves)
            layer.kvquant_hook = layer.register_forward_pre_hook(layer.kvquant_rounding)
            layer.kvquant_format = together(k, v)
            layer.kvquant_inexact = torch.zeros(2, dtype=torch.int64, device=device)
            hooked += 1
        return hooked

    def kv_audit(self) -> int:
        """Read back a sample of what each layer stores as FP8 from now on (see ``stored``); return how many do."""
        layers = [
            layer
            for _, layer in self._layers()
            if canonical_dtype(layer.kv_cache_dtype) in DTYPES
            and hasattr(layer.impl, "do_kv_cache_update")
            and _has_k_and_v(layer)
        ]
        for layer in layers:
            layer.impl.do_kv_cache_update = StoredAudit(layer, self.cache_config.num_gpu_blocks)
        return len(layers)

    def kv_stored(self) -> list[dict[str, Any]]:
        """The StoredLayers since the last call, as plain data; none where nothing is read back."""
        found = []
        for name, layer in self._layers():
            audit = getattr(layer.impl, "do_kv_cache_update", None)
            if isinstance(audit, StoredAudit):
                found.append(to_data(StoredLayer(index=_index(name), k=audit.k, v=audit.v)))
                audit.reset()
        return found

    def kv_profile(self, formats: list[str], scales: Sequence[Any] = ()) -> int:
        """Look at K and V of each layer from now on (see ``ranges``), under those of ``formats`` that there is a
        function for, at ``scales`` (LayerScales as plain data, one number each; 1.0 for other layers); return how many
        layers are looked at. Layers without K and V of their own (MLA, shared) are not.
        """
        known, unit = [name for name in formats if name in FORMATS], (1.0, 1.0)
        given = {each.index: (each.k[0], each.v[0]) for each in (from_data(LayerScales, s, "scales") for s in scales)}
        layers = [
            (_index(name), layer)
            for name, layer in self._layers()
            if _has_k_and_v(layer) and getattr(layer, "kv_sharing_target_layer_name", None) is None
        ]
        for index, layer in layers:
            layer.kvquant_ranges = RangeProbe(layer, known, self.model_runner.device, given.get(index, unit))
            layer.register_forward_pre_hook(layer.kvquant_ranges)
        return len(layers)

    def kv_ranges(self) -> list[dict[str, Any]]:
        """The LayerRanges since the last call, as plain data; none where nothing is looked at."""
        found = []
        for name, layer in self._layers():
            probe = getattr(layer, "kvquant_ranges", None)
            if probe is not None:
                found.append(to_data(probe.found(_index(name))))
                probe.reset()
        return found

    def kv_second_rounding(self) -> tuple[int, int]:
        """(values whose rounded K or V did not fit BF16 exactly, values seen) since the start."""
        counts = [layer.kvquant_inexact for _, layer in self._layers() if hasattr(layer, "kvquant_inexact")]
        inexact, seen = torch.stack(counts).sum(0).tolist() if counts else (0, 0)
        return inexact, seen

    def _layers(self) -> Iterator[tuple[str, Any]]:
        for name, module in self.model_runner.model.named_modules():
            if hasattr(module, "kv_cache_dtype") and hasattr(module, "attn_backend"):
                yield name, module


def _unhook(layer: Any) -> None:
    """Take away what ``kv_install`` left on a layer."""
    if hasattr(layer, "kvquant_hook"):
        layer.kvquant_hook.remove()
        del layer.kvquant_hook, layer.kvquant_rounding, layer.kvquant_format, layer.kvquant_inexact


@dataclass(frozen=True)
class _Half:
    """How K, or V, is rounded: the format's name (``bfloat16``: not at all), and its scale, [] or [num_kv_heads, 1]."""

    name: str
    scale: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """x: [num_tokens, num_kv_heads, head_size]."""
        return scaled(FORMATS[self.name], self.scale)(x)


class _Rounding:
    """Forward pre-hook: K and V as their formats give them back. The engine then stores that in its BF16 cache."""

    def __init__(self, layer: Any, k: _Half, v: _Half) -> None:
        self.shape = (-1, layer.num_kv_heads, layer.head_size)
        self.k, self.v = k, v

    def __call__(self, layer: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        query, key, value, *rest = args
        return (query, self._round(layer, key, self.k), self._round(layer, value, self.v), *rest)

    def _round(self, layer: Any, x: Tensor, half: _Half) -> Tensor:
        """x: [num_tokens, num_kv_heads * head_size] -> the same shape and dtype."""
        if half.name not in FORMATS:
            return x
        exact = half(x.view(self.shape)).view(x.shape)
        stored = exact.to(x.dtype)
        layer.kvquant_inexact[0] += (stored.float() != exact).sum()  # stays on the device: no wait for the count
        layer.kvquant_inexact[1] += x.numel()
        return stored


def _half(layer: Any, name: str, scales: Sequence[float], device: torch.device) -> _Half:
    """``scales`` are of the whole model: with tensor parallelism this worker has some of the heads. Raises ValueError
    for another number of them.
    """
    made = torch.tensor(scales, dtype=torch.float32, device=device)
    if len(scales) == 1:
        return _Half(name, made.reshape(()))
    first, heads = get_tensor_model_parallel_rank() * layer.num_kv_heads, layer.num_kv_heads
    whole = get_tensor_model_parallel_world_size() * heads
    first = first * len(scales) // whole  # a head stands on several workers where there are more of them than heads
    if whole % len(scales) or first + heads > len(scales):
        raise ValueError(f"{layer.layer_name}: one scale, or one a KV head, got {len(scales)} for {heads}")
    return _Half(name, made[first : first + heads].reshape(-1, 1))


def _has_k_and_v(layer: Any) -> bool:
    """Whether the layer passes K and V apart, each [num_tokens, num_kv_heads * head_size] (MLA layers do not)."""
    return hasattr(layer, "num_kv_heads") and not hasattr(layer, "kv_lora_rank")


def _facts(name: str, layer: Any, capacity: int) -> dict[str, Any]:
    cache = layer.kv_cache[0] if isinstance(layer.kv_cache, list | tuple) else layer.kv_cache
    return {
        "name": name,
        "index": _index(name),
        "backend": layer.attn_backend.get_name(),
        "kv_dtype": str(layer.kv_cache_dtype),
        "storage": str(cache.dtype).removeprefix("torch."),
        "bytes_per_token": cache.numel() * cache.element_size() / capacity,
        "k_scale": _number(layer, "_k_scale_float"),
        "v_scale": _number(layer, "_v_scale_float"),
        "k_scale_tensor": _number(layer, "_k_scale"),
        "v_scale_tensor": _number(layer, "_v_scale"),
        "format": getattr(layer, "kvquant_format", ""),
        "kernel": str(getattr(layer, "isa", "")),
        "head_size": int(getattr(layer, "head_size", 0)),
        "k_scales": _scales(layer, "k"),
        "v_scales": _scales(layer, "v"),
    }


def _scales(layer: Any, half: str) -> list[float]:
    """What K (V) is divided by: of the hook where a reference format is hooked in, else of the layer."""
    hook = getattr(layer, "kvquant_rounding", None)
    found = getattr(hook, half).scale if hook else getattr(layer, f"_{half}_scale", None)
    return [] if found is None else torch.as_tensor(found).float().flatten().tolist()


def _number(layer: Any, attribute: str) -> float | None:
    """A scale as a float: None where the layer has none, the largest where it has one a head."""
    value = getattr(layer, attribute, None)
    if value is None:
        return None
    return float(value.max()) if isinstance(value, Tensor) else float(value)


def _index(name: str) -> int:
    """The layer number in a module path such as ``model.layers.12.self_attn.attn``; -1 where there is none."""
    return next((int(part) for part in name.split(".") if part.isdigit()), -1)
