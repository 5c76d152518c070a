"""Make a model ready and render the golden turns with it, in a child process (the tokenizer imports torch)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvquant_eval.core.codec import DataError
from kvquant_eval.core.records import GoldenTurn, ModelSpec, Prepared, RenderedTurn
from kvquant_eval.core.treatment import KVTreatment
from kvquant_eval.worker.chat import chat_template, load_tokenizer, template_file
from kvquant_eval.worker.checkpoint import taken
from kvquant_eval.worker.errors import clause
from kvquant_eval.worker.folder import check_folder, weights_sha256
from kvquant_eval.worker.render import needed_tokens, render

_NOT_WEIGHTS = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.pickle", "*.msgpack", "*.h5", "*.onnx", "*.gguf")
"""Files of a hub model that are never loaded, and mostly pickles."""


def prepare(
    model: ModelSpec,
    turns: Sequence[GoldenTurn],
    args: Mapping[str, Any],
    cache: Path,
    treatments: Sequence[KVTreatment],
) -> Prepared:
    """Fetch or unpack the model, hash it, and render every turn; check what can be known before an engine starts.

    What is cheap to see is checked first. Raises DataError (one line, with the remedy) for a model, tokenizer, chat
    template, engine argument or KV treatment that cannot work, and for a class none of whose turns fits the context.
    """
    folder, config, tokenizer, template = open_model(model, cache)

    from kvquant_eval.worker.admission import admit, one_scale_a_layer  # vLLM: seconds
    from kvquant_eval.worker.machine import device_name, versions

    admitted = admit(folder, args, treatments, model.trust_remote_code)
    scales, calibrated_on = taken(folder, config, treatments, one_scale_a_layer())
    rendered = tuple(render(tokenizer, template, turn, admitted.context) for turn in turns)
    check_fit(rendered, admitted.context)
    check_vocabulary(rendered, admitted.vocabulary, folder)
    return Prepared(
        path=str(folder),
        weights_sha256=weights_sha256(folder, named_by_hash=model.source == "hub"),
        template_sha256=hashlib.sha256(template.encode()).hexdigest(),
        device=device_name(),
        versions=versions(),
        kv_cache_scheme=bool((config.get("quantization_config") or {}).get("kv_cache_scheme")),
        config_sha256=hashlib.sha256((folder / "config.json").read_bytes()).hexdigest(),
        context=admitted.context,
        chat_template=template,
        scales=scales,
        calibrated_on=calibrated_on,
        turns=rendered,
    )


def open_model(model: ModelSpec, cache: Path) -> tuple[Path, Mapping[str, Any], Any, str]:
    """The model's folder, config.json, tokenizer and chat template. Raises DataError for one that cannot be used."""
    own_template = template_file(model)
    folder = locate(model, cache)
    config = check_folder(folder)
    tokenizer = load_tokenizer(folder, model.trust_remote_code)
    return folder, config, tokenizer, chat_template(tokenizer, own_template, model.chat_template or str(folder))


def locate(model: ModelSpec, cache: Path) -> Path:
    """The local folder of the model; downloads from the hub or unpacks the embedded model when needed."""
    if model.source == "embedded":
        from kvquant_eval.worker.embedded import materialise

        try:
            return materialise(cache).path
        except OSError as error:
            found = f"{cache} ({clause(error)})"
            raise DataError(f"cache_dir: a folder to unpack the model in, got {found}; make room or set it") from error
    if model.source == "folder":
        return _local(model.path)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model.id, revision=model.revision, ignore_patterns=list(_NOT_WEIGHTS)))
    except Exception as error:
        raise DataError(
            f"model.id: a model of the hub, got {model.id}@{model.revision} ({clause(error)}); "
            "correct the id, log in, or set model.source=folder model.path=..."
        ) from error


def check_fit(turns: Sequence[RenderedTurn], context: int) -> None:
    """Raise DataError for a class none of whose turns fits ``context`` (tokens): it could not be judged.

    Single turns that do not fit are skipped in all arms, and counted.
    """
    for workload in dict.fromkeys(turn.workload for turn in turns):
        mine = [turn for turn in turns if turn.workload == workload]
        if all(turn.skip for turn in mine):
            least = min(map(needed_tokens, mine))
            raise DataError(
                f"engine.args.max_model_len: a context that takes a turn of every class, got {context} and "
                f"{workload!r} needs at least {least}; raise it, or leave the class out of workload=[...]"
            )


def check_vocabulary(turns: Sequence[RenderedTurn], size: int, folder: Path) -> None:
    """Raise DataError for a token id that the model has no embedding of: its tokenizer is another model's."""
    highest = max((token for turn in turns for token in (*turn.prompt_ids, *turn.golden_ids)), default=0)
    if highest >= size:
        raise DataError(
            f"{folder}: a tokenizer of the model's {size} tokens, got token {highest}; restore its tokenizer"
        )


def _local(path: str | None) -> Path:
    folder = Path(path or "").expanduser()
    found = ""
    if not path or not folder.exists():
        found = "no such folder"
    elif not folder.is_dir():
        found = "not a folder"
    elif not (folder / "config.json").exists():
        found = "no config.json"
    if found:
        raise DataError(f"model.path: a model folder with a config.json, got {path!r} ({found}); correct the path")
    return folder.resolve()
