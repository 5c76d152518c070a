"""``kvquant-eval sign RUN_DIR --by NAME``: put a name to a candidate's decision."""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from kvquant_eval.cli import config, regate
from kvquant_eval.cli.terminal import complain, say
from kvquant_eval.core.codec import DataError, nearest, quoted
from kvquant_eval.core.records import Decision
from kvquant_eval.core.settings import Settings
from kvquant_eval.core.signoff import Signature, barred, terms
from kvquant_eval.core.text import one_line
from kvquant_eval.decision import DECISION, Decided, recompute, render, without_head
from kvquant_eval.io import signoffs, tracking
from kvquant_eval.io.decisions import read_decision
from kvquant_eval.io.runfolder import RunFolder

ABOUT = "put your name to a promoted candidate"
TEXT_CHARS = 500


def arguments(parser: argparse.ArgumentParser) -> None:
    """The run's folder, who signs, what, and until when."""
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--by", required=True, help="who signs")
    parser.add_argument("--candidate", help="which one, where the run has several")
    parser.add_argument("--expires", metavar="DATE", help="the last day that it holds (UTC), such as 2027-03-31")
    parser.add_argument("--note", default="")
    parser.add_argument("--override", metavar="REASON", help="sign what is not promoted; printed wherever it stands")
    parser.add_argument("--into", type=Path, help="the folder of sign-offs; default: reports/signoff")


def run(options: argparse.Namespace) -> int:
    """Sign; return 0, or 3 where the decision is none to sign."""
    folder, settings = regate.stored(options.run_dir)
    if not folder.finished:
        raise DataError(f"{folder.path}: a run that came to its end, got one that was broken off; go on with it first")
    with folder.locked():
        document, sha256 = _decision(folder)
        decided = _unchanged(folder, settings, document)
        candidate = _candidate(document, options.candidate)
        signature = Signature(
            by=_text("--by", options.by, needed=True),
            at=datetime.now(UTC).isoformat(timespec="seconds"),
            expires=_day(options.expires),
            note=_text("--note", options.note),
            override=None if options.override is None else _text("--override", options.override, needed=True),
            run_id=document["run_id"],
            candidate=candidate["name"],
            decision=Decision(candidate["decision"]),
            barred=barred(document, candidate),
            decision_sha256=sha256,
            terms=terms(document, candidate),
            previous=None,
        )
        if refusal := _refusal(signature):
            return complain(one_line(f"{folder.path}: {refusal}"), Decision.HOLD.exit_code)
        earlier = signoffs.copies(folder)  # before anything is written
        path, signed = signoffs.append(options.into or Path(config.home()) / "reports" / "signoff", signature)
        signoffs.keep(folder, [*earlier, signed])
        render(decided, folder.path, document)
        _anchor(settings, signed)
    _show(path, signed)
    return 0


def _anchor(settings: Settings, signed: Signature) -> None:
    """Tell MLflow, where the run was logged. The signature stands without that."""
    if settings.tracking.uri:
        try:
            tracking.anchor(settings.tracking, signed)
        except tracking.TrackingError as error:
            remedy = f"the signature stands: anchor it with verify --sha256 {signed.sha256}"
            say(one_line(f"tracking.uri: {error}; {remedy}"))


def _show(path: Path, signed: Signature) -> None:
    override = f" OVERRIDE: {signed.override}" if signed.override is not None else ""
    lines = (
        f"signed: {signed.terms.model} KV {signed.terms.kv_requested}: {signed.decision}, by {signed.by}{override}",
        f"sign-off: {path}",
        f"page: {path.with_suffix('.md')}",
        f"sha256: {signed.sha256}",
    )
    sys.stdout.write("".join(f"{one_line(line)}\n" for line in lines))


def _decision(folder: RunFolder) -> tuple[dict[str, Any], str]:
    """The decision, and the sha256 of its bytes."""
    path = folder.path / DECISION
    document = dict(read_decision(path))
    return document, hashlib.sha256(path.read_bytes()).hexdigest()


def _unchanged(folder: RunFolder, settings: Settings, document: Mapping[str, Any]) -> Decided:
    """The run decided again. Raises DataError where the stored replays do not decide what ``document`` says."""
    again, said = recompute(folder, settings), without_head(document)
    made = again.document
    changed = sorted(key for key in made.keys() | said.keys() if made.get(key) != said.get(key))
    if changed:
        rule, found = "what the stored replays decide", f"another {', '.join(map(quoted, changed[:5]))}"
        raise DataError(f"{folder.path / DECISION}: {rule}, got {found}; write it again with regate, and read it")
    return again


def _candidate(document: Mapping[str, Any], name: str | None) -> Mapping[str, Any]:
    candidates: Sequence[Mapping[str, Any]] = document["candidates"]
    names = [each["name"] for each in candidates]
    if name is None and len(candidates) == 1:
        return candidates[0]
    if name is None:
        listed = ", ".join(f"{each['name']} ({each['decision']})" for each in candidates)
        raise DataError(f"--candidate: one of {len(names)}, got none; name one of {listed or 'none'}")
    if name not in names:
        raise DataError(f"--candidate: one of the run's, got {quoted(name)}; {nearest(name, names)}")
    return candidates[names.index(name)]


def _refusal(signature: Signature) -> str:
    """Why it is not signed (empty: it is). Raises DataError for an override that overrides nothing."""
    if signature.clears and signature.override is not None:
        raise DataError(
            "--override: a reason where something stands against signing, got one where nothing does; drop it"
        )
    if signature.clears or signature.override is not None:
        return ""
    found = signature.decision + (f", barred: {signature.barred}" if signature.barred else "")
    return f"{signature.candidate}: only PROMOTE is signed, got {found}; to sign it all the same: --override REASON"


def _day(text: str | None) -> date | None:
    if text is None:
        return None
    try:
        day = date.fromisoformat(text)
    except ValueError:
        day = None
    if day is None or day.isoformat() != text:
        raise DataError(f"--expires: a date, got {quoted(text)}; write it as 2027-03-31")
    if day < datetime.now(UTC).date():
        raise DataError(f"--expires: today (UTC) or later, got {text}; give a day that is to come")
    return day


def _text(where: str, text: str, needed: bool = False) -> str:
    text = text.strip()
    if (needed and not text) or len(text) > TEXT_CHARS or one_line(text) != text:
        least = 1 if needed else 0
        raise DataError(
            f"{where}: {least} to {TEXT_CHARS} printable characters on one line, got {quoted(text)}; correct it"
        )
    return text
