"""Every number of the configuration has a range, every value a type, every name its letters."""

from __future__ import annotations

import datetime
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra.core.global_hydra import GlobalHydra

from kvquant_eval.cli.config import build, compose
from kvquant_eval.core.codec import DataError
from kvquant_eval.core.scales import LayerScales

NAN, INF = float("nan"), float("inf")
RANGES = [
    ("gate.min_turns", [0, 1, 10**6], [-1]),
    ("gate.min_headroom", [1], [0, -1]),
    ("gate.headroom_points", [0, 100], [-0.1, 100.1, NAN, INF]),
    ("gate.hold_level", [1e-9, 0.99], [0, 1, -0.1, NAN, INF]),
    ("gate.anomalous_gain", [0.1, 100], [0, -1, 101, NAN, INF]),
    ("workloads.faq.scores.gl_reply.margin", [0.1, 100], [0, -1, 100.1, NAN, INF]),
    ("workloads.faq.scores.gl_reply.flag_over", [0.1, 100], [0, -1, 100.1, NAN, INF]),
    ("sampling.temperature", [0, 0.01, 2], [-1, 0.001, NAN, INF]),
    ("sampling.top_p", [0.1, 1], [0, 1.1, -1, NAN, INF]),
    ("sampling.top_k", [0, 50], [-1, 2**31]),
    ("sampling.epochs", [1], [0, -1, 1001]),
    ("sampling.seed", [0, 2**63 - 1], [-1, 2**63]),
    ("engine.timeout_s", [0.1, 604800], [0, -1, 604801, NAN, INF]),
    ("engine.retries", [0, 100], [-1, 101]),
    ("engine.top_logprobs", [1, 20], [0, -1, 21]),
    ("scorer.judge.timeout_s", [0.1, 3600], [0, -1, 3601, NAN, INF]),
    ("scorer.judge.retries", [0, 100], [-1, 101]),
    ("scorer.judge.at_once", [1, 64], [0, -1, 65]),
    ("block_requests", [2, 10**6], [1, 0, -1]),
    ("scorer.code.seconds", [1, 3600], [0.9, 0, -1, 3601, NAN, INF]),
    ("scorer.code.memory_mb", [64, 2**20], [63, 0, -1, 2**20 + 1]),
]  # fmt: skip
TYPES = [
    ("scorer.code.allow_execution", ["yes", 1, None, []], "true or false"),
    ("scorer.code.memory_mb", ["3", 3.5, True, None], "a whole number"),
    ("gate.min_turns", ["3", 3.5, True, None, [3], {"a": 3}], "a whole number"),
    ("gate.headroom_points", ["3", True, None, []], "a number"),
    ("gate.name", [3, True, None, []], "text"),
    ("gate.rule", ["zero", 3, None], "one of zero_flags, default"),
    ("gate.placebo", ["none", 3, None, []], "one of jitter, batch_limit"),
    ("gate.require", ["a", 3, None, {}], "a list"),
    ("gate.modes", [None, 3, "gate"], "keys and values"),
    ("replay", [None, 3, "free_running"], "keys and values"),
    ("report", [None, 3, "range_profile"], "keys and values"),
    ("report.range_profile", ["yes", 1, None, []], "true or false"),
    ("model.trust_remote_code", ["yes", 1, None], "true or false"),
    ("model.source", ["hubb", ""], "one of hub, folder, embedded"),
    ("model.id", [None, 3], "text"),
    ("engine.args", [None, [], 3], "keys and values"),
    ("engine.slots", [None, {}, "x"], "a list"),
    ("engine.engine", ["vllm", "a:b:c", ":", "os.system"], "module:name"),
    ("engine", [None, 3, []], "keys and values"),
    ("workloads.faq", [None, 3, []], "keys and values"),
    ("workloads.faq.scores.gl_reply", [None, 3], "keys and values"),
    ("kv.fp8_e4m3", [None, 3, "x"], "keys and values"),
    ("runs_dir", [None, 3], "text"),
    ("runs_dir", ["", "a\0b"], "a path"),
    ("golden.path", [""], "a path"),
    ("golden.folds", [None, 3, {}], "a list"),
    ("golden.folds", [[-1], [8]], "at least 0 and up to 7"),
    ("golden.folds", [[1, 1]], "each fold once"),
    ("gate.repair", ["yes", 1, None], "true or false"),
    ("search", [None, 3, []], "keys and values"),
    ("search.unit", ["layers", 3, None], "one of layer, half"),
    ("search.max_passes", ["3", 3.5, True, None], "a whole number"),
    ("search.max_passes", [0, -1], "at least 1"),
    ("search.sensitivity_folds", [[8], [-1]], "at least 0 and up to 7"),
    ("search.choose_folds", [[]], "at least one fold"),
    ("search.confirm_folds", [[0], [1, 2]], "folds that nothing was chosen on"),
    ("tracking.uri", [None, 3], "text"),
    ("scorer.judge", [None, 3, []], "keys and values"),
    ("scorer.judge.url", [None, 3], "text"),
    ("scorer.judge.url", ["h:8000", "ftp://h/v1", "http://", "http://h:x", "http://a b/", "//h"], "a base address"),
    ("scorer.judge.api_key_env", ["sk-1", "A B", "1A", "A=B", "x" * 81], "the name of an environment variable"),
]
NAMES = [
    "../../x",
    "a/b",
    ".",
    "..",
    ".hidden",
    "",
    "a b",
    "é",
    "a\nb",
    "a\x1b[31m",
    "x" * 81,
    "a:b",
    "*",
    "\u202ex",
    "a\0",
]


def _set(config: dict[str, Any], where: str, value: Any) -> None:
    *above, last = where.split(".")
    node = config
    for key in above:
        node = node[key]
    node[last] = value


def _cases(table: Any, column: int) -> list[Any]:
    return [pytest.param(row[0], value, id=f"{row[0]}={value}") for row in table for value in row[column]]


@pytest.mark.parametrize(("where", "value"), _cases(RANGES, 1))
def test_a_number_within_its_range_is_taken(config: dict[str, Any], where: str, value: float) -> None:
    _set(config, where, value)
    build(config)


@pytest.mark.parametrize(("where", "value"), _cases(RANGES, 2))
def test_a_number_out_of_its_range_is_refused_by_name(config: dict[str, Any], where: str, value: float) -> None:
    _set(config, where, value)
    with pytest.raises(DataError) as caught:
        build(config)
    place, _, said = str(caught.value).partition(": ")
    assert place == where
    assert f", got {value}" in said or f", got {float(value)}" in said


@pytest.mark.parametrize(
    ("where", "value", "rule"),
    [pytest.param(where, value, rule, id=f"{where}={value!r}") for where, values, rule in TYPES for value in values],
)
def test_a_value_of_another_type_is_refused_by_name(config: dict[str, Any], where: str, value: Any, rule: str) -> None:
    _set(config, where, value)
    with pytest.raises(DataError) as caught:
        build(config)
    assert str(caught.value).startswith(f"{where}: {rule}")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("where", ["kv", "workloads", "workloads.faq.scores"])
def test_a_name_that_could_be_a_path_is_refused(config: dict[str, Any], where: str, name: str) -> None:
    node = config
    for key in where.split("."):
        node = node[key]
    node[name] = next(iter(node.values()))
    with pytest.raises(DataError, match=rf"^{where}: names of letters, digits") as caught:
        build(config)
    assert str(caught.value).isprintable()


def test_a_plus_is_for_candidates_alone(config: dict[str, Any]) -> None:
    """MLflow's metrics have none."""
    config["kv"] = {"fp8+skip": config["kv"]["fp8_e4m3"]}
    assert list(build(config).candidates) == ["fp8+skip"]
    config["workloads"]["faq+"] = config["workloads"]["faq"]
    with pytest.raises(DataError, match=r"^workloads: names"):
        build(config)


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (datetime.date(2024, 1, 1), r"^model\.id: text, .*, got 2024-01-01; "),
        (b"x", r"^model\.id: text, "),
        ("\ud800", r"^model\.id: text in UTF-8, got '\\ud800'; "),
        (10**30, r"^model\.id: a number of at most 64 bits, got one of 100; "),
        ({1: 2}, r"^model\.id: keys that are text, got 1; "),
    ],
)
def test_what_json_cannot_say_is_refused_by_name(config: dict[str, Any], value: Any, line: str) -> None:
    config["model"]["id"] = value
    with pytest.raises(DataError, match=line):
        build(config)


def test_a_configuration_that_holds_itself_is_refused(config: dict[str, Any]) -> None:
    config["engine"]["args"]["x"] = config
    with pytest.raises(DataError, match=r"^configuration: at most 50 levels, got more; "):
        build(config)


def test_a_few_lines_that_stand_for_billions_are_refused(config: dict[str, Any]) -> None:
    node: Any = "lol"
    for _ in range(30):
        node = [node] * 10
    config["engine"]["args"]["x"] = node
    with pytest.raises(DataError, match=r"^configuration: at most 100000 values, got more; "):
        build(config)


@pytest.mark.parametrize("key", ["model", "engine", "golden", "sampling", "baseline", "gate", "tracking", "runs_dir"])
def test_a_key_that_is_missing_is_named(config: dict[str, Any], key: str) -> None:
    del config[key]
    with pytest.raises(DataError, match=rf"^{key}: a value, got none; set it: {key}=\.\.\.$"):
        build(config)


@pytest.mark.parametrize("key", ["kv.fp8_e4m3.name", "engine.platform", "gate.scores", "baseline.name"])
def test_what_is_derived_cannot_be_set(config: dict[str, Any], key: str) -> None:
    _set(config, key, "x")
    with pytest.raises(DataError, match=r": a known key, got "):
        build(config)


def test_the_engine_takes_any_argument_and_variable() -> None:
    settings = build(compose(["engine.args.new={a:[1]}", "engine.env.NEW='1'", "engine.args.max_logprobs=50"]))
    assert settings.engine.args["new"] == {"a": [1]}
    assert settings.engine.env["NEW"] == "1"


@pytest.mark.parametrize("env", [{"": "x"}, {"A=B": "x"}, {"A": "x\0"}])
@pytest.mark.parametrize("where", ["engine.env", "engine.slots.0"])
def test_what_is_no_variable_of_an_environment_is_refused(
    config: dict[str, Any], where: str, env: dict[str, str]
) -> None:
    config["engine"].update({"env": env} if where == "engine.env" else {"slots": [env]})
    with pytest.raises(DataError, match=rf"^{where}: environment variables, got "):
        build(config)


def test_logits_beyond_vllms_limit_are_the_engines_business_where_it_is_raised(config: dict[str, Any]) -> None:
    config["engine"]["args"]["max_logprobs"] = 50
    config["engine"]["top_logprobs"] = 50
    assert build(config).engine.top_logprobs == 50


def test_a_users_file_hides_the_projects_of_the_same_name(tmp_path: Path) -> None:
    (tmp_path / "kv").mkdir()
    (tmp_path / "kv" / "fp8_e4m3.yaml").write_text("# @package kv.fp8_e4m3\ndtype: fp8_e5m2\n")
    assert build(compose([], str(tmp_path))).candidates["fp8_e4m3"].dtype == "fp8_e5m2"
    assert build(compose([])).candidates["fp8_e4m3"].dtype == "fp8_e4m3"


def test_a_users_folder_may_have_any_name(tmp_path: Path) -> None:
    folder = tmp_path / "it's, [odd] = ${x}"
    (folder / "kv").mkdir(parents=True)
    (folder / "kv" / "mixed.yaml").write_text("# @package kv.mixed\ndtype: fp8_e4m3\n")
    assert list(build(compose(["kv=[mixed]"], str(folder))).candidates) == ["mixed"]


def test_a_misspelt_choice_is_looked_for_among_the_users_files_too(tmp_path: Path) -> None:
    (tmp_path / "kv").mkdir()
    (tmp_path / "kv" / "mixed.yaml").write_text("# @package kv.mixed\ndtype: fp8_e4m3\n")
    with pytest.raises(DataError, match=r"^kv: .*got 'mixd'; did you mean 'mixed'\?$"):
        compose(["kv=[mixd]"], str(tmp_path))


@pytest.mark.parametrize("overrides", [[], ["kv=[nope]"], ["gate.min_turn=3"], ["runs_dir=${x}"]])
def test_nothing_of_a_composition_is_left_for_the_next(overrides: list[str]) -> None:
    with suppress(DataError):
        compose(overrides)
    assert not GlobalHydra.instance().is_initialized()


def test_the_same_thing_said_twice_is_no_contradiction() -> None:
    assert build(compose(["gate.min_turns=20", "gate.min_turns=20"])).policy.min_turns == 20


def test_a_run_folder_needs_no_file_of_scales(tmp_path: Path) -> None:
    """The configuration has the calibration in the place of its path, and is built again without the file."""
    path, half = tmp_path / "scales.json", {"largest": [3.0, 10.0], "scales": [0.03125]}
    data = {
        "schema_version": 1,
        "model": "m",
        "revision": None,
        "weights_sha256": "w",
        "model_dtype": "bfloat16",
        "golden": "g 1",
        "golden_sha256": "g",
        "folds": [0],
        "conversations": ["c"],
        "per": "layer",
        "k_format": "fp8_e4m3",
        "v_format": "fp8_e4m3",
        "layers": [{"index": 0, "k": half, "v": half}],
    }
    path.write_text(json.dumps(data))
    asked = ["kv=[fp8_e4m3_ref]", "kv.fp8_e4m3_ref.scales=calibrated", f"kv.fp8_e4m3_ref.scales_from={path}"]
    made = build(compose(asked))
    assert made.candidates["fp8_e4m3_ref"].layer_scales == (LayerScales(index=0, k=(0.03125,), v=(0.03125,)),)
    assert made.config["kv"]["fp8_e4m3_ref"]["scales_from"] == data
    path.unlink()
    assert build(yaml.safe_load(yaml.safe_dump(dict(made.config)))) == made
