"""Text that comes in from a process, a manifest or a model's name and would stop the run further down."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from kvquant_eval.core.codec import DataError
from kvquant_eval.core.engine import EngineSpec
from kvquant_eval.core.records import Block
from kvquant_eval.core.text import TEXT_CHARS
from kvquant_eval.io import report
from kvquant_eval.io.child import Child, EngineDied
from kvquant_eval.io.golden import MANIFEST
from kvquant_eval.io.golden.manifest import read_manifest
from kvquant_eval.io.runfolder import RunFolder
from kvquant_eval.pipeline import gate
from tests.fakes.gate import settings, treatments, write_golden


class Surrogate:
    """Dies of a name that is no UTF-8, after a long log of escape sequences."""

    def __init__(self, spec: EngineSpec) -> None:
        raise OSError("\x1b[2J\ud800 " + "x" * 300)

    def run(self, block: Block) -> None: ...


def test_what_an_engine_dies_of_is_harmless_and_bounded(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Child(log, 60) as child:
        log.write_text("\x1b[31m" + "y" * 1_000_000 + "\n")
        with pytest.raises(EngineDied) as caught:
            child.call(
                "open",
                engine="tests.hostile.test_boundaries:Surrogate",
                spec={
                    "model": "m",
                    "revision": None,
                    "treatment": {"name": "a", "dtype": "b"},
                    "args": {},
                    "top_logprobs": 1,
                },
            )
    said = str(caught.value)
    assert "\\x1b[2J? xxx" in said
    assert "\x1b" not in said
    assert len(said) < 2 * TEXT_CHARS
    said.encode()


@pytest.mark.parametrize(
    "text", ["a\x85b", "a\u2028b\u2029c", "\ufeffx", " x\n\n y ", "\x00\x1b\x7f\x9b", "数\U0001f600"]
)
def test_a_configuration_comes_back_as_it_was(tmp_path: Path, text: str) -> None:
    run = RunFolder(tmp_path)
    run.write_config({"pinned": {text: text}, text: [text]})
    assert run.config() == {"pinned": {text: text}, text: [text]}
    assert yaml.safe_load((tmp_path / "config.yaml").read_text()) == run.config()


def test_a_manifest_with_a_lone_surrogate_is_refused(tmp_path: Path) -> None:
    folder = write_golden(tmp_path / "golden")
    path = folder / MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), "name": "\ud800"}))
    with pytest.raises(DataError, match=r"MANIFEST\.json: a manifest in JSON, got "):
        read_manifest(folder)


def test_a_run_is_named_in_plain_letters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "write", lambda *_: None)
    write_golden(tmp_path / "golden")
    made = settings(tmp_path, treatments("good"))
    run = gate(replace(made, model=replace(made.model, id="数" * 200 + "\u202e\u05d0")))
    assert run.folder.run_id.isascii()
    assert len(run.folder.run_id) <= 120
