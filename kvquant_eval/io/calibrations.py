"""``scales.json``, read with no trust in it."""

from __future__ import annotations

from pathlib import Path

from kvquant_eval.core.codec import DataError
from kvquant_eval.core.scales import Calibration, parse

SCALES = "scales.json"
"""What a calibration writes into its run folder."""
LARGEST_FILE = 64 << 20
"""Bytes of a file of scales; a thousand layers of 128 heads have 20 MB."""


def read(path: Path) -> Calibration:
    """Raises DataError for what is no such file, and for scales that cannot be any."""
    try:
        with path.open("rb") as stream:
            text = stream.read(LARGEST_FILE + 1).decode("utf-8")
    except (OSError, ValueError) as error:  # a NUL in the path, a byte that is no UTF-8
        found = getattr(error, "strerror", None) or error
        raise DataError(f"{path}: {SCALES} of a calibration, got {found}; correct the path") from None
    if len(text) > LARGEST_FILE:
        raise DataError(f"{path}: {SCALES} of at most {LARGEST_FILE >> 20} MiB, got a larger file; correct the path")
    return parse(text, str(path))
