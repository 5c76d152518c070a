"""A model folder file by file: its hash, and everything in it that is not what it should be."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from kvquant_eval.core.codec import DataError
from kvquant_eval.worker import folder as folders
from kvquant_eval.worker.folder import check_folder, read_object, tensor_count, weights_sha256


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The least that passes: a configuration and one tensor."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"num_hidden_layers": 1}')
    save_file({"a": torch.ones(4)}, folder / "model.safetensors")
    return folder


def refused(model: Path, match: str) -> None:
    with pytest.raises(DataError, match=match) as caught:
        check_folder(model)
    assert str(caught.value).startswith(str(model))
    assert "\n" not in str(caught.value)


def test_a_whole_folder_gives_its_configuration(model: Path) -> None:
    (model / "tokenizer_config.json").write_text("{}")
    (model / "chat_template.jinja").write_text("caf\u00e9", encoding="utf-8")
    (model / "pytorch_model.bin").write_bytes(b"a pickle that nobody loads")
    (model / "original").mkdir()
    (model / "original" / "notes").write_text("")
    (model / "link.json").symlink_to("config.json")
    assert check_folder(model) == {"num_hidden_layers": 1}


@pytest.mark.parametrize("name", ["tokenizer.json", "chat_template.jinja", "sub/chat_template.jinja", "sub"])
def test_links_out_of_the_folder_are_refused(model: Path, tmp_path: Path, name: str) -> None:
    """A template that is /etc/passwd would stand in every prompt, and in the report."""
    outside = tmp_path / "secret"
    outside.write_text("root")
    (model / name).parent.mkdir(exist_ok=True)
    (model / name).symlink_to(outside)
    refused(model, rf"{name}: a file of the model folder, got a link to {outside}; copy the file$")


def test_weights_may_stand_elsewhere(model: Path, tmp_path: Path) -> None:
    (model / "model.safetensors").rename(tmp_path / "shared")
    (model / "model.safetensors").symlink_to(tmp_path / "shared")
    check_folder(model)


def test_a_hub_cache_links_to_its_blobs_and_nowhere_else(model: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshots" / "r1"
    snapshot.parent.mkdir()
    (tmp_path / "blobs").mkdir()
    model.rename(snapshot)
    (snapshot / "config.json").rename(tmp_path / "blobs" / "1")
    (snapshot / "config.json").symlink_to("../../blobs/1")
    check_folder(snapshot)
    (tmp_path / "other").write_text("{}")
    (snapshot / "tokenizer_config.json").symlink_to("../../other")
    refused(snapshot, "got a link to")


def test_what_is_no_file_is_refused(model: Path) -> None:
    """A pipe is read for ever."""
    os.mkfifo(model / "generation_config.json")
    refused(model, r"generation_config\.json: a regular file, got a pipe, socket or device; remove it$")


def test_a_link_to_nothing_is_refused(model: Path) -> None:
    (model / "vocab.json").symlink_to("gone")
    refused(model, r"vocab\.json: a regular file, got a link to nothing; remove it$")


def test_huge_texts_are_refused_unread(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "LARGEST_TEXT", 30)
    check_folder(model)
    (model / "tokenizer.json").write_text("{" + " " * 30)
    refused(model, r"tokenizer\.json: at most 30 bytes, got 31 bytes; remove it or restore the file$")


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"{", r"JSON, got JSONDecodeError: .*line 1 column 2 \(char 1\); restore the file$"),
        (b"[" * 100_000, "JSON, got RecursionError: .*; restore the file$"),
        (b"[]", "a JSON object, got list; restore the file$"),
        (b"null", "a JSON object, got NoneType; restore the file$"),
        (b'{"a": "\xff"}', "UTF-8, got byte 0xff at offset 7; restore the file$"),
    ],
)
@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_broken_configurations_are_named(model: Path, name: str, content: bytes, found: str) -> None:
    (model / name).write_bytes(content)
    refused(model, rf"{name}: {found}")


def test_a_configuration_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"config\.json: a readable file, got No such file or directory; restore it$"):
        read_object(tmp_path / "config.json")


def test_more_layers_than_tensors_are_refused(model: Path) -> None:
    """An engine would build a billion layers before it looks for their weights."""
    (model / "config.json").write_text('{"num_hidden_layers": 2}')
    refused(model, r"config\.json: num_hidden_layers of at most the 1 tensors that the weights have, got 2; ")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", None])
def test_a_folder_without_safetensors_is_refused(model: Path, name: str | None) -> None:
    file = model / "model.safetensors"
    if name:
        file.rename(model / name)
    else:
        file.unlink()
    refused(model, r"weights as \*\.safetensors, got none; convert the model \(pickles are not loaded\)$")


def test_tensors_are_counted(model: Path) -> None:
    save_file({"a": torch.ones(1), "b": torch.ones(1, dtype=torch.bfloat16)}, model / "model.safetensors")
    assert tensor_count(model / "model.safetensors") == 2


@pytest.mark.parametrize("keep", [0, 4, 60, -1])
def test_safetensors_cut_anywhere_are_refused(model: Path, keep: int) -> None:
    data = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(data[:keep])
    refused(model, r"model\.safetensors: whole safetensors, got SafetensorError: .*; copy or download it again$")


def test_a_header_that_reaches_beyond_the_file_is_refused(model: Path) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}).encode()
    (model / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    refused(model, "whole safetensors, got SafetensorError")


def test_shards_that_the_index_names_must_be_there(model: Path) -> None:
    index = model / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "model.safetensors"}}')
    check_folder(model)
    index.write_text('{"weight_map": {"a": "model.safetensors", "b": "../model-2.safetensors"}}')
    refused(model, r"every file of the weight_map in the folder, got no '\.\./model-2\.safetensors'; restore it$")


@pytest.mark.parametrize("weight_map", ["[]", '"a"', '{"a": 1}'])
def test_an_index_of_another_shape_is_refused(model: Path, weight_map: str) -> None:
    (model / "model.safetensors.index.json").write_text(f'{{"weight_map": {weight_map}}}')
    refused(model, "a weight_map of tensors to files, got another shape")


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
    assert weights_sha256(snapshot, named_by_hash=True) == weights_sha256(snapshot) == weights_sha256(copy)


def test_only_a_hub_cache_is_believed_by_name(tmp_path: Path) -> None:
    """A folder from anywhere could name any weights after the hash of the approved ones."""
    (tmp_path / ("0" * 64)).write_bytes(b"evil")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").symlink_to(tmp_path / ("0" * 64))
    forged = hashlib.sha256(f"model.safetensors {'0' * 64}\n".encode()).hexdigest()
    assert weights_sha256(tmp_path / "model", named_by_hash=True) == forged
    assert weights_sha256(tmp_path / "model") != forged


def test_models_of_other_weight_files_are_apart(tmp_path: Path) -> None:
    for name, content in (("one", b"1"), ("two", b"2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "pytorch_model.bin").write_bytes(content)
    try:
        hashes = [weights_sha256(tmp_path / name) for name in ("one", "two")]
    except DataError:
        return  # such a folder may be refused
    assert hashes[0] != hashes[1]
