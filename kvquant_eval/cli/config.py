"""Hydra's configuration to ``Settings``. The only user of Hydra and OmegaConf."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NoReturn, cast

import hydra
import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException
from omegaconf import OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, MissingMandatoryValue, OmegaConfBaseException

from kvquant_eval.cli.parts import baseline, calibration, candidate, pinned_scales, score_rules, tier
from kvquant_eval.cli.plain import (
    check_plain,
    known_keys,
    mapping,
    missing,
    one_line,
    record,
    shown,
    unknown_key,
    value,
)
from kvquant_eval.cli.scorers import TARGET, build_scorers
from kvquant_eval.core.codec import DataError, nearest
from kvquant_eval.core.folds import canonical
from kvquant_eval.core.modes import every_score
from kvquant_eval.core.policy import Policy
from kvquant_eval.core.records import ModelSpec, Sampling
from kvquant_eval.core.scales import Per
from kvquant_eval.core.settings import (
    CodeSettings,
    EngineSettings,
    JudgeSettings,
    PlaceboKind,
    ReplaySettings,
    ReportSettings,
    SearchSettings,
    Settings,
    TrackingSettings,
)

PACKAGE = Path(__file__).parents[1]
AUTO, NEVER = "auto", "never"
"""What ``resume`` may be, beside a run folder."""
OPEN = ("engine.args.", "engine.env.")
"""What the engine takes is its own business: any key may be added there without Hydra's ``+``."""
LISTS = ("kv", "workload")
"""Groups of which several choices stand side by side."""
KEYS = (
    "model", "engine", "golden", "sampling", "replay", "block_requests", "baseline", "kv", "gate", "workloads",
    "tracking", "scorer", "report", "calibrate", "search", "resume", "runs_dir", "cache_dir",
)  # fmt: skip
OPTIONAL = ("kv", "workloads", "replay", "scorer", "report", "calibrate", "search", "resume")
STORED = ("pinned", "attested")
"""What the ``config.yaml`` of a run folder has besides."""
HYDRA_SAYS = (
    (
        r"Could not override '(.*?)'\. Did you mean to override (?:one of )?(.*?)(?:,.*)?\?",
        r"\1: a group as the defaults list has it, got '\1'; did you mean '\2'?",
    ),
    (r"Multiple values for (\S+)\.", r"\1: one choice, got a second one; write \1=... without +"),
    (r"Override (\S+) looks like .* group '(.*?)' does not exist", r"\1: a group that is there, got '\2'; correct it"),
    (r"An item is already at '(.*?)'", r"\1: a new key behind +, got one that is there; write \1=... without +"),
    (
        r"Could not delete (?:from config\. )?'(.*?)'",
        r"\1: a key that is there and can go, got one that is not; drop the argument",
    ),
)
"""What Hydra says, and how it is said here."""


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


def resumed(stored: Mapping[str, Any], composed: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """The configuration that a run was begun with, for ``resume=RUN_DIR``. Raises DataError for other overrides beside
    it; only ``gate.max_minutes`` may be new.
    """
    own = ("resume", "gate.max_minutes")
    other = next((item for item in overrides if item.lstrip("+").split("=")[0] not in own), None)
    if other is not None:
        raise DataError(f"resume: a run goes on with its own configuration, got {shown(other)} beside it; leave it out")
    gate = {**mapping(stored.get("gate"), "gate"), "max_minutes": composed["gate"]["max_minutes"]}
    return {**stored, "gate": gate}


def platform() -> str:
    """``cpu`` where the CPU build of vLLM is installed, else ``gpu``."""
    try:
        version("vllm-cpu")
    except PackageNotFoundError:
        return "gpu"
    return "cpu"


def compose(
    overrides: Sequence[str], config_dir: str | None = None, over: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Compose the configuration and resolve it to plain data; ``config_dir`` is searched before the project's own.
    ``over``: plain data to compose over, in the place of ``config.yaml``; what it has is taken as it is.

    Raises DataError with what is wrong in one line.
    """
    folders = [*([] if config_dir is None else [_folder(config_dir)]), data_folder("conf")]
    _check_overrides([_parsed(text) for text in overrides], folders)
    for name, path in (("home", home()), ("conf", data_folder("conf")), ("golden", data_folder("golden"))):
        OmegaConf.register_new_resolver(f"kvquant_{name}", lambda path=path: str(path), replace=True)
    OmegaConf.register_new_resolver("kvquant_core_slots", core_slots, replace=True)
    opened = [f"++{item}" if item.startswith(OPEN) else item for item in overrides]
    if over is not None:
        ConfigStore.instance().store("over", OmegaConf.create(_inert(over)))
    try:
        with hydra.initialize_config_dir(str(folders[-1]), version_base="1.3"):
            for folder in folders[:-1]:
                search_path = GlobalHydra.instance().config_loader().get_search_path()
                search_path.prepend("--config-dir", f"file://{folder}", anchor="main")
            config = hydra.compose(
                "config" if over is None else "over",
                overrides=["hydra.searchpath=[]", *opened],  # read the search path again
            )
        data = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except Exception as error:  # noqa: BLE001 - Hydra answers bad input with errors of every kind, AssertionError too
        _refuse(error, folders)
    return cast("dict[str, Any]", data)


def build(data: Mapping[str, Any]) -> Settings:
    """Check the plain configuration and build the settings. Raises DataError with the place, the rule and the value."""
    check_plain(data)
    top = known_keys({key: part for key, part in mapping(data, "configuration").items() if key not in STORED}, KEYS)
    for key in KEYS:
        if key not in top and key not in OPTIONAL:
            raise missing(key)
    gate = dict(mapping(top["gate"], "gate"))
    placebo = value(PlaceboKind, gate.pop("placebo", None), "gate.placebo")
    minutes = gate.pop("max_minutes", None)
    repair = value(bool, gate.pop("repair", False), "gate.repair")
    workloads = mapping(top.get("workloads", {}), "workloads")
    rules = {name: score_rules(workload, f"workloads.{name}") for name, workload in workloads.items()}
    tiers = {name: tier(each, f"workloads.{name}") for name, each in workloads.items()}
    scorer = known_keys(top.get("scorer", {}), ["code", "judge"], "scorer")
    golden = known_keys(top["golden"], ["path", "folds"], "golden")
    replay = record(ReplaySettings, top.get("replay", {}), "replay")
    scorers = build_scorers(workloads, _own_scorers)
    kv, own = mapping(top.get("kv", {}), "kv"), known_keys(top.get("calibrate", {}), ["per"], "calibrate")
    made = {name: found for name, each in kv.items() if (found := calibration(name, each))}
    policy, scorers = every_score(record(Policy, gate, "gate", scores=rules, tiers=tiers), scorers, replay.mode)
    return Settings(
        model=record(ModelSpec, top["model"], "model"),
        engine=record(EngineSettings, top["engine"], "engine", platform=platform()),
        golden_path=value(str, golden.get("path"), "golden.path"),
        folds=canonical(value(tuple[int, ...], golden.get("folds", []), "golden.folds")),
        sampling=record(Sampling, top["sampling"], "sampling"),
        block_requests=value(int, top["block_requests"], "block_requests"),
        baseline=baseline(top["baseline"]),
        candidates={name: candidate(name, each, made.get(name)) for name, each in kv.items()},
        calibrations=made,
        per=value(Per, own.get("per", Per.LAYER), "calibrate.per"),
        placebo=placebo,
        max_minutes=None if minutes is None else value(float, minutes, "gate.max_minutes"),
        reuse=value(str, top.get("resume", AUTO), "resume") != NEVER,
        policy=policy,
        scorers=scorers,
        replay=replay,
        search=record(SearchSettings, top.get("search", {}), "search"),
        repair=repair,
        report=record(ReportSettings, top.get("report", {}), "report"),
        judge=record(JudgeSettings, scorer.get("judge", {}), "scorer.judge"),
        tracking=record(TrackingSettings, top["tracking"], "tracking"),
        code=record(CodeSettings, scorer.get("code", {}), "scorer.code"),
        runs_dir=value(str, top["runs_dir"], "runs_dir"),
        cache_dir=value(str, top["cache_dir"], "cache_dir"),
        config=pinned_scales(data, made),
    )


def parsed(text: str) -> tuple[str, Any, bool]:
    """Key (with its package, where it has one), value, and whether it is left out (``~``), of one argument. Raises
    DataError as ``compose``.
    """
    override = _parsed(text)
    return override.get_key_element().lstrip("+~"), override.value(), override.is_delete()


def _inert(node: Any) -> Any:
    """Plain data with all its texts as they are: OmegaConf would put something in the place of ``${...}``."""
    if isinstance(node, Mapping):
        return {key: _inert(inner) for key, inner in node.items()}
    if isinstance(node, list | tuple):
        return [_inert(inner) for inner in node]
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", node) if isinstance(node, str) else node


def _own_scorers() -> list[str]:
    return [
        yaml.safe_load(path.read_text(encoding="utf-8"))[TARGET]
        for path in sorted(data_folder("conf").glob("scorer/*.yaml"))
    ]


def _folder(config_dir: str) -> Path:
    if not config_dir or not os.path.isdir(config_dir):  # noqa: PTH112 - False, not an error, for what is no path at all
        raise DataError(f"--config-dir: a folder, got {shown(config_dir)}; correct the path")
    return Path(config_dir).resolve()


def _parsed(text: str) -> Override:
    """One argument. Raises DataError with the place where it stops being ``key=value``."""
    rule = f"{shown(text)}: key=value"
    if "=" not in text and not text.startswith("~"):
        raise DataError(f"{rule}, got no '='; write {one_line(text, 80) or 'key'}=VALUE")
    try:
        override = OverridesParser.create().parse_override(text)
    except HydraException as error:
        if "while evaluating" in str(error):
            reason = one_line(str(error).split(": ", 1)[-1])
            raise DataError(f"{rule}, got a function that fails ({reason}); write the value itself") from None
        at = _position(text, error)
        got = f"{shown(text[at])} at character {at + 1}" if at < len(text) else "an end too soon"
        remedy = "a key is names with dots, and a value with special characters stands in quotes: \"key='...'\""
        if at >= len(text):
            remedy = "close what it opens"
        raise DataError(f"{rule}, got {got}; {remedy}") from None
    if not override.key_or_group:
        raise DataError(f"{rule}, got no key; write one before the '='")
    return override


def _position(text: str, error: HydraException) -> int:
    """The character where Hydra's parser gave up, from 0; the length of ``text`` for its end."""
    cause = error.__cause__
    for place in (cause, getattr(cause, "offendingToken", None)):
        for name in ("startIndex", "start"):
            if isinstance(at := getattr(place, name, None), int):
                return at
    found = re.search(r"(?:at|input) '(.*)'", str(error))
    return text.rfind(found[1]) if found and found[1] in text else len(text)


def _check_overrides(overrides: Sequence[Override], folders: Sequence[Path]) -> None:
    """What Hydra would take without a word, or refuse with an error that helps nobody."""
    given: dict[str, str] = {}
    for override in overrides:
        key, text = override.get_key_element().lstrip("+~"), str(override.input_line)
        written = text.partition("=")[2]
        if key.split(".")[0].split("/")[0] == "hydra":
            raise DataError(f"{key}: a key of the gate, got one of Hydra's own; leave it out")
        if override.is_sweep_override():
            simple = re.fullmatch(r"[^(]*,[^(]*", written)
            remedy = f"for a list write {key}=[{one_line(written, 80)}]" if simple else "write the value itself"
            raise DataError(f"{key}: one value, got {shown(written)}; {remedy}")
        if override.is_delete() and "=" in text:
            raise DataError(f"{key}: a key to leave out, without a value, got {shown(written)}; write ~{key}")
        if given.setdefault(key, written) != written:
            raise DataError(f"{key}: one value, got {shown(given[key])} and {shown(written)}; leave one of them out")
        if any((folder / override.key_or_group).is_dir() for folder in folders) and not override.is_delete():
            _check_choice(key, override.key_or_group, override.value(), written, folders)


def _check_choice(key: str, group: str, choice: Any, written: str, folders: Sequence[Path]) -> None:
    """A group takes the name of one of its files; ``kv`` and ``workload`` take several."""
    many = isinstance(choice, list) and group in LISTS
    names = choice if many else [choice]
    if isinstance(choice, dict):
        return
    if not all(isinstance(name, str) and name for name in names):
        rule = "names of files" if group in LISTS else "the name of one of the files"
        raise DataError(
            f"{key}: {rule} in conf/{group}, got {shown(written)}; choose from {', '.join(_choices(group, folders))}"
        )
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise DataError(f"{key}: each choice once, got {shown(twice)} twice; leave one of them out")


def _choices(group: str, folders: Sequence[Path]) -> list[str]:
    return sorted({one_line(path.stem) for folder in folders for path in (folder / group).glob("*.yaml")})


def _refuse(error: Exception, folders: Sequence[Path]) -> NoReturn:
    """Hydra's error as one line."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, name = error.missing_cfg_file.rpartition("/")
        choices = _choices(group, folders)
        remedy = nearest(name, choices) if choices else "there are none; correct the defaults list"
        raise DataError(f"{group}: one of the files in conf/{group}, got {shown(name)}; {remedy}") from None
    if isinstance(error, yaml.YAMLError | UnicodeDecodeError):
        raise _bad_yaml(error, folders) from None
    if isinstance(error, MissingMandatoryValue):
        raise missing(str(error.full_key)) from None
    cause = error.__cause__
    if isinstance(cause, ConfigAttributeError | ConfigKeyError) and isinstance(cause.parent_node, Mapping):
        known = [str(key) for key in cause.parent_node if key != "hydra"]
        raise unknown_key(str(cause.full_key), str(cause.key), known) from None
    if isinstance(error, OmegaConfBaseException):
        reason = one_line(str(error).partition("\n")[0].rpartition(" raised while resolving interpolation: ")[2])
        raise DataError(f"{error.full_key}: a value, got ${{...}} without one ({reason}); correct it") from None
    said = " ".join(str(error).split())
    if isinstance(cause, OmegaConfBaseException):
        reason = str(cause).partition("\n")[0]
        said = f"{said}: {reason}".removeprefix(": ")
    for pattern, line in HYDRA_SAYS:
        if match := re.search(pattern, said):
            raise DataError(one_line(match.expand(line))) from None
    raise DataError(f"configuration: what Hydra can compose, got an error ({one_line(said)}); correct it") from None


def _bad_yaml(error: yaml.YAMLError | UnicodeDecodeError, folders: Sequence[Path]) -> DataError:
    place, reason = "configuration", str(error)
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        mark, reason = error.problem_mark, str(error.problem)
        place = f"{mark.name}:{mark.line + 1}:{mark.column + 1}"
    elif isinstance(error, UnicodeDecodeError):
        files = (path for folder in folders for path in folder.glob("**/*.yaml"))
        place = next((str(path) for path in files if error.object in path.read_bytes()), place)
    return DataError(f"{one_line(place)}: YAML in UTF-8, got an error ({one_line(reason)}); correct it")
