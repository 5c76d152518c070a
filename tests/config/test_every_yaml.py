"""Every yaml of every group composes and builds."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvquant_eval.cli.config import build, compose, data_folder
from kvquant_eval.core.attest import refuse_impossible
from kvquant_eval.core.codec import DataError
from kvquant_eval.core.policy import ScoreRole
from kvquant_eval.core.records import Realisation

NEEDED = {
    ("model", "hub"): ["model.id=org/name", "model.revision=abc"],
    ("model", "folder"): ["model.id=org/name", "model.path=/models/x"],
}
LISTS = ("kv", "workload")
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


def test_every_scorer_is_used_by_a_workload() -> None:
    settings = build(compose([]))
    built = {type(scorer) for scorers in settings.scorers.values() for scorer in scorers.values()}
    assert len(built) == len(list(data_folder("conf").glob("scorer/*.yaml")))


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
