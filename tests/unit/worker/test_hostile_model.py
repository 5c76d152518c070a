"""A model folder full of programs: none of them runs, and nothing is written into it, unless code was asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvquant_eval.core.codec import DataError
from kvquant_eval.core.records import ModelSpec, Prepared
from kvquant_eval.core.treatment import KVTreatment
from kvquant_eval.worker.prepare import prepare
from tests.fakes.model import write_model
from tests.fakes.payloads import lay
from tests.unit.worker.test_render import turn

ARGS = {"dtype": "bfloat16", "enforce_eager": True, "max_model_len": 512}


def run(model: Path, trust_remote_code: bool = False) -> Prepared:
    spec = ModelSpec(
        id="org/evil", revision=None, source="folder", path=str(model), trust_remote_code=trust_remote_code
    )
    return prepare(spec, [turn()], ARGS, model.parent / "cache", [KVTreatment(name="baseline", dtype="bfloat16")])


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """The file that every payload would write."""
    return tmp_path / "marker"


@pytest.fixture
def model(tmp_path: Path, marker: Path) -> Path:
    return lay(write_model(tmp_path / "model"), marker)


def ask_for_code(model: Path, name: str, **keys: object) -> None:
    path = model / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))


def test_the_payloads_would_write_the_marker(model: Path, marker: Path) -> None:
    """Else the tests below would show nothing."""
    for program in (
        "import sys, pickle; pickle.load(open(sys.argv[1] + '/pytorch_model.bin', 'rb'))",
        "import sys; exec(open(sys.argv[1] + '/evil.py').read())",
        "import sys, yaml; yaml.unsafe_load(open(sys.argv[1] + '/config.yaml'))",
    ):
        subprocess.run([sys.executable, "-c", program, str(model)], check=True)
        assert marker.exists(), program
        marker.unlink()


def test_pickles_yaml_and_code_beside_a_whole_model_are_passed_by(model: Path, marker: Path) -> None:
    """``auto_map`` is passed by too where transformers and vLLM have the architecture themselves."""
    ask_for_code(model, "config.json", auto_map={"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil"})
    ask_for_code(model, "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.Evil", "evil.Evil"]})
    before = contents(model)
    prepared = run(model)
    assert prepared.turns[0].prompt_ids
    assert not marker.exists()
    assert contents(model) == before


def test_pickles_instead_of_safetensors_are_refused_unread(model: Path, marker: Path) -> None:
    (model / "model.safetensors").unlink()
    with pytest.raises(DataError, match=r"weights as \*\.safetensors, got none"):
        run(model)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        (
            "config.json",
            {"model_type": "evil", "architectures": ["Evil"], "auto_map": {"AutoConfig": "evil.Evil"}},
        ),
        ("config.json", {"architectures": ["Evil"], "auto_map": {"AutoModelForCausalLM": "evil.Evil"}}),
        ("tokenizer_config.json", {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", None]}}),
    ],
)
def test_code_that_is_needed_is_refused_by_name(model: Path, marker: Path, name: str, keys: dict[str, object]) -> None:
    ask_for_code(model, name, **keys)
    with pytest.raises(
        DataError, match=rf"{name}: a (model|tokenizer) that runs no code of its folder, got auto_map .*evil\.Evil.*; "
    ) as caught:
        run(model)
    assert str(caught.value).endswith("read that code, then set model.trust_remote_code=true")
    assert not marker.exists()


@pytest.mark.parametrize("trusted", [False, True])
def test_code_runs_only_when_it_was_asked_for(model: Path, marker: Path, tmp_path: Path, trusted: bool) -> None:
    """In a process of its own: transformers keeps a copy of code that it runs."""
    ask_for_code(
        model, "tokenizer_config.json", tokenizer_class="Evil", auto_map={"AutoTokenizer": ["evil.Evil", None]}
    )
    program = (
        "import sys; from pathlib import Path; from kvquant_eval.worker.chat import load_tokenizer;"
        "load_tokenizer(Path(sys.argv[1]), sys.argv[2] == 'True')"
    )
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules")}
    subprocess.run([sys.executable, "-c", program, str(model), str(trusted)], env=environment, capture_output=True)
    assert marker.exists() is trusted
