"""``turns.parquet`` (one row a turn x arm x epoch x scorer) and ``deltas.parquet`` (one row a turn x arm x scorer)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from kvquant_eval.core.codec import to_data
from kvquant_eval.core.judge import Judgement
from kvquant_eval.core.records import Prepared
from kvquant_eval.core.text import writable


def write(folder: Path, judgement: Judgement, model: Mapping[str, Any], prepared: Prepared) -> None:
    """Write both tables; model id and KV dtype stand in every row."""
    turns_frame(judgement, model, prepared).to_parquet(folder / "turns.parquet", index=False)
    deltas_frame(judgement, model).to_parquet(folder / "deltas.parquet", index=False)


def turns_frame(judgement: Judgement, model: Mapping[str, Any], prepared: Prepared) -> pd.DataFrame:
    """Scores with the turn's place, lengths in tokens and outcome."""
    place = {turn.turn_id: turn for turn in prepared.turns}
    rows = [
        {
            **_identity(model, arm),
            "role": str(judgement.arms[arm].arm.role),
            "turn_id": score.turn_id,
            "workload": place[score.turn_id].workload,
            "conversation_id": place[score.turn_id].conversation_id,
            "turn_index": place[score.turn_id].turn_index,
            "prompt_tokens": len(place[score.turn_id].prompt_ids),
            "scorer": score.scorer,
            "epoch": score.epoch,
            "outcome": str(score.outcome),
            "points": score.points,
            "explanation": writable(score.explanation),
        }
        for arm, scores in judgement.scores.items()
        for score in scores
    ]
    return pd.DataFrame(rows)


def deltas_frame(judgement: Judgement, model: Mapping[str, Any]) -> pd.DataFrame:
    """Drops in points, > 0 is worse."""
    rows = [
        {**_identity(model, arm), "baseline_arm": judgement.arms[arm].arm.baseline, **to_data(delta)}
        for arm, deltas in judgement.deltas.items()
        for delta in deltas
    ]
    return pd.DataFrame(rows)


def _identity(model: Mapping[str, Any], arm: str) -> dict[str, Any]:
    kv = model["kv"][arm]
    return {
        "model": model["id"],
        "revision": model["revision"],
        "kv_requested": kv["requested"],
        "kv_effective": kv["effective"],
        "kv_realisation": kv["realisation"],
        "arm": arm,
    }
