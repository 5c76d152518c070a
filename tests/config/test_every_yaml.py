"""Every yaml of every group composes and builds."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from kvquant_eval.cli.config import build, compose, data_folder
from kvquant_eval.cli.scorers import build_scorer
from kvquant_eval.core.attest import refuse_impossible
from kvquant_eval.core.codec import DataError
from kvquant_eval.core.policy import ScoreRole
from kvquant_eval.core.scorers.tool_call import ToolCall
from kvquant_eval.core.treatment import Realisation

NEEDED = {
    ("model", "hub"): ["model.id=org/name", "model.revision=abc"],
    ("model", "folder"): ["model.id=org/name", "model.path=/models/x"],
}
LISTS = ("kv", "workload")
SCORERS = sorted((data_folder("conf") / "scorer").glob("*.yaml"))
FILES = sorted(path for path in data_folder("conf").glob("*/*.yaml") if path.parent.name != "scorer")


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_it_composes_and_builds(path: Path) -> None:
    group, name = path.parent.name, path.stem
    choice = f"{group}=[{name}]" if group in LISTS else f"{group}={name}"
    extra = [f"gate.hardest={name}"] if group == "workload" else []
    settings = build(compose([choice, *extra, *NEEDED.get((group, name), [])]))
    if group == "kv":
        assert list(settings.candidates) == [name]
        assert (settings.candidates[name].realisation is Realisation.REFERENCE) == name.endswith("_ref")
    if group == "workload":
        roles = [score.role for score in settings.policy.scores[name].values()]
        assert roles.count(ScoreRole.GATE) == 2
        assert ScoreRole.BOUND in roles


@pytest.mark.parametrize("path", SCORERS, ids=lambda path: path.stem)
def test_a_scorer_builds_and_says_what_it_is(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# ")
    assert type(build_scorer(yaml.safe_load(text), "here", list)).__doc__


def test_a_class_of_ones_own_takes_any_scorer(tmp_path: Path) -> None:
    (tmp_path / "workload").mkdir()
    names = [path.stem for path in SCORERS]
    defaults = "".join(f"  - /scorer@scores.{name}.scorer: {name}\n" for name in names)
    scores = "".join(f"  {name}: {{role: report, margin: 10.0, flag_over: 2.0}}\n" for name in names)
    text = f"# @package workloads.own\ndefaults:\n{defaults}  - _self_\nscores:\n{scores}"
    (tmp_path / "workload" / "own.yaml").write_text(text.replace("gl_reply: {role: report", "gl_reply: {role: gate"))
    more = "workloads.own.scores.tool_call.scorer.tolerance=0.01"
    scorers = build(compose(["workload=[own]", "gate.hardest=own", more], str(tmp_path))).scorers["own"]
    assert len({type(scorer) for scorer in scorers.values()}) == len(names)
    assert scorers["tool_call"] == ToolCall(tolerance=0.01)


def test_native_candidates_that_the_cpu_does_not_implement_are_refused() -> None:
    settings = build(compose(["kv=[nvfp4]"]))
    with pytest.raises(DataError, match=r"kv\.nvfp4\.dtype"):
        refuse_impossible(settings.candidates["nvfp4"], "cpu")
    refuse_impossible(settings.candidates["nvfp4"], "gpu")


def test_a_users_own_folder_comes_first(tmp_path: Path) -> None:
    (tmp_path / "kv").mkdir()
    (tmp_path / "kv" / "mixed.yaml").write_text("# @package kv.mixed\ndtype: fp8_e4m3\nskip_layers: ['0', '29']\n")
    settings = build(compose(["kv=[mixed]"], str(tmp_path)))
    assert settings.candidates["mixed"].skip_layers == ("0", "29")


def test_k_and_v_may_have_formats_of_their_own() -> None:
    settings = build(compose(["kv=[k8v4_ref]", "kv.k8v4_ref.skip_layers=['0','7.v']"]))
    assert settings.candidates["k8v4_ref"].requested == "k:fp8_e4m3,v:nvfp4"
    assert settings.candidates["k8v4_ref"].at(7) == ("fp8_e4m3", "bfloat16")


@pytest.mark.parametrize("half", ["k", "v"])
def test_a_baseline_has_no_halves(half: str) -> None:
    for more in (f"+baseline.{half}=float16", f"baseline.skip_layers=['7.{half}']"):
        with pytest.raises(DataError, match=r"^baseline\.(k|v|skip_layers): what a native dtype can do"):
            build(compose([more]))
    with pytest.raises(DataError, match=r"^baseline\.dtype: no third format where K and V have their own"):
        build(compose(["baseline.dtype=fp8_e4m3", "+baseline.k=bfloat16", "+baseline.v=bfloat16"]))
    with pytest.raises(
        DataError, match=r"^baseline\.dtype: a dtype that is not quantized .* set baseline\.dtype=bfloat16$"
    ):
        build(compose([f"+baseline.{half}=nvfp4"]))
