"""``kvquant-golden lint``: what is wrong, or wasteful, in a golden set, a line a fault."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvquant_eval.cli.config import build, compose, data_folder
from kvquant_eval.core.codec import DataError, to_json
from kvquant_eval.core.lint.fault import Fault, Severity
from kvquant_eval.core.lint.prefix import Reuse
from kvquant_eval.core.lint.secrets import redact
from kvquant_eval.core.lint.shape import ClassShape
from kvquant_eval.core.text import one_line
from kvquant_eval.io.golden import pin, write_manifest
from kvquant_eval.io.golden.linting import read_all
from kvquant_eval.lint import WORTHWHILE, LintReport, lint

FAULTY = 2
"""Exit status of a set with errors, as for any bad input."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's arguments."""
    parser.add_argument("--path", type=Path, default=data_folder("golden"), help="folder of the set")
    parser.add_argument("--config-dir", help="folder with YAML files of your own: classes, models")
    parser.add_argument(
        "--redact", type=Path, metavar="OUT", help="write the set with its secrets replaced to a new folder"
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="as for a gate: model=... engine.args....")


def run(options: argparse.Namespace) -> int:
    """Lint, and return the exit status: 0 without errors, 2 with. Raises DataError where the set cannot be read."""
    if options.redact is not None:
        return _redact(options.path, options.redact)
    classes = sorted(folder.name for folder in options.path.glob("*/") if any(folder.glob("*.jsonl")))
    known = [name for name in classes if _has_yaml(name, options.config_dir)]
    overrides = [f"golden.path={options.path}", "tracking=none", *_policy(known, options.overrides), *options.overrides]
    settings = build(compose(overrides, options.config_dir))
    with tempfile.TemporaryDirectory() as folder:
        report = lint(settings, options.path, Path(folder) / "lint.log")
    for fault in report.faults:
        sys.stdout.write(one_line(_line(fault)) + "\n")
    for name in set(classes) - set(known):
        sys.stdout.write(one_line(f"{name}: no workload/{name}.yaml: its task scores were not tried") + "\n")
    _summary(report)
    return FAULTY if any(fault.severity is Severity.ERROR for fault in report.faults) else 0


def _line(fault: Fault) -> str:
    turn = f"{fault.turn_id}: " if fault.turn_id else ""
    return f"{fault.place}: {fault.severity}: {fault.check}: {turn}{fault.text}"


def _has_yaml(name: str, config_dir: str | None) -> bool:
    folders = [data_folder("conf"), *([Path(config_dir)] if config_dir else [])]
    return any((folder / "workload" / f"{name}.yaml").is_file() for folder in folders)


def _policy(known: list[str], overrides: list[str]) -> list[str]:
    """The classes of the set, and the last of them as the hardest where the usual one is missing."""
    given = {item.partition("=")[0] for item in overrides}
    if not known or "workload" in given:
        return []
    hardest = [] if "math_chain" in known or "gate.hardest" in given else [f"gate.hardest={known[-1]}"]
    return [f"workload=[{','.join(known)}]", *hardest]


def _summary(report: LintReport) -> None:
    table = Table()
    for column in ("class", "turns", "conversations", "multi-turn", "system prompt", "turns by depth", "prompt tokens"):
        table.add_column(column, justify="left" if column == "class" else "right")
    for name, shape in report.classes.items():
        numbers = (shape.turns, shape.conversations, shape.multi_turn, shape.with_system)
        table.add_row(Text(one_line(name)), *map(str, numbers), _bars(shape.depths), _lengths(shape))
    Console().print(table)
    sys.stdout.write(f"prefix cache: {_share(report.as_ordered)} as ordered")
    gain = report.best_ordered.share - report.as_ordered.share
    if gain >= WORTHWHILE:
        sys.stdout.write(f"; {report.best_ordered.share:.0%} with conversations of like beginning side by side")
    errors = sum(fault.severity is Severity.ERROR for fault in report.faults)
    sys.stdout.write(f"\n{errors} errors, {len(report.faults) - errors} warnings\n")


def _share(reuse: Reuse) -> str:
    return f"{reuse.share:.0%} of {reuse.prompt_tokens:,} prompt tokens"


def _bars(counts: Mapping[int, int]) -> str:
    """A histogram of turns by depth, 0 to the deepest."""
    blocks, most = "▁▂▃▄▅▆▇█", max(counts.values(), default=1)
    columns = range(max(counts, default=0) + 1)
    return "".join(blocks[round((len(blocks) - 1) * counts.get(column, 0) / most)] for column in columns)[:40]


def _lengths(shape: ClassShape) -> str:
    return " ".join(f"≤{size:,}:{count}" for size, count in shape.lengths.items())


def _redact(source: Path, target: Path) -> int:
    """Write the set with its secrets replaced, as a new set."""
    if target.exists():
        raise DataError(f"{target}: a new folder, got one that is there; choose another")
    turns, faults = read_all(source)
    if faults:
        raise DataError(f"{faults[0].place}: {faults[0].text}")
    names: dict[str, str] = {}
    for at in turns:
        path = target / Path(at.place.rpartition(":")[0]).relative_to(source)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as stream:
            stream.write(to_json(redact(at.turn, names)).encode() + b"\n")
    manifest = write_manifest(target, pin(target, target.resolve().name, "1", {"licence": "unspecified"}))
    sys.stdout.write(one_line(f"{len(names)} secrets replaced in {len(turns)} turns; pinned in {manifest}") + "\n")
    return 0
