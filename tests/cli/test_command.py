"""The command that began a run is kept with it: to be shown, and to be typed again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvquant_eval.cli import main as cli
from kvquant_eval.io import report
from kvquant_eval.io.runfolder import RunFolder
from tests.fakes.cli import arguments


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RunFolder]:
    """Gate on the fake engine with more arguments; the newest run."""
    monkeypatch.setattr(report, "write", lambda *_: None)

    def gate(*more: str) -> RunFolder:
        assert cli.main([*arguments(tmp_path), *more]) == 0
        return RunFolder(max((tmp_path / "runs").iterdir()))

    return gate


def kept(run: RunFolder) -> list[str]:
    found: list[str] = run.config()["pinned"]["command"]
    assert json.loads((run.path / "decision.json").read_text())["command"] == found
    return found


def test_it_is_what_was_typed_but_where_to_resume_and_passwords(run: Callable[..., RunFolder], tmp_path: Path) -> None:
    found = kept(run("++engine.args.proxy=http://me:sec@ret@host:5000/v1", "resume=never"))
    assert found == ["kvquant-eval", *arguments(tmp_path), "++engine.args.proxy=http://***@host:5000/v1"]


def test_a_run_that_goes_on_keeps_the_first(run: Callable[..., RunFolder], tmp_path: Path) -> None:
    """An argument that says what is so anyway makes another command, and asks the same."""
    first = run()
    before: Any = (first.path / "decision.json").read_bytes()
    (first.path / "tracking.json").unlink()
    (first.path / "decision.json").unlink()
    again = run("sampling.temperature=0.0")
    assert again.path == first.path
    assert kept(again) == ["kvquant-eval", *arguments(tmp_path)]
    then, now = json.loads(before), json.loads((again.path / "decision.json").read_text())
    assert {**then, "created_at": ""} == {**now, "created_at": ""}


def test_a_command_that_was_tampered_with_is_refused(
    run: Callable[..., RunFolder], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run()
    config = folder.config()
    config["pinned"]["command"] = {"kvquant-eval": 1}
    (folder.path / "config.yaml").write_text(yaml.safe_dump(config))
    assert cli.main(["regate", str(folder.path)]) == 2
    assert "pinned.command" in capsys.readouterr().err
