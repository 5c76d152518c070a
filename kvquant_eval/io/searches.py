"""``search.json`` read back, with no trust in it: what a report shows of a search."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, MaxLen
from pydantic import StringConstraints, with_config
from typing_extensions import TypedDict

from kvquant_eval.core.codec import DataError, from_data
from kvquant_eval.core.search_document import SCHEMA_VERSION
from kvquant_eval.core.strict_json import BadJson, parse
from kvquant_eval.core.text import one_line
from kvquant_eval.io.decisions import Word

SEARCH = "search.json"
LARGEST_FILE = 4 << 20
"""Bytes; a search over the halves of a hundred layers takes a tenth of it."""
REMEDY = "restore it, or remove it"

Unit = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,5}(\.[kv])?$")]
Size = Annotated[float, Ge(0)] | None
Folds = list[int]


class Pass(TypedDict):
    """One engine pass, as ``core.search.Pass``."""

    name: str
    decision: Word
    kl: float | None
    drop: float | None
    worst: str
    worst_bound: float | None
    reach: float | None
    predicted: float | None
    bytes_per_token: Size
    compression: Size
    kept: Annotated[list[Unit], MaxLen(10_000)]


class Sensitivity(TypedDict):
    """What a unit does, as ``core.search.Sensitivity``."""

    unit: Unit
    alone: Pass
    spared: Pass
    brings: float
    saves: float
    harm: float
    error: float


class Model(TypedDict):
    """Which weights."""

    id: str
    revision: str | None
    weights_sha256: str


class Kv(TypedDict):
    """The dtype that was searched for."""

    requested: str
    effective: str
    realisation: str


class Golden(TypedDict):
    """Which golden turns."""

    name: str
    version: str
    sha256: str


class Policy(TypedDict):
    """Under which limits."""

    name: str


@with_config({"strict": True, "allow_inf_nan": False})
class SearchDocument(TypedDict):
    """What ``core.search_document`` writes and a report shows; keys that nobody reads are not checked."""

    schema_version: int
    decision: Word
    model: Model
    kv: Kv
    golden: Golden
    policy: Policy
    folds: dict[str, Folds]
    passes: dict[str, int]
    minutes: float
    runs: list[str]
    floors: Annotated[list[float | None], MaxLen(2)]
    all_kl: float
    sensitivity: Annotated[list[Sensitivity], MaxLen(10_000)]
    curve: Annotated[dict[str, Annotated[list[Pass], MaxLen(1000)]], MaxLen(16)]
    chosen: Pass | None
    standard: str | None
    flags: str


def read_search(path: Path) -> dict[str, Any]:
    """The search in a file, with all its keys. Raises DataError, in one line, for anything but a sound document."""
    try:
        with path.open("rb") as stream:
            text = stream.read(LARGEST_FILE + 1)
        data = parse(text) if len(text) <= LARGEST_FILE else None
    except OSError as error:
        raise DataError(f"{path}: a search, got {error.strerror}; {REMEDY}") from None
    except BadJson as error:
        raise DataError(f"{path}: a search in strict JSON, got {one_line(str(error))}; {REMEDY}") from None
    if not isinstance(data, dict):
        raise DataError(f"{path}: a JSON object of at most {LARGEST_FILE >> 20} MiB, got another file; {REMEDY}")
    version = data.get("schema_version")
    if version != SCHEMA_VERSION:
        raise DataError(f"{path}: schema version {SCHEMA_VERSION}, got {one_line(str(version))[:80]}; {REMEDY}")
    try:
        checked = from_data(SearchDocument, data, "")
    except DataError as error:
        raise DataError(f"{path}{one_line(str(error))[:300]}; {REMEDY}") from None
    missing = [part for part in ("sensitivity", "choose", "confirm") if part not in checked["folds"]]
    if missing or len(checked["floors"]) != 2:
        raise DataError(f"{path}: folds of every part and two floors, got less; {REMEDY}")
    return data
