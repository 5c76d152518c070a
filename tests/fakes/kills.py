"""For tests that kill gates: what must be equal all the same, and what must be gone."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def comparable(decision: Mapping[str, Any]) -> dict[str, Any]:
    """``decision.json`` without ids, times, ``attempts`` and the command, which names folders."""
    own = ("run_id", "created_at", "attempts", "command")
    kept = copy.deepcopy({k: v for k, v in decision.items() if k not in own})
    for arm in kept["arms"].values():
        del arm["seconds"], arm["decoded_tokens_per_s"]
    return kept


def marked(name: str, value: str) -> list[int]:
    """Ids of the living processes that carry ``name=value`` in their environment."""
    marker, found = f"{name}={value}".encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state = (folder / "stat").read_text().rsplit(")", 1)[1].split()[0]
            if marker in (folder / "environ").read_bytes().split(b"\0") and state != "Z":
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def wait_until(true: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if true():
            return True
        time.sleep(0.02)
    return true()
