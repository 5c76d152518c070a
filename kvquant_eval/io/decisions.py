"""``decision.json`` read back and checked: the part that readers rely on, with its types and ranges."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, cast

import pydantic_core
from annotated_types import Ge, Gt, Le
from pydantic import AfterValidator, with_config
from typing_extensions import TypedDict

from kvquant_eval.core.codec import DataError, canonical, from_data
from kvquant_eval.core.document import SCHEMA_VERSION
from kvquant_eval.core.text import safe

REMEDY = "restore the file, or write it again with `kvquant-eval regate`"


def _utc(text: str) -> str:
    moment = datetime.fromisoformat(text)
    if moment.utcoffset() != timedelta(0) or moment.isoformat(timespec="seconds") != text:
        raise ValueError("a time in UTC, such as 2026-01-31T12:00:00+00:00")
    return text


def _folder_name(text: str) -> str:
    if text in ("", ".", "..") or "/" in text or "\0" in text or len(text.encode()) > 255:
        raise ValueError("a name that can be a folder's")
    return text


Word = Literal["PROMOTE", "HOLD", "INCONCLUSIVE", "INVALID"]
UtcTime = Annotated[str, AfterValidator(_utc)]
ArmName = Annotated[str, AfterValidator(_folder_name)]
Flag = TypedDict(
    "Flag",
    {"turn_id": str, "class": str, "score": str, "drop": float, "confirmed": NotRequired[bool | None]},
)


class Model(TypedDict):
    """Which weights."""

    id: str
    revision: str | None
    weights_sha256: str


class Golden(TypedDict):
    """Which golden turns."""

    name: str
    version: str
    sha256: str
    n_turns: int
    folds: NotRequired[list[int]]


class Policy(TypedDict):
    """Which limits, by hash."""

    sha256: str


class Kv(TypedDict):
    """What an arm stored. The last three are missing where nothing could be read back."""

    requested: str
    effective: str
    realisation: str
    layers_skipped: NotRequired[list[int]]
    bytes_per_token: NotRequired[float]
    capacity_tokens: NotRequired[float]


class Arm(TypedDict):
    """How an arm ran."""

    decoded_tokens_per_s: float
    prefix_cache_share: float


class Stratum(TypedDict):
    """A part of a class, in points."""

    mean_drop: float


class Score(TypedDict):
    """One score over one class, in points; a drop > 0 is worse, and null is a bound that could not be had."""

    role: str
    margin: Annotated[float, Gt(0)]
    n_turns: int
    n_headroom: int
    baseline_mean: float
    candidate_mean: float
    mean_drop: float
    ci_lower: NotRequired[float | None]
    ci_upper: float | None
    recovery: float | None
    drops_over: int
    worst_stratum: NotRequired[Stratum | None]


class Judged(TypedDict):
    """One class of one arm."""

    verdict: str
    n_turns: int
    scores: dict[str, Score]


class Pooled(TypedDict):
    """The direction of all conversations of an arm."""

    n_conversations: int
    p: Annotated[float, Ge(0), Le(1)]


class Compared(TypedDict):
    """An arm compared with its baseline."""

    kv: Kv
    decision: Word
    reasons: list[str]
    classes: dict[str, Judged]
    flagged_turns: list[Flag]
    pooled: NotRequired[Pooled]


class Candidate(Compared):
    """An arm that may be promoted."""

    name: ArmName
    self_test: bool
    baseline: ArmName


class Means(TypedDict):
    """How near an arm's next-token distributions are to its baseline's; null where nothing could be compared."""

    kl: float | None
    top1_agreement: float | None


class Fidelity(TypedDict):
    """The same over all turns; by class and position it is not read."""

    all: Means


class Baseline(TypedDict):
    """The arm that all others are compared with."""

    kv: Kv


@with_config({"strict": True, "allow_inf_nan": False})
class DecisionDocument(TypedDict):
    """What ``core.document`` writes and others read; keys that nobody reads are not checked."""

    schema_version: int
    run_id: str
    created_at: UtcTime
    decision: Word
    post_hoc: bool
    model: Model
    engine: dict[str, Any]
    golden: Golden
    policy: Policy
    sampling: dict[str, Any]
    baseline: Baseline
    controls: dict[str, Compared]
    candidates: list[Candidate]
    arms: dict[str, Arm]
    fidelity: NotRequired[dict[str, Fidelity]]


def read_decision(path: Path) -> DecisionDocument:
    """The decision in a file, with all its keys. Raises DataError, in one line, for anything but a sound document."""
    data = _object(path)
    version = data.get("schema_version")
    if version != SCHEMA_VERSION:
        raise DataError(
            f"{path}: schema version {SCHEMA_VERSION}, got {'none' if version is None else _shown(version)}; "
            "use the kvquant-eval that wrote it (or regate)"
        )
    try:
        from_data(DecisionDocument, data, "")
    except DataError as error:
        raise DataError(f"{path}{_shown(error)}; {REMEDY}") from None
    return cast("DecisionDocument", data)


def _object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; numbers too large for JSON's readers are no JSON."""
    try:
        data = pydantic_core.from_json(path.read_bytes(), allow_inf_nan=False)
        canonical(data)
    except OSError as error:
        raise DataError(f"{path}: a decision, got {error.strerror}; name the folder of a decided run") from None
    except ValueError as error:
        raise DataError(f"{path}: a decision in strict JSON, got {_shown(error)}; {REMEDY}") from None
    if not isinstance(data, dict):
        raise DataError(f"{path}: a JSON object, got {_shown(data)}; {REMEDY}")
    return data


def _shown(value: object) -> str:
    """Anything on one harmless line."""
    return safe(" ".join(str(value).split()))[:300]
