"""What runs inside every vLLM worker: read back each attention layer, and put a reference format in front of its cache.

vLLM mixes this class into its worker (``worker_extension_cls``) and calls it by ``collective_rpc``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from kvquant_eval.core.codec import from_data, to_data
from kvquant_eval.core.stored import StoredLayer
from kvquant_eval.core.treatment import SLIDING_WINDOW, KVTreatment, canonical_dtype, together
from kvquant_eval.worker.formats import FORMATS, Format
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
        [num_tokens, num_kv_heads * head_size] (MLA).
        """
        treatment, hooked = from_data(KVTreatment, data, "treatment"), 0
        for name, layer in self._layers():
            _unhook(layer)
            k, v = treatment.at(_index(name))
            windowed = SLIDING_WINDOW in treatment.skip_layers and getattr(layer, "sliding_window", None)
            if windowed or (k, v) == ("bfloat16", "bfloat16"):
                continue
            if not _has_k_and_v(layer):
                raise ValueError(f"{name}: reference formats need separate K and V, got {type(layer).__name__}")
            layer.kvquant_hook = layer.register_forward_pre_hook(_Rounding(layer, FORMATS.get(k), FORMATS.get(v)))
            layer.kvquant_format = together(k, v)
            layer.kvquant_inexact = torch.zeros(2, dtype=torch.int64, device=self.model_runner.device)
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

    def kv_profile(self, formats: list[str]) -> int:
        """Look at K and V of each layer from now on (see ``ranges``), under those of ``formats`` that there is a
        function for; return how many layers are looked at. Layers without K and V of their own (MLA, shared) are not.
        """
        known = [name for name in formats if name in FORMATS]
        layers = [
            layer
            for _, layer in self._layers()
            if _has_k_and_v(layer) and getattr(layer, "kv_sharing_target_layer_name", None) is None
        ]
        for layer in layers:
            layer.kvquant_ranges = RangeProbe(layer, known, self.model_runner.device)
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
        del layer.kvquant_hook, layer.kvquant_format, layer.kvquant_inexact


class _Rounding:
    """Forward pre-hook: K through ``k`` and V through ``v`` (None: as they are). The engine then stores the result in
    its BF16 cache.
    """

    def __init__(self, layer: Any, k: Format | None, v: Format | None) -> None:
        self.shape = (-1, layer.num_kv_heads, layer.head_size)
        self.k, self.v = k, v

    def __call__(self, layer: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        query, key, value, *rest = args
        return (query, self._round(layer, key, self.k), self._round(layer, value, self.v), *rest)

    def _round(self, layer: Any, x: Tensor, fmt: Format | None) -> Tensor:
        """x: [num_tokens, num_kv_heads * head_size] -> the same shape and dtype."""
        if fmt is None:
            return x
        exact = fmt(x.view(self.shape)).view(x.shape)
        stored = exact.to(x.dtype)
        layer.kvquant_inexact[0] += (stored.float() != exact).sum()  # stays on the device: no wait for the count
        layer.kvquant_inexact[1] += x.numel()
        return stored


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
    }


def _number(layer: Any, attribute: str) -> float | None:
    """A scale as a float: None where the layer has none, the largest where it has one a head."""
    value = getattr(layer, attribute, None)
    if value is None:
        return None
    return float(value.max()) if isinstance(value, Tensor) else float(value)


def _index(name: str) -> int:
    """The layer number in a module path such as ``model.layers.12.self_attn.attn``; -1 where there is none."""
    return next((int(part) for part in name.split(".") if part.isdigit()), -1)
