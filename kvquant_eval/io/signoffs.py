"""Sign-offs on disk: one file a model, revision and KV dtype, made to be committed, and the page beside it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kvquant_eval.core.codec import DataError, from_json, quoted, to_data
from kvquant_eval.core.signoff import SCHEMA_VERSION, Record, Signature, extended, faults, file_stem, flags_of
from kvquant_eval.core.strict_json import BadJson, parse
from kvquant_eval.core.treatment import spans
from kvquant_eval.io.clock import Clock, locked
from kvquant_eval.io.report.markdown import escape, fence
from kvquant_eval.io.runfolder import SIGNED, RunFolder, write_json, write_text

WAIT_S = 30.0
"""For another one who signs."""
_RESTORE = "restore it, from version control for one"
_log = logging.getLogger(__name__)


def read(content: bytes, path: Path) -> Record:
    """The record in the ``content`` of a file; its hashes are not looked at. Raises DataError, in one line, for
    anything else.
    """
    data = _object(content, path)
    if data.get("schema_version") != SCHEMA_VERSION:
        found = quoted(data.get("schema_version", "none"))
        raise DataError(f"{path}: schema version {SCHEMA_VERSION}, got {found}; use the kvquant-eval that wrote it")
    return from_json(Record, json.dumps(data), str(path))


def append(folder: Path, signature: Signature) -> tuple[Path, Signature]:
    """Add a signature to its file in ``folder``; return the file and the signature as it stands there.

    Others who sign wait. Raises DataError for a file that was damaged or changed, which stays as it is.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{file_stem(signature.terms)}.json"
    try:
        with locked(folder, Clock("waiting", WAIT_S)):
            before = read(path.read_bytes(), path) if path.exists() else None
            record = extended(before, signature)
            if fault := next((fault for each in (before, record) if each for fault in faults(each)), ""):
                raise DataError(f"{path}: a record that nobody changed, got {fault}; {_RESTORE}")
            write_json(path, to_data(record))
            write_text(path.with_suffix(".md"), page(record))
    except TimeoutError:
        raise DataError(f"{folder}: one signature at a time, got another one for {WAIT_S:g} s; try again") from None
    return path, record.signatures[-1]


def keep(run: RunFolder, signatures: Sequence[Signature]) -> None:
    """Put copies of signatures into the folder of their run, in place of those that are there."""
    write_json(run.path / SIGNED, {"schema_version": SCHEMA_VERSION, "signatures": to_data(signatures)})


def kept(run: RunFolder) -> list[Signature]:
    """The signatures in a run's folder; none, and a warning, where they cannot be read."""
    try:
        return copies(run)
    except DataError as error:
        _log.warning("%s; the report shows no signature", error)
        return []


def copies(run: RunFolder) -> list[Signature]:
    """The signatures in a run's folder. Raises DataError where they cannot be read."""
    path = run.path / SIGNED
    if not path.exists():
        return []
    found = _object(path.read_bytes(), path).get("signatures")
    return from_json(list[Signature], json.dumps(found), f"{path}: signatures")


def _object(content: bytes, path: Path) -> dict[str, Any]:
    try:
        data = parse(content)
    except BadJson as error:
        raise DataError(f"{path}: a sign-off in strict JSON, got {error}; {_RESTORE}") from None
    if not isinstance(data, dict):
        raise DataError(f"{path}: a sign-off, got {quoted(data)}; {_RESTORE}")
    return data


def page(record: Record) -> str:
    """The record as Markdown, the signature that counts first."""
    last, terms = record.signatures[-1], record.signatures[-1].terms
    parts = [f"# {escape(terms.named)}", _items(_head(last))]
    parts += ["## Void as soon as one of these changes", _items(_terms(last))]
    if flags := flags_of(terms):
        parts += ["## What to give vLLM", fence(flags)]
    if earlier := record.signatures[:-1]:
        parts += ["## Earlier signatures", _items((each.at, _short(each)) for each in reversed(earlier))]
    return "\n\n".join(parts) + "\n"


def _head(last: Signature) -> Iterator[tuple[str, str]]:
    yield "decision", last.decision + (f", barred: {last.barred}" if last.barred else "")
    if last.override is not None:
        yield "OVERRIDE", last.override
    yield "signed by", last.by
    yield "at", last.at
    yield "expires", f"at the end of {last.expires}, UTC" if last.expires else "no date"
    if last.note:
        yield "note", last.note
    yield "run", f"{last.run_id}, candidate {last.candidate}"
    yield "sha256 of decision.json", last.decision_sha256
    yield "sha256 for verify", last.sha256


def _terms(last: Signature) -> Iterator[tuple[str, str]]:
    for name, value in to_data(last.terms).items():
        shown = ", ".join(spans(value, " to ")) if name == "layers_skipped" else value
        shown = " to ".join(f"{each:g}" for each in value) if name.endswith("scales") else shown
        yield name.replace("_", " "), "none" if shown in (None, "") else str(shown)


def _short(each: Signature) -> str:
    override = f", OVERRIDE: {each.override}" if each.override is not None else ""
    return f"{each.decision} signed by {each.by}, sha256 {each.sha256[:12]}{override}"


def _items(rows: Iterator[tuple[str, str]] | Sequence[tuple[str, str]]) -> str:
    return "\n".join(
        f"- {'**OVERRIDE**' if name == 'OVERRIDE' else escape(name)}: {escape(value)}" for name, value in rows
    )
