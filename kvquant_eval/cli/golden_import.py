"""``kvquant-golden import``: recorded conversations into a new file of golden turns, with an account of what was left
out.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from inspect import signature
from pathlib import Path
from typing import Any

import yaml

from kvquant_eval.cli.config import data_folder
from kvquant_eval.core.codec import DataError, quoted
from kvquant_eval.core.text import one_line, writable
from kvquant_eval.core.turns import WORKLOAD_RULE, is_name, is_workload
from kvquant_eval.io.golden import MANIFEST, pin, write_manifest
from kvquant_eval.io.golden.imports import Imported, formats, importer, write_turns
from kvquant_eval.io.golden.manifest import Manifest, read_manifest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's arguments."""
    parser.add_argument("source", help="file, folder, or what the format calls its own: a data set, an experiment")
    parser.add_argument("--format", required=True, help=", ".join(formats()))
    parser.add_argument("--class", dest="workload", required=True, help="workload class of the turns")
    parser.add_argument("--out", type=Path, required=True, help="folder of the golden set")
    parser.add_argument("--name", help="of the file in the class's folder; by default the source's")
    parser.add_argument("--limit", type=_positive, help="at most so many turns")
    parser.add_argument("--mapping", type=Path, help="YAML that says what the columns are (format datasets)")


def run(options: argparse.Namespace) -> int:
    """Import, and pin a new set. Raises DataError for what cannot be read or written."""
    workload = options.workload
    if not is_workload(workload):
        raise DataError(f"--class: {WORKLOAD_RULE}, got {quoted(workload)}; name the class otherwise")
    name = options.name or Path(options.source).stem or options.format
    if not is_workload(name):
        raise DataError(f"--name: {WORKLOAD_RULE}, got {quoted(name)}; give the file a --name")
    read = importer(options.format).read
    more: dict[str, Any] = {}
    if "mapping" in signature(read).parameters:
        more["mapping"] = _mapping(options.mapping)
    elif options.mapping is not None:
        raise DataError(f"--mapping: none for the format {options.format}, got {options.mapping}; remove it")
    known = read_manifest(options.out) if (options.out / MANIFEST).exists() else None
    target = options.out / workload / f"{name}.jsonl"
    done = write_turns(read(options.source, **more), target, workload, options.limit)
    _tell(done, target)
    if known is None:
        _pin(options, target)
    else:
        _tell_to_pin(options.out, known)
    return 0


def _tell(done: Imported, target: Path) -> None:
    sys.stdout.write(one_line(f"{done.turns} turns of {done.conversations} conversations in {target}") + "\n")
    for reason, number in done.left_out.most_common():
        sys.stdout.write(one_line(f"  left out: {number} x {reason}; first {done.first[reason]}") + "\n")


def _pin(options: argparse.Namespace, target: Path) -> None:
    """Pin a new set: the file that was made, whatever else stands in the folder."""
    about = {"licence": "unspecified", "provenance": writable(f"{options.format}: {Path(options.source).name}")}
    folder = options.out.resolve().name
    name = folder if is_name(folder) else options.workload
    manifest = write_manifest(options.out, pin(options.out, name, "1", about, [target]))
    sys.stdout.write(one_line(f"pinned as {name} 1 in {manifest}") + "\n")
    classes = (
        f"{shlex.quote(f'golden.path={options.out}')} workload=[{options.workload}] gate.hardest={options.workload}"
    )
    sys.stdout.write(one_line(f"gate it with: kvquant-eval gate {classes}") + "\n")
    if not (data_folder("conf") / "workload" / f"{options.workload}.yaml").exists():
        text = (
            f"the class needs a workload/{options.workload}.yaml, in a folder given with --config-dir; see the README"
        )
        sys.stdout.write(one_line(text) + "\n")


def _tell_to_pin(out: Path, known: Manifest) -> None:
    """Say how a set that was there takes the new file in."""
    how = shlex.join(("kvquant-golden", "pin", "--path", str(out), "--name", known.name, "--set-version", "NEW"))
    sys.stdout.write(one_line(f"not part of {known.name} {known.version} yet: {how}") + "\n")


def _mapping(path: Path | None) -> dict[str, Any]:
    if path is None:
        raise DataError("--mapping: a YAML file that says what the columns are, got none; see the README")
    try:
        read = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: a YAML file, got {error.strerror}; correct --mapping") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: YAML, got {quoted(error)}; correct it") from None
    if not isinstance(read, dict):
        raise DataError(f"{path}: columns by name, got {quoted(read)}; correct it")
    return read


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"a number from 1, got {text!r}")
    return int(text)
