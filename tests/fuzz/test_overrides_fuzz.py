"""Whatever is written on the command line or stands in a stored configuration: settings, or one clean line."""

from __future__ import annotations

import copy
import datetime
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import PurePosixPath
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvquant_eval.cli.config import build, compose
from kvquant_eval.core.codec import DataError
from kvquant_eval.core.settings import Settings
from tests.fuzz.cases import CASES

LINE = re.compile(r"[^\n]+: [^\n]+, got [^\n]+; [^\n]+")
VALID = (
    "kv=[fp8_e4m3,fp8_e5m2]",
    "model=folder",
    "engine=vllm",
    "gate=zero_flags",
    "workload=[math_chain,faq]",
    "tracking=none",
    "gate.min_turns=20",
    "sampling.temperature=0.7",
    "sampling.epochs=4",
    "+kv.mine={dtype:fp8_e4m3,skip_layers:['0']}",
    "kv.fp8_e4m3.skip_layers=['0','29',sliding_window]",
    "~engine.args.max_model_len",
    "engine.args.tensor_parallel_size=2",
    "engine.env.X='1'",
    "engine.slots=[{CUDA_VISIBLE_DEVICES:'0'},{}]",
    "workloads.faq.scores.match.margin=3",
    "scorer@workloads.faq.scores.match.scorer=needle",
    "runs_dir=${oc.env:HOME}/runs",
    "gate.require=[fp8_e4m3]",
    "report.range_profile=true",
)
VALUES = (
    "null", "true", "-1", "0", "1", "2", "1e999", "nan", "-inf", "0.5", "99999999999999999999999999", "''", "???",
    "[]", "{}", "[null]", "[[]]", "{a:1}", "{a:{b:null}}", "'3'", "../../x", "os.system", "a,b", "'\\x00'", "'a\tb'",
    "%s", "{0}", "'\u202e'", "fp8", "int(x)", "range(3)", "${runs_dir}", "${x}", "${oc.env:NOPE}",
    "${kvquant_core_slots:x}",
)  # fmt: skip
PIECES = ("", "=", ".", "[", "]", "{", "'", "${", "@", "/", "~", "+", " ", "é", "\x07")
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(
        [
            10**30,
            -1,
            "../x",
            "a\x1b[31m",
            "\ud800",
            "x" * 300,
            b"x",
            datetime.date(2024, 1, 1),
            {1: 2},
            {1, 2},
            (1,),
            {None: 1},
        ]
    ),
)
PLAIN = st.recursive(
    ODD,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=3),
    max_leaves=6,
)
KEY = st.text(max_size=5) | st.integers() | st.sampled_from(["../x", ".", "a\nb"])
fuzzed = settings(max_examples=CASES, suppress_health_check=[HealthCheck.too_slow])


@cache
def composed() -> dict[str, Any]:
    return compose([])


@cache
def keys() -> list[str]:
    return [".".join(path) for path in _paths(composed())]


def _paths(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if path:
        yield path
    for key, inner in node.items() if isinstance(node, dict) else ():
        yield from _paths(inner, (*path, key))


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A valid override with one to three pieces cut out, put in or written twice."""
    text = draw(st.sampled_from(VALID))
    for _ in range(draw(st.integers(1, 3))):
        at, end = sorted((draw(st.integers(0, len(text))), draw(st.integers(0, len(text)))))
        piece = draw(
            st.sampled_from(
                ["", text[at:end] * 2, "=", ".", "[", "]", "{", "'", "${", "@", "/", "~", "+", " ", "é", "\x07"]
            )
        )
        text = text[:at] + piece + text[end:]
    return text


@st.composite
def keyed(draw: st.DrawFn) -> str:
    """Any key of the configuration, or one beside it, set to anything."""
    key = draw(st.sampled_from(keys())) + draw(st.sampled_from(["", "", "", "", ".x", "s", ".0"]))
    sign = draw(st.sampled_from(["", "", "", "+", "++", "~"]))
    return f"{sign}{key}={draw(st.sampled_from(VALUES) | st.text(max_size=6))}"


OVERRIDES = st.lists(
    st.one_of(st.text(max_size=20), mutated(), keyed(), st.sampled_from(VALID)), min_size=1, max_size=4
)


@fuzzed
@given(OVERRIDES)
def test_any_overrides_give_settings_or_one_clean_line(overrides: list[str]) -> None:
    _settings_or_one_line(lambda: build(compose(overrides)))
    assert not GlobalHydra.instance().is_initialized(), "nothing of one composition is left for the next"


@fuzzed
@given(st.data())
def test_any_damage_to_a_stored_configuration_gives_settings_or_one_clean_line(data: st.DataObject) -> None:
    config = copy.deepcopy(composed())
    for _ in range(data.draw(st.integers(1, 3))):
        _damage(config, data)
    _settings_or_one_line(lambda: build(config))


@fuzzed
@given(PLAIN)
def test_any_data_gives_one_clean_line(plain: Any) -> None:
    _settings_or_one_line(lambda: build(plain))


def _damage(config: dict[str, Any], data: st.DataObject) -> None:
    """Replace, remove or add something somewhere. What is put in is a copy: it may be damaged in its turn."""
    *above, last = data.draw(st.sampled_from(list(_paths(config))) if config else st.just(("model",)))
    node: Any = config
    for key in above:
        node = node[key]
    match data.draw(st.sampled_from(["replace", "remove", "add"])):
        case "replace":
            node[last] = copy.deepcopy(data.draw(PLAIN))
        case "remove":
            node.pop(last, None)
        case "add":
            node[data.draw(KEY)] = copy.deepcopy(data.draw(PLAIN))


def _settings_or_one_line(make: Callable[[], Settings]) -> None:
    try:
        made = make()
    except DataError as error:
        line = str(error)
        assert LINE.fullmatch(line), line
        assert line.isprintable(), line
        assert len(line) < 1000
    else:
        assert isinstance(made, Settings)
        for name in (*made.candidates, *made.policy.scores, *(s for scores in made.scorers.values() for s in scores)):
            assert PurePosixPath(name).parts == (name,)
            assert not name.startswith(".")
