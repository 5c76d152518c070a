"""``noise.json`` of a run folder: what its controls showed, for gates to come."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pydantic_core

from kvquant_eval.core.codec import DataError, from_data, to_data
from kvquant_eval.core.noise import Noise
from kvquant_eval.io.runfolder import RunFolder, latest, write_json

NAME = "noise.json"
SCHEMA_VERSION = 1

_log = logging.getLogger(__name__)


def write(run: RunFolder, noise: Noise, model: Mapping[str, Any]) -> None:
    """``model`` is that of the decision: its id, and the KV dtypes of all arms."""
    head = {"schema_version": SCHEMA_VERSION, "run_id": run.run_id, "model": dict(model)}
    write_json(run.path / NAME, {**head, **to_data(noise)})


def newest(runs_dir: Path, fingerprint: str) -> tuple[Noise, str] | None:
    """The noise of this fingerprint that was measured last, and the run that measured it. A damaged file is named and
    passed over.
    """
    for run in latest(runs_dir, ""):
        if (run.path / NAME).exists():
            try:
                if noise := _read(run.path / NAME, fingerprint):
                    return noise, run.run_id
            except DataError as error:
                _log.warning("%s; it is not used", error)
    return None


def _read(path: Path, fingerprint: str) -> Noise | None:
    """The noise in a file; None where it is of another fingerprint. Raises DataError for a damaged file."""
    try:
        data = pydantic_core.from_json(path.read_bytes(), allow_inf_nan=False)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(f"{path}: the noise of a run, got {reason[:200]}") from None
    if not isinstance(data, dict) or data.get("schema_version") != SCHEMA_VERSION:
        raise DataError(f"{path}: the noise of a run, schema version {SCHEMA_VERSION}, got something else")
    if data.get("fingerprint") != fingerprint:
        return None
    try:
        return from_data(Noise, data, str(path))
    except DataError as error:
        raise DataError(f"{path}: {error}" if str(path) not in str(error) else str(error)) from None
