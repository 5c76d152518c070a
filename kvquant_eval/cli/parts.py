"""Parts of a gate from plain configuration data, where a record alone cannot say what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvquant_eval.cli.plain import known_keys, mapping, record, shown, value
from kvquant_eval.core.codec import DataError, to_data
from kvquant_eval.core.limits import check_name
from kvquant_eval.core.policy import ScorePolicy, Tier
from kvquant_eval.core.scales import Calibration, checked
from kvquant_eval.core.settings import CANDIDATE_MARKS, check_halves
from kvquant_eval.core.treatment import KVTreatment, Realisation, together
from kvquant_eval.io.calibrations import read

FROM = "scales_from"
UNQUANTIZED = ("bfloat16", "auto", "float16")


def calibration(name: str, kv: Any) -> Calibration | None:
    """The calibration that a candidate's ``scales_from`` names: a file, or in a run folder what stood in it (None:
    none). Raises DataError.
    """
    given, where = kv.get(FROM) if isinstance(kv, Mapping) else None, f"kv.{name}.{FROM}"
    if isinstance(given, Mapping):
        return checked(value(Calibration, given, where), where)
    if given is None:
        return None
    try:
        return read(Path(value(str, given, where)).expanduser())
    except RuntimeError as error:  # ~nobody
        raise DataError(f"{where}: a path, got {shown(given)} ({error}); correct it") from None


def candidate(name: str, kv: Any, made: Calibration | None = None) -> KVTreatment:
    """A candidate by the name it has under ``kv``, with the scales of its calibration. Raises DataError."""
    check_name("kv", name, CANDIDATE_MARKS)
    if not isinstance(kv, Mapping):
        rule = "keys and values such as dtype"
        raise DataError(f"kv.{name}: {rule}, got {shown(kv)}; a yaml of your own begins with '# @package kv.NAME'")
    own = {key: given for key, given in kv.items() if key != FROM}
    found = record(KVTreatment, own, f"kv.{name}", name=name, layer_scales=[])
    if made and found.formats != (made.k_format, made.v_format):
        rule = f"scales for {found.requested}"
        got = f"those for {together(made.k_format, made.v_format)}"
        raise DataError(f"kv.{name}.{FROM}: {rule}, got {got}; calibrate with this candidate: kv=[{name}]")
    return replace(found, layer_scales=made.scales) if made else found


def pinned_scales(data: Mapping[str, Any], made: Mapping[str, Calibration]) -> dict[str, Any]:
    """The configuration with the calibrations in the place of their files, so that a run folder needs none of them."""
    kv = mapping(data.get("kv", {}), "kv")
    return {**data, "kv": {n: {**each, FROM: to_data(made[n])} if n in made else each for n, each in kv.items()}}


def baseline(kv: Any) -> KVTreatment:
    """The baseline. Raises DataError for a quantized one: it would hide what quantization does, and no engine is needed
    to know that.
    """
    made = record(KVTreatment, kv, "baseline", name="baseline", layer_scales=[])
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
    scores = mapping(known_keys(workload, ["scores", "tier"], where).get("scores"), f"{where}.scores")
    for name in scores:
        check_name(f"{where}.scores", name)
    rules = {name: {**mapping(rule, f"{where}.scores.{name}")} for name, rule in scores.items()}
    for name, rule in rules.items():
        rule.pop("scorer", None)
        _check_score(rule, f"{where}.scores.{name}")
    return rules


def tier(workload: Mapping[str, Any], where: str) -> Tier:
    """How the class counts. Raises DataError."""
    return value(Tier, workload.get("tier", Tier.CRITICAL), f"{where}.tier")


def _check_score(rule: Mapping[str, Any], where: str) -> None:
    try:
        record(ScorePolicy, rule, where)
    except DataError as error:  # a ScorePolicy does not know where it stands
        raise DataError(str(error) if str(error).startswith(where) else f"{where}.{error}") from None
