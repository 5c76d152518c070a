"""Tokenizer and chat template of a model, loaded and compiled; what they need of the user is said in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvquant_eval.core.codec import DataError
from kvquant_eval.core.records import ModelSpec
from kvquant_eval.worker.errors import clause, printable
from kvquant_eval.worker.folder import read_object, read_text
from kvquant_eval.worker.limits import bounded


def load_tokenizer(folder: Path, trust_remote_code: bool) -> Any:
    """The folder's tokenizer. Raises DataError when there is none, or none without running the folder's code."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except Exception as error:  # whatever the files make of transformers, or their own code raises
        if "trust_remote_code" in str(error) and not trust_remote_code:
            raise wants_code(folder, "tokenizer") from None
        found = clause(error) if (folder / "tokenizer.json").exists() else "no tokenizer.json"
        raise DataError(f"{folder}: a tokenizer that loads, got {found}; restore the tokenizer's files") from error
    if not getattr(tokenizer, "is_fast", False):
        kind = type(tokenizer).__name__
        raise DataError(f"{folder}: a tokenizer that knows character offsets, got {kind}; add a tokenizer.json")
    return tokenizer


def wants_code(folder: Path, part: str) -> DataError:
    """The error for a model or tokenizer that only the folder's own code can load; ``part`` says which."""
    name = "tokenizer_config.json" if part == "tokenizer" else "config.json"
    path = folder / name
    found = read_object(path).get("auto_map") if path.exists() else None
    return DataError(
        f"{path}: a {part} that runs no code of its folder, got auto_map {found!r:.200}; "
        "read that code, then set model.trust_remote_code=true"
    )


def template_file(model: ModelSpec) -> str | None:
    """The text of ``model.chat_template``, None where the model's own is to be used. Raises DataError."""
    if not model.chat_template:
        return None
    path = Path(model.chat_template)
    if not path.is_file():
        found = "not a file" if path.exists() else "no such file"
        raise DataError(f"model.chat_template: a Jinja file, got {path} ({found}); correct the path")
    text = read_text(path)
    if not text.strip():
        raise DataError(f"model.chat_template: a Jinja file, got {path}, which is empty; correct it")
    return text


def chat_template(tokenizer: Any, own: str | None, where: str) -> str:
    """``own`` or the tokenizer's template, compiled once; ``where`` is the file or folder that it stands in.

    Raises DataError when there is none, more than one, or one with a syntax error (its line is named).
    """
    from jinja2 import TemplateSyntaxError
    from transformers.utils.chat_template_utils import render_jinja_template

    template = own or tokenizer.chat_template
    if not template:
        raise DataError(f"model: a chat template, got none in {where}; set model.chat_template to a Jinja file")
    if not isinstance(template, str):
        found = ", ".join(template) if isinstance(template, dict) else repr(template)
        raise DataError(f"model: one chat template, got {found} in {where}; set model.chat_template to a Jinja file")
    try:
        with bounded():  # Jinja computes constants when it compiles
            render_jinja_template(conversations=[], chat_template=template)
    except TemplateSyntaxError as error:
        found = printable(error.message or "a syntax error")
        raise DataError(f"{where}:{error.lineno}: a Jinja chat template, got {found}; correct it") from None
    except Exception as error:  # what Jinja's compiler makes of a hostile one
        raise DataError(f"{where}: a chat template that compiles, got {clause(error)}; correct it") from error
    return template
