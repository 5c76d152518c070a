"""The seam to an inference engine: what starts one, what it attests, and the four things it does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from kvquant_eval.core.records import MEASURED, Block, BlockResult, Json
from kvquant_eval.core.scales import LayerScales
from kvquant_eval.core.treatment import KVTreatment


class Engine(Protocol):
    """An engine with one KV treatment, started by constructing it with an ``EngineSpec``."""

    def run(self, block: Block, beat: Callable[[], None]) -> BlockResult:
        """Replay one block from an empty prefix cache: one ``Replay`` for each of ``block.keys``, in order.

        ``beat`` is called at every step that makes headway: an engine silent for ``engine.stall_s`` is taken for dead.
        """
        ...

    def treat(self, treatment: KVTreatment) -> None:
        """Take another reference treatment in place of the one it has, without being started again."""
        ...

    def facts(self) -> EngineFacts:
        """What is really running, read back from the workers."""
        ...

    def close(self) -> None:
        """Stop the engine. Nothing is called afterwards."""
        ...


@dataclass(frozen=True, kw_only=True)
class EngineSpec:
    """What it takes to start one arm's engine: a local model folder or hub id, a treatment, and engine arguments that
    are the same in every arm. ``chat_template`` (its text) renders the history of free-running conversations.
    ``profile``: the formats under which K and V are looked at before they are stored (empty: they are not), at
    ``profile_scales``, one number a layer (none: 1.0).
    """

    model: str
    revision: str | None
    treatment: KVTreatment
    args: Mapping[str, Json]
    top_logprobs: int = 20
    chat_template: str = ""
    profile: tuple[str, ...] = ()
    profile_scales: tuple[LayerScales, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LayerFacts:
    """One attention layer as a running worker reports it. Scales are None where the layer has none.

    ``kv_dtype`` is the engine's cache dtype string, ``storage`` the tensor's dtype, ``bytes_per_token`` K and V
    together, ``format`` the reference format that is hooked in (empty: none), ``kernel`` the backend's variant where it
    has several (on a CPU the instruction set: ``amx``, ``vec``), ``head_size`` values of a head (0: not read).
    ``k_scales`` and ``v_scales`` are what values are divided by, one number or one for each KV head of this worker: the
    hook's where a format is hooked in, else the layer's.
    """

    name: str
    index: int
    backend: str
    kv_dtype: str
    storage: str
    bytes_per_token: float
    k_scale: float | None
    v_scale: float | None
    k_scale_tensor: float | None
    v_scale_tensor: float | None
    format: str = ""
    kernel: str = ""
    head_size: int = 0
    k_scales: tuple[float, ...] = ()
    v_scales: tuple[float, ...] = ()

    @property
    def attention(self) -> str:
        """What computes attention here: ``CPU_ATTN (amx)``."""
        return f"{self.backend} ({self.kernel})" if self.kernel else self.backend


@dataclass(frozen=True, kw_only=True)
class EngineFacts:
    """The attestation of one arm: what really ran, read back from the running workers.

    ``layers`` are per worker, then per layer. ``settings`` is every other engine setting that could change an answer.
    ``second_rounding`` is the sum over the arm's blocks, as in ``BlockResult``.
    """

    __pydantic_config__ = MEASURED

    engine: str
    version: str
    device: str
    model_dtype: str
    layers: tuple[tuple[LayerFacts, ...], ...]
    capacity_tokens: int
    block_size: int
    settings: Mapping[str, Json]
    versions: Mapping[str, str]
    second_rounding: tuple[int, int] = (0, 0)
