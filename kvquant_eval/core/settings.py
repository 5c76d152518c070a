"""Everything a gate needs to know, checked once: what ``cli.config`` builds from Hydra's configuration."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from kvquant_eval.core.codec import DataError
from kvquant_eval.core.policy import Policy
from kvquant_eval.core.records import KVTreatment, ModelSpec, Sampling
from kvquant_eval.core.score import Scorer

RESERVED = ("baseline", "baseline_eager", "repeat", "placebo")
"""Arms of every gate (``arms.plan_arms``)."""
_ARM_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
"""An arm has a folder of its name."""


class PlaceboKind(StrEnum):
    """``JITTER``: K and V moved by at most one BF16 unit in the last place. ``BATCH_LIMIT``: half of
    ``max_num_seqs``, for models and engines that hooks cannot reach.
    """

    JITTER = "jitter"
    BATCH_LIMIT = "batch_limit"


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """Which engine, how it is started, and when it is taken for dead.

    ``engine`` and ``preparer`` are ``module:name``; ``args`` go to the engine as they are, the same in every arm.
    ``timeout_s`` bounds its start and every short answer, ``stall_s`` the time without a token in a block (seconds);
    ``retries`` is how often a dead engine is started again before it has finished another block. ``slots`` are places
    for arms to run side by side, each with the environment that keeps it to its own cores or devices; ``env`` holds for
    all of them. Where an arm runs is no part of its fingerprint.
    """

    engine: str
    preparer: str
    args: Mapping[str, Any]
    platform: str
    timeout_s: float = 1800.0
    stall_s: float = 600.0
    retries: int = 2
    top_logprobs: int = 20
    env: Mapping[str, str] = field(default_factory=dict)
    slots: tuple[Mapping[str, str], ...] = ({},)


@dataclass(frozen=True, kw_only=True)
class TrackingSettings:
    """MLflow: where runs go. ``uri`` empty: nothing is logged. ``log_texts``: replies go along with the scores."""

    uri: str
    experiment: str
    log_texts: bool = False


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One gate. ``config`` is the resolved configuration as plain data, for the run folder.

    ``reuse``: finished blocks of earlier runs are used again; ``max_minutes``: when the gate stops by itself (None:
    never), to be gone on with later.
    """

    model: ModelSpec
    engine: EngineSettings
    golden_path: str
    sampling: Sampling
    block_requests: int
    baseline: KVTreatment
    candidates: Mapping[str, KVTreatment]
    placebo: PlaceboKind
    policy: Policy
    scorers: Mapping[str, Mapping[str, Scorer]]
    tracking: TrackingSettings
    runs_dir: str
    cache_dir: str
    config: Mapping[str, Any]
    reuse: bool = True
    max_minutes: float | None = None

    def __post_init__(self) -> None:
        if not self.candidates:
            raise DataError("kv: at least one candidate, got none; name one, such as kv=[fp8_e4m3]")
        taken = next((name for name in self.candidates if name in RESERVED), None)
        if taken:
            raise DataError(f"kv: candidates beside {', '.join(RESERVED)}, got {taken!r}; give it another name")
        if self.max_minutes is not None and not 0 < self.max_minutes < math.inf:
            raise DataError(f"gate.max_minutes: minutes above 0, got {self.max_minutes}; correct it or leave it out")
        unfit = next((name for name in self.candidates if not _ARM_NAME.fullmatch(name)), None)
        if unfit is not None:
            rule = "names of up to 100 letters, digits and ._+-, a letter or digit first"
            raise DataError(f"kv: {rule}, got {unfit[:100]!r}; give the candidate another name")
        sampling = self.sampling
        if sampling.temperature < 0 or 0 < sampling.temperature < 0.01:
            rule = "0 or at least 0.01 (vLLM clamps what is between)"
            raise DataError(f"sampling.temperature: {rule}, got {sampling.temperature}; correct it")
        if sampling.epochs < 1:
            raise DataError(f"sampling.epochs: at least 1, got {sampling.epochs}; correct it")
        if sampling.epochs > 1 and sampling.temperature == 0:
            raise DataError("sampling.epochs: 1 when greedy (every epoch would be the same); set sampling.temperature")
        if self.block_requests < 2:
            raise DataError(f"block_requests: at least 2, got {self.block_requests}; correct it")
        unknown = set(self.policy.require) - set(self.candidates)
        if unknown:
            raise DataError(
                f"gate.require: names of candidates, got {sorted(unknown)[0]!r}; choose from {sorted(self.candidates)}"
            )
