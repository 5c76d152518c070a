"""A sound ``search.json`` of three layers, without a search."""

from __future__ import annotations

from typing import Any


def one_pass(name: str, kept: tuple[str, ...] = (), drop: float = 1.0) -> dict[str, Any]:
    return {
        "name": name, "decision": "HOLD" if drop > 2 else "PROMOTE", "kl": drop / 100, "drop": drop, "worst": "faq gl",
        "worst_drop": drop, "worst_bound": drop + 1, "reach": drop / 2, "predicted": drop, "bytes_per_token": 100.0,
        "compression": 1.5, "kept": list(kept),
    }  # fmt: skip


def search_document(said: str = "m", weights: str = "11" * 32) -> dict[str, Any]:
    """``said`` stands wherever a text may."""
    units = ("0", "1", "2")
    return {
        "schema_version": 1, "created_at": "2026-01-01T00:00:00+00:00", "minutes": 2.5, "runs": [said, said],
        "decision": "PROMOTE", "exit_code": 0, "reasons": [said],
        "model": {"id": said, "revision": said, "weights_sha256": weights},
        "kv": {"requested": said, "effective": said, "realisation": said},
        "golden": {"name": said, "version": said, "sha256": said}, "policy": {"name": said, "sha256": said},
        "folds": {"sensitivity": [0], "choose": [2, 4], "confirm": [1, 3]},
        "passes": {"sensitivity": 9, "choose": 7, "confirm": 0}, "unit": "layer", "plain_bytes_per_token": 150.0,
        "floors": [0.001, None], "all_kl": 0.05,
        "sensitivity": [
            {"unit": unit, "alone": one_pass(said), "spared": one_pass(said), "brings": 0.1, "saves": 0.1,
             "harm": 0.1 * (1 + int(unit)), "error": 0.01} for unit in units
        ],
        "curve": {said: [one_pass(said, units[:n], 4.0 - n) for n in range(3)], "first": []},
        "chosen": one_pass(said, units[:2]), "standard": said, "flags": said, "confirm": None,
    }  # fmt: skip
