"""``turns.parquet`` (one row a turn x arm x epoch x scorer), ``deltas.parquet`` (one row a turn x arm x scorer),
``fidelity.parquet`` (one row a turn x arm) and, where it was asked for, ``ranges.parquet`` (one row a layer x K or V x
head x format).

All carry the schema version of ``decision.json`` in their metadata, and a checksum a page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pandas as pd

from kvquant_eval.core.codec import DataError, to_data
from kvquant_eval.core.diagnosis import Diagnosis
from kvquant_eval.core.document import SCHEMA_VERSION
from kvquant_eval.core.fidelity import Means, TurnFidelity
from kvquant_eval.core.judge import Judgement
from kvquant_eval.core.range_profile import HALVES, RangeProfile, format_fit
from kvquant_eval.core.records import Prepared
from kvquant_eval.core.text import safe, writable

TURNS = {
    "arm": "str", "turn_id": "str", "workload": "str", "turn_index": "int64", "scorer": "str", "outcome": "str",
    "points": "float64",
}  # fmt: skip
DELTAS = {"arm": "str", "turn_id": "str", "scorer": "str", "drop": "float64"}
"""The columns that readers rely on; only points and drops may be empty."""
MEANS = {field.name: "int64" if field.name == "n_tokens" else "float64" for field in fields(Means)}


def write(
    folder: Path,
    judgement: Judgement,
    model: Mapping[str, Any],
    prepared: Prepared,
    diagnosis: Diagnosis,
) -> None:
    """Write the tables; model id and KV dtype stand in every row."""
    save(turns_frame(judgement, model, prepared), folder / "turns.parquet")
    save(deltas_frame(judgement, model), folder / "deltas.parquet")
    save(fidelity_frame(judgement, model, diagnosis.fidelity), folder / "fidelity.parquet")
    if diagnosis.ranges:
        save(ranges_frame(model, diagnosis.ranges), folder / "ranges.parquet")


def save(frame: pd.DataFrame, path: Path) -> None:
    """Write a table with the schema version."""
    frame.attrs["schema_version"] = SCHEMA_VERSION
    frame.to_parquet(path, index=False, write_page_checksum=True)


def read(folder: Path) -> dict[str, pd.DataFrame]:
    """Those that MLflow's are made of, ``turns`` and ``deltas``. A table of a run without scores is empty and has no
    columns.

    Raises DataError, in one line, for a damaged table, one of another schema version, and one that lacks a column.
    """
    return {name: _read(folder / f"{name}.parquet", types) for name, types in (("turns", TURNS), ("deltas", DELTAS))}


def _read(path: Path, types: Mapping[str, str]) -> pd.DataFrame:
    remedy = f"write it again with `kvquant-eval regate {path.parent}`"
    try:
        with path.open("rb") as file:
            frame = pd.read_parquet(file, page_checksum_verification=True)
    except Exception as error:  # noqa: BLE001 - whatever a damaged file makes pandas and pyarrow raise
        raise DataError(f"{path}: a parquet table, got {_reason(error)}; {remedy}") from None
    version = frame.attrs.get("schema_version")
    if version != SCHEMA_VERSION:
        raise DataError(f"{path}: schema version {SCHEMA_VERSION}, got {version!r}; {remedy}")
    if frame.empty:
        return frame
    missing = sorted(set(types) - set(frame.columns))
    if missing:
        raise DataError(f"{path}: a column {missing[0]!r}, got none; {remedy}")
    try:
        frame = frame.astype(dict(types))
    except (TypeError, ValueError) as error:
        raise DataError(f"{path}: the columns' types, got {_reason(error)}; {remedy}") from None
    empty = [name for name, kind in types.items() if kind == "str" and frame[name].isna().any()]
    if empty:
        raise DataError(f"{path}: a value in every row of column {empty[0]!r}, got none; {remedy}")
    return frame


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return safe(" ".join(str(error).split()))[:200] or type(error).__name__


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


def fidelity_frame(
    judgement: Judgement, model: Mapping[str, Any], fidelity: Mapping[str, Sequence[TurnFidelity]]
) -> pd.DataFrame:
    """Every planned turn of an arm against its baseline; units and signs as in ``core.fidelity.Means``."""
    rows = [
        {
            **_identity(model, arm),
            "baseline_arm": judgement.arms[arm].arm.baseline,
            "turn_id": turn.turn_id,
            "workload": turn.workload,
            "conversation_id": turn.conversation_id,
            "turn_index": turn.turn_index,
            **asdict(turn.means),
            "first_divergence": turn.first_divergence,
            "missing": writable(turn.missing),
        }
        for arm, turns in fidelity.items()
        for turn in turns
    ]
    frame = pd.DataFrame(rows)
    return frame if frame.empty else frame.astype({**MEANS, "first_divergence": "Int64"})


def ranges_frame(model: Mapping[str, Any], profile: RangeProfile) -> pd.DataFrame:
    """Units and ranges as in ``core.ranges.HeadCounts`` and ``core.range_profile.FormatFit``; K and V are as the arm's
    model computed them, ``format`` is what was tried on them (empty: none).
    """
    frame = pd.DataFrame([{**_identity(model, profile.arm), **row} for row in _range_rows(profile)])
    floats = dict.fromkeys(("limit", "beyond", "sqnr_db"), "float64")
    return frame if frame.empty else frame.astype(floats)


def _range_rows(profile: RangeProfile) -> Iterator[dict[str, Any]]:
    for layer in profile.layers:
        for half in HALVES:
            of = getattr(layer, half)
            for number, head in enumerate(of.heads):
                seen = {"layer": layer.index, "half": half, "head": number, "scale": of.scale}
                seen |= {"values": head.values, "largest": head.largest}
                for name in head.formats or ("",):
                    fit = (
                        asdict(format_fit([of], head, name)) if name else dict.fromkeys(("limit", "beyond", "sqnr_db"))
                    )
                    yield {**seen, "format": name, **fit}


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
