"""A configuration names scorers. It may come from anywhere: nothing else that it names runs."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvquant_eval.cli.config import build
from kvquant_eval.cli.main import main
from kvquant_eval.cli.scorers import build_scorer
from kvquant_eval.core.codec import DataError
from kvquant_eval.core.records import GoldenTurn, Measure, RenderedTurn, Replay
from kvquant_eval.core.score import Score
from kvquant_eval.core.scorers.text import Match

TEXT = "kvquant_eval.core.scorers.text"
HERE = "tests.config.test_scorers"
HOSTILE = (
    {"_target_": "os.system", "command": "touch {marker}"},
    {"_target_": "subprocess.Popen", "args": ["touch", "{marker}"]},
    {"_target_": "subprocess.run", "args": ["touch", "{marker}"]},
    {"_target_": "builtins.eval", "source": "open('{marker}', 'w')"},
    {"_target_": "pathlib.Path.touch", "self": "{marker}"},
    {"_target_": "hydra.utils.instantiate", "config": {"_target_": "os.system", "command": "touch {marker}"}},
    {"_target_": f"{TEXT}.Match", "measure": {"_target_": "os.system", "command": "touch {marker}"}},
    {"_target_": f"{TEXT}.Match", "_args_": [{"_target_": "os.system", "command": "touch {marker}"}]},
    {"_target_": f"{HERE}.Toucher", "path": "{marker}"},
    {"_target_": f"{HERE}.toucher", "path": "{marker}"},
)


class Toucher:
    """No scorer: it has no ``measure``."""

    def __init__(self, path: str) -> None:
        Path(path).touch()

    def __call__(self) -> None: ...


def toucher(path: str) -> Match:
    Path(path).touch()
    return Match()


@dataclass(frozen=True)
class Own:
    """A scorer of a user's, with an argument."""

    answer: str
    measure: Measure = Measure.GENERATED

    def __call__(self, replay: Replay, turn: GoldenTurn, rendered: RenderedTurn) -> Score | None:
        return None


class Broken(Match):
    """A scorer that cannot be built."""

    def __init__(self) -> None:
        raise RuntimeError("no\nway")


def _filled(node: Any, marker: Path) -> Any:
    if isinstance(node, dict):
        return {key: _filled(inner, marker) for key, inner in node.items()}
    if isinstance(node, list):
        return [_filled(inner, marker) for inner in node]
    return str(node).replace("{marker}", str(marker))


@pytest.mark.parametrize("node", HOSTILE, ids=lambda node: node["_target_"])
def test_what_is_no_scorer_is_refused_and_does_not_run(node: Any, config: dict[str, Any], tmp_path: Path) -> None:
    config["workloads"]["faq"]["scores"]["match"]["scorer"] = _filled(node, tmp_path / "marker")
    with pytest.raises(DataError, match=r"^workloads\.faq\.scores\.match\.scorer"):
        build(config)
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize("node", HOSTILE, ids=lambda node: node["_target_"])
def test_nor_does_it_run_from_a_run_folder(
    node: Any, config: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config["workloads"]["faq"]["scores"]["match"]["scorer"] = _filled(node, tmp_path / "marker")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({**config, "pinned": {}}))
    assert main(["regate", str(tmp_path)]) == 2
    assert "workloads.faq.scores.match.scorer" in capsys.readouterr().err
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize("tag", ["object/apply:os.system", "object/new:os.system", "name:os.system", "module:os"])
def test_yaml_of_a_run_folder_builds_no_python_objects(
    tag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f"pinned: {{}}\nmodel: !!python/{tag} ['touch {tmp_path}/marker']\n"
    (tmp_path / "config.yaml").write_text(text)
    assert main(["regate", str(tmp_path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize(
    "target", ["antigravity.fly_geohash", "kvquant_eval.worker.__main__.main", "tests.bad_input.__main__.text"]
)
def test_a_module_that_acts_when_imported_is_not_imported(target: str) -> None:
    with pytest.raises(DataError, match=r"^here\._target_: a scorer class"):
        build_scorer({"_target_": target}, "here", list)
    assert target.rpartition(".")[0] not in sys.modules


@pytest.mark.parametrize(
    ("target", "got"),
    [
        (None, r"a value, got none; set it: here\._target_=\.\.\.$"),
        (3, r"a scorer class as module\.Class, got 3; "),
        ("", r"got ''; "),
        ("Match", r"got 'Match'; "),
        (f"{TEXT}.", r"got 'kvquant_eval\.core\.scorers\.text\.'; "),
        (f"{TEXT}.words", r"got 'kvquant_eval\.core\.scorers\.text\.words'; "),
        (f"{TEXT}.Measure", r"got 'kvquant_eval\.core\.scorers\.text\.Measure'; "),
        (f"{TEXT}.Macth", rf"got '{TEXT}\.Macth'; did you mean '{TEXT}\.Match'\?$"),
        (f"{TEXT}s.Match", rf"did you mean '{TEXT}\.Match'\? \(ModuleNotFoundError: No module named '{TEXT}s'\)$"),
        (f"{HERE}.Broken", r"arguments that Broken takes, got \{\} \(no way\); correct them$"),
    ],
)
def test_a_target_that_cannot_be_used_gets_one_line(target: Any, got: str) -> None:
    with pytest.raises(DataError, match=rf"^here.*: .*{got}") as caught:
        build_scorer({"_target_": target}, "here", lambda: [f"{TEXT}.Match"])
    assert "\n" not in str(caught.value)


def test_a_scorer_of_a_users_own_gets_its_arguments() -> None:
    assert build_scorer({"_target_": f"{HERE}.Own", "answer": "42"}, "here", list) == _imported("Own")(answer="42")


def test_arguments_stay_plain_data() -> None:
    nested = {"_target_": "os.system", "command": "true"}
    scorer: Any = build_scorer({"_target_": f"{HERE}.Own", "answer": nested}, "here", list)
    assert scorer.answer == nested


def test_a_measure_that_is_none_would_never_be_scored() -> None:
    with pytest.raises(DataError, match=r"^here\.measure: forced or generated, got 'forced'; "):
        build_scorer({"_target_": f"{TEXT}.Match", "measure": "forced"}, "here", list)


def _imported(name: str) -> Any:
    """Under importlib mode, pytest's copy of this module and the imported one are two."""
    return getattr(sys.modules[HERE], name)
