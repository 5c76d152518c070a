"""Signatures without a run, and what servers say that run what was signed, or something else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvquant_eval.core.codec import to_data
from kvquant_eval.core.engine import EngineFacts, LayerFacts
from kvquant_eval.core.records import Decision
from kvquant_eval.core.signoff import Record, Signature, Terms, extended

TERMS = Terms(
    model="org/model",
    revision="r1",
    weights_sha256="a1" * 32,
    kv_requested="fp8_e4m3",
    kv_effective="fp8_e4m3",
    kv_realisation="native",
    layers_skipped=(),
    bytes_per_token=96.0,
    k_scales=(1.0, 1.0),
    v_scales=(1.0, 1.0),
    engine="vllm",
    engine_version="0.32.0",
    attention_backend="CPU_ATTN (amx)",
    device="a CPU",
    policy="default",
    policy_sha256="b2" * 32,
    golden="agents 1 c3",
)
SKIPPING = replace(TERMS, kv_effective="bfloat16+fp8_e4m3", layers_skipped=(0,), bytes_per_token=144.0)


def signature(**change: Any) -> Signature:
    """One by Ada on a promoted candidate of ``TERMS``, not sealed yet."""
    made = {
        "by": "Ada", "at": "2026-01-01T12:00:00+00:00", "expires": None, "note": "", "override": None, "run_id": "run",
        "candidate": "fp8", "decision": Decision.PROMOTE, "barred": "", "decision_sha256": "d4" * 32, "terms": TERMS,
        "previous": None,
    }  # fmt: skip
    return Signature(**{**made, **change})


def record(*signatures: Signature) -> Record:
    """A record of these signatures, sealed one after the other."""
    made = None
    for each in signatures or (signature(),):
        made = extended(made, each)
    assert made is not None
    return made


def layers(*dtypes: str, **change: Any) -> tuple[LayerFacts, ...]:
    """One worker's layers that store these dtypes, of 48 bytes a token where it is FP8."""
    made = {
        "backend": "CPU_ATTN", "kernel": "amx", "k_scale": 1.0, "v_scale": 1.0, "k_scale_tensor": 1.0,
        "v_scale_tensor": 1.0, "k_scales": (1.0,), "v_scales": (1.0,),
    }  # fmt: skip
    return tuple(
        LayerFacts(
            **{
                **made,
                "name": f"model.layers.{index}.attn",
                "index": index,
                "kv_dtype": dtype,
                "storage": "bfloat16" if dtype == "bfloat16" else "uint8",
                "bytes_per_token": 96.0 if dtype == "bfloat16" else 48.0,
                **change,
            }
        )
        for index, dtype in enumerate(dtypes)
    )


def facts(*dtypes: str, **change: Any) -> EngineFacts:
    """Two workers of such layers."""
    made = layers(*dtypes, **change)
    return EngineFacts(
        engine="vllm",
        version="",
        device="",
        model_dtype="",
        layers=(made, made),
        capacity_tokens=0,
        block_size=0,
        settings={},
        versions={},
    )


def rpc(*dtypes: str, **change: Any) -> dict[str, Any]:
    """What ``/collective_rpc`` gives for ``kv_facts`` of two such workers."""
    worker = {"layers": to_data(layers(*dtypes, **change)), "num_blocks": 10, "block_size": 16}
    return {"results": [worker, worker]}


def labels(**change: str) -> dict[str, str]:
    """Of ``vllm:cache_config_info``: a cache of 100 blocks of 16 tokens, 96 bytes each, and a rest."""
    made = {
        "cache_dtype": "fp8_e4m3", "kv_cache_memory_bytes": str(100 * 16 * 96 + 500), "num_gpu_blocks": "100",
        "block_size": "16", "kv_cache_dtype_skip_layers": "[]", "num_gpu_blocks_override": "None",
    }  # fmt: skip
    return {**made, **change}
