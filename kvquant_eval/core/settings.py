"""Everything a gate needs to know, checked once: what ``cli.config`` builds from Hydra's configuration."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from kvquant_eval.core.codec import DataError, digest, nearest
from kvquant_eval.core.folds import FOLDS
from kvquant_eval.core.limits import check_name, check_number
from kvquant_eval.core.policy import Policy
from kvquant_eval.core.records import ModelSpec, OnDivergence, ReplayMode, Sampling
from kvquant_eval.core.scales import Calibration, Per
from kvquant_eval.core.score import Scorer
from kvquant_eval.core.treatment import KVTreatment, Realisation, check_source, is_skip_entry

RESERVED = ("baseline", "baseline_eager", "repeat", "placebo")
"""Arms of every gate (``arms.plan_arms``)."""
CANDIDATE_MARKS = "_.+-"
"""Beside letters and digits in a candidate's name. Classes and scores become metrics, which have no ``+``."""
SOURCES = ("hub", "folder", "embedded")
MODULE_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,79}")
WEEK = 7 * 24 * 3600
VLLM_MAX_LOGPROBS = 20
"""The most top log probabilities that vLLM gives where ``engine.args.max_logprobs`` does not say otherwise."""


class Unit(StrEnum):
    """``LAYER``: K and V of a layer together. ``HALF``: each by itself, which only reference formats can."""

    LAYER = "layer"
    HALF = "half"


class PlaceboKind(StrEnum):
    """``JITTER``: K and V moved by at most one BF16 unit in the last place. ``BATCH_LIMIT``: half of
    ``max_num_seqs``, for models and engines that hooks cannot reach.
    """

    JITTER = "jitter"
    BATCH_LIMIT = "batch_limit"


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """Which engine, how it is started, and when it is taken for dead.

    ``engine`` and ``preparer`` are ``module:name``; ``args`` go to the engine as they are, the same in every arm.
    ``timeout_s`` bounds its start and every short answer, ``stall_s`` the time without a token in a block (seconds);
    ``retries`` is how often a dead engine is started again before it has finished another block. ``slots`` are places
    for arms to run side by side, each with the environment that keeps it to its own cores or devices; ``env`` holds for
    all of them. Where an arm runs is no part of its fingerprint.
    """

    engine: str
    preparer: str
    args: Mapping[str, Any]
    platform: str
    timeout_s: float = 1800.0
    stall_s: float = 600.0
    retries: int = 2
    top_logprobs: int = 20
    env: Mapping[str, str] = field(default_factory=dict)
    slots: tuple[Mapping[str, str], ...] = ({},)

    def __post_init__(self) -> None:
        for name in ("engine", "preparer"):
            if not MODULE_NAME.fullmatch(target := getattr(self, name)):
                raise DataError(f"engine.{name}: module:name, got {target[:80]!r}; name what is in a Python module")
        check_number("engine.timeout_s", self.timeout_s, above=0, up_to=WEEK, usual=1800)
        check_number("engine.stall_s", self.stall_s, above=0, up_to=WEEK, usual=600)
        check_number("engine.retries", self.retries, at_least=0, up_to=100, usual=2)
        most = None if "max_logprobs" in self.args else VLLM_MAX_LOGPROBS
        check_number("engine.top_logprobs", self.top_logprobs, at_least=1, up_to=most, usual=20)
        if not self.slots:
            raise DataError("engine.slots: at least one, got []; for one arm at a time: engine.slots=[{}]")
        for where, env in (("engine.env", self.env), *((f"engine.slots.{n}", s) for n, s in enumerate(self.slots))):
            _check_environment(where, env)
        for name, value in self.args.items():
            _check_argument(name, value)


@dataclass(frozen=True, kw_only=True)
class TrackingSettings:
    """MLflow: where runs go. ``uri`` empty: nothing is logged. ``log_texts``: replies go along with the scores.
    ``evaluation``: the worst flagged turns go along as MLflow evaluations, a run an arm, to be compared row by row.

    ``timeout_s`` bounds all of it (seconds): no request is begun later. MLflow's own settings bound one request.
    """

    uri: str
    experiment: str
    log_texts: bool = False
    evaluation: bool = False
    timeout_s: float = 300.0

    def __post_init__(self) -> None:
        check_number("tracking.timeout_s", self.timeout_s, above=0, up_to=WEEK, usual=300)
        if self.uri and not self.experiment.strip():
            raise DataError("tracking.experiment: a name where tracking.uri is set, got none; or choose tracking=none")


@dataclass(frozen=True, kw_only=True)
class ReplaySettings:
    """What is replayed. ``on_divergence`` is for free-running conversations."""

    mode: ReplayMode = ReplayMode.GOLDEN_PREFIX
    on_divergence: OnDivergence = OnDivergence.STOP


@dataclass(frozen=True, kw_only=True)
class ReportSettings:
    """What is found out beside the decision. ``range_profile``: how large K and V are, by layer and head."""

    range_profile: bool = False


@dataclass(frozen=True, kw_only=True)
class CodeSettings:
    """How the code of replies is executed: ``seconds`` of CPU time (five times that by the clock) and ``memory_mb``
    (MiB) for a reply and its tests; ``allow_execution``: also where isolation is weak.
    """

    allow_execution: bool = False
    seconds: float = 10.0
    memory_mb: int = 512

    def __post_init__(self) -> None:
        check_number("scorer.code.seconds", self.seconds, at_least=1, up_to=3600, usual=10)
        check_number("scorer.code.memory_mb", self.memory_mb, at_least=64, up_to=2**20, usual=512)


@dataclass(frozen=True, kw_only=True)
class JudgeSettings:
    """Where the judge model of the scorer ``judge`` is: any OpenAI-compatible endpoint.

    ``url`` is its base address (``.../v1``); ``api_key_env`` names the environment variable with the key, which stands
    in no configuration (empty: no key). ``timeout_s`` bounds one attempt (seconds), ``retries`` how often an answer is
    asked for again, ``at_once`` the questions side by side.
    """

    url: str = ""
    model: str = ""
    api_key_env: str = ""
    timeout_s: float = 60.0
    retries: int = 3
    at_once: int = 4

    def __post_init__(self) -> None:
        if self.url and (why := _url_problem(self.url)):
            raise DataError(f"scorer.judge.url: a base address such as http://host:8000/v1, got {why}; correct it")
        if self.api_key_env and not VARIABLE.fullmatch(self.api_key_env):
            rule = "the name of an environment variable, got something else, not shown: it may be a key"
            raise DataError(f"scorer.judge.api_key_env: {rule}; export the key and name its variable here")
        check_number("scorer.judge.timeout_s", self.timeout_s, above=0, up_to=3600, usual=60)
        check_number("scorer.judge.retries", self.retries, at_least=0, up_to=100, usual=3)
        check_number("scorer.judge.at_once", self.at_once, at_least=1, up_to=64, usual=4)


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """How mixed precision is searched. ``unit``: what may stay in BF16 by itself; ``max_passes``: engine passes at most
    before the confirming gate; the folds (``core.folds``) that rank the units, choose among sets of them, and confirm.
    """

    unit: Unit = Unit.LAYER
    max_passes: int = 250
    sensitivity_folds: tuple[int, ...] = (0,)
    choose_folds: tuple[int, ...] = (0, 2, 4, 6)
    confirm_folds: tuple[int, ...] = (1, 3, 5, 7)

    def __post_init__(self) -> None:
        check_number("search.max_passes", self.max_passes, at_least=1, usual=250)
        for name in ("sensitivity_folds", "choose_folds", "confirm_folds"):
            _check_folds(f"search.{name}", folds := getattr(self, name))
            if not folds:
                raise DataError(f"search.{name}: at least one fold, got []; name some of 0 to {FOLDS - 1}")
        seen = {*self.sensitivity_folds, *self.choose_folds} & {*self.confirm_folds}
        if seen:
            rule = "folds that nothing was chosen on"
            raise DataError(f"search.confirm_folds: {rule}, got {min(seen)} in both; name others")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One gate. ``config`` is the resolved configuration as plain data, for the run folder.

    ``folds``: those of the golden set that are replayed (``core.folds``; none named: all); ``left_out``: scores of the
    configuration that are not in ``policy`` and ``scorers``, as ``<class>.<score>``, and why; ``reuse``: finished
    blocks of earlier runs are used again; ``generate``: the model writes replies of its own too; ``repair``: a
    candidate that is held is searched for mixed precision, as ``search`` says; ``max_minutes``: when the gate stops by
    itself (None: never), to be gone on with later.
    """

    model: ModelSpec
    engine: EngineSettings
    golden_path: str
    sampling: Sampling
    block_requests: int
    baseline: KVTreatment
    candidates: Mapping[str, KVTreatment]
    placebo: PlaceboKind
    policy: Policy
    scorers: Mapping[str, Mapping[str, Scorer]]
    tracking: TrackingSettings
    runs_dir: str
    cache_dir: str
    config: Mapping[str, Any]
    folds: tuple[int, ...] = ()
    code: CodeSettings = field(default_factory=CodeSettings)
    left_out: Mapping[str, str] = field(default_factory=dict)
    reuse: bool = True
    generate: bool = True
    repair: bool = False
    search: SearchSettings = field(default_factory=SearchSettings)
    max_minutes: float | None = None
    replay: ReplaySettings = ReplaySettings()
    judge: JudgeSettings = field(default_factory=JudgeSettings)
    report: ReportSettings = ReportSettings()
    calibrations: Mapping[str, Calibration] = field(default_factory=dict)
    per: Per = Per.LAYER

    def __post_init__(self) -> None:
        for where in ("golden_path", "runs_dir", "cache_dir"):
            _check_path(where.replace("golden_", "golden."), getattr(self, where))
        _check_model(self.model)
        _check_candidates(self.candidates)
        _check_sampling(self.sampling)
        _check_folds("golden.folds", self.folds)
        check_number("block_requests", self.block_requests, at_least=2, usual=64)
        if self.max_minutes is not None:
            check_number("gate.max_minutes", self.max_minutes, above=0, up_to=WEEK / 60, usual=60)
        unknown = sorted(set(self.policy.require) - set(self.candidates))
        if unknown:
            rule = f"gate.require: names of candidates, got {unknown[0][:80]!r}"
            raise DataError(f"{rule}; choose from {sorted(self.candidates)}")
        if self.report.range_profile:
            _check_profile(self)


def _url_problem(url: str) -> str | None:
    """What is wrong with a base address; it is not shown where it may hold a password or a key."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "one that is no address"
    if "@" in parts.netloc or parts.query or parts.fragment:
        return "one with a user, a password, a query or a fragment, not shown; a key goes into scorer.judge.api_key_env"
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or not url.isprintable() or " " in url:
        return repr(url[:80])
    return None


def _check_profile(settings: Settings) -> None:
    """K and V are seen by hooks, which a compiled engine ignores; a gate with hooks has an eager baseline."""
    hooked = any(treatment.realisation is Realisation.REFERENCE for treatment in settings.candidates.values())
    if settings.engine.args.get("enforce_eager") or settings.placebo is PlaceboKind.JITTER or hooked:
        return
    rule = "an eager baseline to look into, got none (a compiled engine ignores hooks)"
    raise DataError(f"report.range_profile: {rule}; set engine.args.enforce_eager=true or gate.placebo=jitter")


def _check_folds(where: str, folds: Sequence[int]) -> None:
    for fold in folds:
        check_number(where, fold, at_least=0, up_to=FOLDS - 1, usual=0)
    if len(set(folds)) < len(folds):
        raise DataError(f"{where}: each fold once, got {list(folds)}; correct it")


def _check_path(where: str, path: str) -> None:
    if not path or "\0" in path:
        raise DataError(f"{where}: a path, got {path[:80]!r}; set it: {where}=...")


def _check_model(model: ModelSpec) -> None:
    if not model.id.strip():
        raise DataError("model.id: a name such as org/name, got ''; set it: model.id=...")
    if model.source not in SOURCES:
        near = nearest(model.source, SOURCES)
        raise DataError(f"model.source: one of {', '.join(SOURCES)}, got {model.source[:80]!r}; {near}")


def _check_candidates(candidates: Mapping[str, KVTreatment]) -> None:
    if not candidates:
        raise DataError("kv: at least one candidate, got none; name one, such as kv=[fp8_e4m3]")
    for name, treatment in candidates.items():
        check_name("kv", name, CANDIDATE_MARKS)
        if name in RESERVED:
            raise DataError(f"kv: candidates beside {', '.join(RESERVED)}, got {name!r}; give it another name")
        check_halves(f"kv.{name}", treatment)
        check_source(f"kv.{name}", treatment)
        for layer in treatment.skip_layers:
            if not is_skip_entry(layer):
                rule = "layer numbers or sliding_window"
                raise DataError(f"kv.{name}.skip_layers: {rule}, got {layer[:80]!r}; such as ['0','29']")


def check_halves(where: str, treatment: KVTreatment) -> None:
    """Raise DataError unless K and V each have one format; only a reference treats one otherwise than the other."""
    if not all(treatment.formats):
        raise DataError(f"{where}.dtype: a KV dtype, got none; set {where}.dtype=..., or {where}.k and {where}.v")
    if treatment.dtype and treatment.k and treatment.v:
        rule = "no third format where K and V have their own"
        raise DataError(f"{where}.dtype: {rule}, got {treatment.dtype[:80]!r}; leave it out")
    half = next((entry for entry in treatment.skip_layers if "." in entry), "")
    for key, found in (("k", treatment.k), ("v", treatment.v), ("skip_layers", half)):
        if found and treatment.realisation is Realisation.NATIVE:
            rule = "what a native dtype can do (an engine stores K and V of a layer alike)"
            raise DataError(f"{where}.{key}: {rule}, got {found[:80]!r}; set {where}.realisation=reference")
    if treatment.realisation is Realisation.REFERENCE and treatment.formats == ("bfloat16", "bfloat16"):
        raise DataError(f"{where}.dtype: a format to round K or V to, got 'bfloat16'; name one")


def _check_sampling(sampling: Sampling) -> None:
    if not (sampling.temperature == 0 or 0.01 <= sampling.temperature < math.inf):
        rule = "0 or at least 0.01 (vLLM clamps what is between)"
        raise DataError(f"sampling.temperature: {rule}, got {sampling.temperature}; such as sampling.temperature=0.7")
    check_number("sampling.top_p", sampling.top_p, above=0, up_to=1, usual=1.0)
    check_number("sampling.top_k", sampling.top_k, at_least=0, up_to=2**31 - 1, usual=0)
    check_number("sampling.epochs", sampling.epochs, at_least=1, up_to=1000, usual=1)
    check_number("sampling.seed", sampling.seed, at_least=0, up_to=2**63 - 1, usual=0)
    if sampling.epochs > 1 and sampling.temperature == 0:
        rule = "1 when greedy (every epoch would be the same)"
        raise DataError(f"sampling.epochs: {rule}, got {sampling.epochs}; set sampling.temperature too")


def _check_argument(name: str, value: Any) -> None:
    if not name.isidentifier():
        raise DataError(f"engine.args: names of the engine's arguments, got {name[:80]!r}; correct it")
    try:
        digest(value)
    except ValueError:
        rule = "a value that JSON has: no NaN, no infinity, no broken text"
        raise DataError(f"engine.args.{name}: {rule}, got {str(value)[:80]!r}; correct it") from None


def _check_environment(where: str, env: Mapping[str, str]) -> None:
    for name, value in env.items():
        if not name or "=" in name or "\0" in name + value:
            raise DataError(f"{where}: environment variables, got {f'{name}={value}'[:80]!r}; correct name and value")
