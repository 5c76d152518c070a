"""What must be equal however often a gate was killed."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any


def comparable(decision: Mapping[str, Any]) -> dict[str, Any]:
    """``decision.json`` without ids, times and ``attempts``."""
    kept = copy.deepcopy({k: v for k, v in decision.items() if k not in ("run_id", "created_at", "attempts")})
    for arm in kept["arms"].values():
        del arm["seconds"], arm["decoded_tokens_per_s"]
    return kept
