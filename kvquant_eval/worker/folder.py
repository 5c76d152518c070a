"""A model folder, checked file by file before anything heavy is imported: nothing in it is trusted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvquant_eval.core.codec import DataError
from kvquant_eval.worker.errors import clause

LARGEST_TEXT = 128 << 20
"""Bytes of a JSON or template file; the largest tokenizers have 40 MB."""

INDEX = "model.safetensors.index.json"
"""Which tensors stand in which file: an engine reads no file that it does not name."""
_TEXTS = (".json", ".jinja")


def check_folder(folder: Path) -> dict[str, Any]:
    """Refuse what can be seen in the files themselves, and return config.json.

    Raises DataError for links that lead out of the folder (weights and a hub cache's own blobs may), files that are
    none (pipes, devices), texts of more than ``LARGEST_TEXT`` bytes, configurations that are no JSON objects, chat
    templates that are no UTF-8, and weights that are missing, truncated or incomplete.
    """
    for entry in _entries(folder):
        _check_entry(folder, entry)
    config = read_object(folder / "config.json")
    if (folder / "tokenizer_config.json").exists():
        read_object(folder / "tokenizer_config.json")
    for template in sorted(folder.glob("*.jinja")):
        read_text(template)
    tensors = sum(tensor_count(file) for file in weight_files(folder))
    layers = config.get("num_hidden_layers")
    if isinstance(layers, int) and layers > tensors:
        raise DataError(
            f"{folder / 'config.json'}: num_hidden_layers of at most the {tensors} tensors that the weights have, "
            f"got {layers}; restore the file"
        )
    return config


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object. Raises DataError with the line and column, or with what it is instead."""
    try:
        value = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: JSON, got {clause(error)}; restore the file") from None
    if not isinstance(value, dict):
        raise DataError(f"{path}: a JSON object, got {type(value).__name__}; restore the file")
    return value


def read_text(path: Path) -> str:
    """A UTF-8 text. Raises DataError when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"{path}: a readable file, got {error.strerror}; restore it") from None
    except UnicodeDecodeError as error:
        found = f"byte 0x{error.object[error.start]:02x} at offset {error.start}"
        raise DataError(f"{path}: UTF-8, got {found}; restore the file") from None


def weight_files(folder: Path) -> list[Path]:
    """The safetensors of the folder. Raises DataError when there are none, or one that the index names is gone."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise DataError(f"{folder}: weights as *.safetensors, got none; convert the model (pickles are not loaded)")
    index = folder / INDEX
    shards = read_object(index).get("weight_map") if index.exists() else {}
    if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
        raise DataError(f"{index}: a weight_map of tensors to files, got another shape; restore the file")
    gone = sorted(set(shards.values()) - {file.name for file in files})
    if gone:
        raise DataError(f"{index}: every file of the weight_map in the folder, got no {gone[0]!r}; restore it")
    return files


def tensor_count(file: Path) -> int:
    """How many tensors a safetensors file has. Raises DataError when its header is damaged or does not cover it."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy") as tensors:
            return len(tensors.keys())
    except (SafetensorError, OSError) as error:
        raise DataError(f"{file}: whole safetensors, got {clause(error)}; copy or download it again") from None


def weights_sha256(folder: Path, *, named_by_hash: bool = False) -> str:
    """sha256 over the names and hashes of all weight files, and of their index where there is one.

    ``named_by_hash``: a hub cache, which names large files by their sha256; not to be believed of any other folder.
    Raises DataError for a folder without safetensors.
    """
    total = hashlib.sha256()
    for file in [*weight_files(folder), *folder.glob(INDEX)]:
        name = file.resolve().name
        if named_by_hash and file.is_symlink() and len(name) == 64:
            sha = name
        else:
            with file.open("rb") as stream:
                sha = hashlib.file_digest(stream, "sha256").hexdigest()
        total.update(f"{file.name} {sha}\n".encode())
    return total.hexdigest()


def _entries(folder: Path) -> Iterator[Path]:
    """Everything in the folder and below; hidden files are nobody's business here."""
    for entry in sorted(folder.iterdir()):
        if not entry.name.startswith("."):
            yield entry
            if entry.is_dir() and not entry.is_symlink():
                yield from _entries(entry)


def _check_entry(folder: Path, entry: Path) -> None:
    target = entry.resolve()
    if entry.is_symlink() and entry.suffix != ".safetensors" and not _belongs(folder, target):
        raise DataError(f"{entry}: a file of the model folder, got a link to {target}; copy the file")
    if not entry.is_file() and not entry.is_dir():
        found = "a link to nothing" if entry.is_symlink() else "a pipe, socket or device"
        raise DataError(f"{entry}: a regular file, got {found}; remove it")
    if entry.suffix in _TEXTS and entry.is_file() and entry.stat().st_size > LARGEST_TEXT:
        size = f"{entry.stat().st_size:,} bytes"
        raise DataError(f"{entry}: at most {LARGEST_TEXT:,} bytes, got {size}; remove it or restore the file")


def _belongs(folder: Path, target: Path) -> bool:
    """Inside the folder, or in the blobs beside the snapshots of a hub cache."""
    blobs = [folder.parent.parent / "blobs"] if folder.parent.name == "snapshots" else []
    return any(target.is_relative_to(root) for root in (folder, *blobs))
