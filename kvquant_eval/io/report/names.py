"""How numbers and arms are written in a report, the same in every file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvquant_eval.core.text import head
from kvquant_eval.core.treatment import spans

NONE = "–"
ID_CHARS = 200
"""Of a model's id and of its revision: a longer one would push the KV dtype behind it out of sight."""


def identity(model: Mapping[str, Any], kv: Mapping[str, Any]) -> str:
    """Model id and revision with the KV dtype: requested, effective, native or reference."""
    return f"{model_at(model)} {kv_name(kv)}"


def model_at(model: Mapping[str, Any]) -> str:
    """The model's id and revision."""
    return model_name(model) + (f"@{head(model['revision'], ID_CHARS)}" if model["revision"] else "")


def model_name(model: Mapping[str, Any]) -> str:
    """The model's id."""
    return head(model["id"], ID_CHARS)


def kv_name(kv: Mapping[str, Any]) -> str:
    """The KV dtype of an arm as it stands beside the model id."""
    return f"KV {kv['requested']} (effective {kv['effective']}, {kv['realisation']})"


def candidate_mark(candidate: Mapping[str, Any]) -> str:
    """What tells a candidate from another one of its dtype; empty where the dtype's name does."""
    return "" if candidate["name"] == candidate["kv"]["requested"] else f", candidate {candidate['name']}"


def baseline_name(kv: Mapping[str, Any]) -> str:
    """What stands over the baseline's numbers: BF16 only where BF16 was read back."""
    return "BF16" if kv["effective"] == "bfloat16" else f"baseline ({kv['effective']})"


def number(value: float | None, form: str) -> str:
    """``value`` in format ``form``, a dash where there is none; never a negative zero."""
    if value is None:
        return NONE
    text = format(value, form)
    return format(0.0, form) if float(text.rstrip("%").replace(",", "") or 0) == 0 else text


def counted(score: Mapping[str, Any]) -> str:
    """How many turns a score's means are of: for a gating one those with headroom, of all where some have none."""
    among, of = score["n_headroom"], score["n_turns"]
    return str(of) if score["role"] != "gate" or among == of else f"{among} of {of}"


def interval(low: float | None, high: float | None) -> str:
    """Bounds in points, a dash where there are none."""
    return NONE if low is None or high is None else f"[{number(low, '.2f')}, {number(high, '.2f')}]"


def moment(iso: str) -> str:
    """A time in UTC to the minute, out of ISO 8601."""
    return f"{iso[:16].replace('T', ' ')} UTC"


def short(sha256: str) -> str:
    """Enough of a hash to tell it from others by eye."""
    return f"{sha256[:12]}…"


def layers(indices: Sequence[int]) -> str:
    """Layer indices, runs of them as ``0 to 24``."""
    return ", ".join(spans(indices, " to ")) or "none"


def why(reasons: list[str]) -> str:
    """One sentence out of the reasons, and how many there are besides."""
    if not reasons:
        return "no reason is recorded"
    return reasons[0] + (f" (and {len(reasons) - 1} more below)" if len(reasons) > 1 else "")


def class_name(workload: str, judged: Mapping[str, Any]) -> str:
    """The class, with its tier where it is not critical."""
    return workload if judged["tier"] == "critical" else f"{workload} ({judged['tier']})"


def ranking(ranked: Sequence[Mapping[str, Any]]) -> str:
    """Candidates and their bytes a token, in the order given."""
    sizes = ((each["name"], each["bytes_per_token"]) for each in ranked)
    return ", ".join(f"{name} {'of unknown size' if size is None else format(size, ',.0f')}" for name, size in sizes)


def measured(name: str, score: Mapping[str, Any]) -> tuple[str, ...]:
    """A score's name with its role where it does not gate, turns, both means, drop and bounds, in points."""
    return (
        name if score["role"] == "gate" else f"{name} ({score['role']})",
        counted(score),
        number(score["baseline_mean"], ".1f"),
        number(score["candidate_mean"], ".1f"),
        number(score["mean_drop"], "+.2f"),
        interval(score["ci_lower"], score["ci_upper"]),
    )
