"""Parts of a gate from plain configuration data, where a record alone cannot say what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvquant_eval.cli.plain import known_keys, mapping, record, shown
from kvquant_eval.core.codec import DataError
from kvquant_eval.core.limits import check_name
from kvquant_eval.core.policy import ScorePolicy
from kvquant_eval.core.settings import CANDIDATE_MARKS, check_halves
from kvquant_eval.core.treatment import KVTreatment, Realisation

UNQUANTIZED = ("bfloat16", "auto", "float16")


def candidate(name: str, kv: Any) -> KVTreatment:
    """A candidate by the name it has under ``kv``. Raises DataError."""
    check_name("kv", name, CANDIDATE_MARKS)
    if not isinstance(kv, Mapping):
        rule = "keys and values such as dtype"
        raise DataError(f"kv.{name}: {rule}, got {shown(kv)}; a yaml of your own begins with '# @package kv.NAME'")
    return record(KVTreatment, kv, f"kv.{name}", name=name)


def baseline(kv: Any) -> KVTreatment:
    """The baseline. Raises DataError for a quantized one: it would hide what quantization does, and no engine is needed
    to know that.
    """
    made = record(KVTreatment, kv, "baseline", name="baseline")
    if not {*made.formats} <= {*UNQUANTIZED}:
        rule = f"a dtype that is not quantized ({', '.join(UNQUANTIZED)})"
        raise DataError(f"baseline.dtype: {rule}, got {shown(made.requested)}; set baseline.dtype=bfloat16")
    if made.realisation is not Realisation.NATIVE:
        raise DataError("baseline.realisation: native, got 'reference'; leave it out")
    check_halves("baseline", made)
    return made


def score_rules(workload: Any, where: str) -> dict[str, dict[str, Any]]:
    """The scores of a class as ``Policy`` takes them: without their scorers. Raises DataError."""
    check_name("workloads", where.removeprefix("workloads."))
    scores = mapping(known_keys(workload, ["scores"], where).get("scores"), f"{where}.scores")
    for name in scores:
        check_name(f"{where}.scores", name)
    rules = {name: {**mapping(rule, f"{where}.scores.{name}")} for name, rule in scores.items()}
    for name, rule in rules.items():
        rule.pop("scorer", None)
        _check_score(rule, f"{where}.scores.{name}")
    return rules


def _check_score(rule: Mapping[str, Any], where: str) -> None:
    try:
        record(ScorePolicy, rule, where)
    except DataError as error:  # a ScorePolicy does not know where it stands
        raise DataError(str(error) if str(error).startswith(where) else f"{where}.{error}") from None
