"""``kvquant-golden``: import recordings as a golden set, look into one, and pin one. Errors of the user end in one line
and status 2.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvquant_eval.cli import github, golden_import, golden_lint
from kvquant_eval.cli.config import data_folder
from kvquant_eval.core.codec import DataError, nearest, quoted, to_data
from kvquant_eval.core.records import Decision, GoldenTurn
from kvquant_eval.core.text import one_line
from kvquant_eval.io.child import EngineDied
from kvquant_eval.io.golden import load, pin, verify, write_manifest
from kvquant_eval.io.golden.manifest import MANIFEST, read_manifest


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb and return the exit status."""
    options = _parser().parse_args(sys.argv[1:] if argv is None else list(argv))
    quoting = options.verb in ("import", "lint")  # lines for people; the other verbs' output is for programs too
    try:
        with github.commands_stopped() if quoting else contextlib.nullcontext():
            return int(options.run(options))
    except DataError as error:
        return _complain(str(error))
    except EngineDied as died:
        return _complain(str(died), Decision.INVALID.exit_code)
    except KeyboardInterrupt:
        return _complain("interrupted", 128 + signal.SIGINT)
    except OSError as error:
        return _complain(f"{error.filename or 'system'}: {error.strerror or error}; make room or correct the path")


def _parser() -> argparse.ArgumentParser:
    """Each verb says in ``run`` what it does with its options."""
    parser = argparse.ArgumentParser("kvquant-golden", description="Import, look into and pin golden sets.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    importing = verbs.add_parser("import", help="turn recorded conversations into golden turns")
    golden_import.add_arguments(importing)
    importing.set_defaults(run=golden_import.run)
    linting = verbs.add_parser("lint", help="what is wrong, or wasteful, in a set")
    golden_lint.add_arguments(linting)
    linting.set_defaults(run=golden_lint.run)
    stats = verbs.add_parser("stats", help="turns, conversations and depth of each class")
    stats.set_defaults(run=lambda options: _stats(_turns(options.path)))
    show = verbs.add_parser("show", help="one turn as JSON")
    show.add_argument("turn_id")
    show.set_defaults(run=lambda options: _show(_turns(options.path), options.turn_id))
    pinning = verbs.add_parser("pin", help="write the manifest of a new set or version")
    pinning.add_argument("--name", required=True)
    pinning.add_argument("--set-version", required=True)
    pinning.add_argument("--licence", default="unspecified")
    pinning.set_defaults(run=lambda options: _pin(options.path, options.name, options.set_version, options.licence))
    for verb in (stats, show, pinning):
        verb.add_argument("--path", type=Path, default=data_folder("golden"), help="folder of the set")
    return parser


def _complain(line: str, status: int = 2) -> int:
    sys.stderr.write(f"kvquant-golden: {one_line(line)}\n")
    return status


def _turns(path: Path) -> tuple[GoldenTurn, ...]:
    return load(path, read_manifest(path).workloads).turns


def _stats(turns: Sequence[GoldenTurn]) -> int:
    conversations: dict[str, Counter[str]] = defaultdict(Counter)
    for turn in turns:
        conversations[turn.workload][turn.conversation_id] += 1
    table = Table()
    for column in ("class", "turns", "conversations", "multi-turn", "latest turn", "with system prompt"):
        table.add_column(column, justify="left" if column == "class" else "right")
    for workload, counted in conversations.items():
        of_class = [turn for turn in turns if turn.workload == workload]
        table.add_row(
            Text(one_line(workload)),
            str(len(of_class)),
            str(len(counted)),
            str(sum(turn.turn_index > 0 for turn in of_class)),
            str(max(turn.turn_index for turn in of_class)),
            str(sum(turn.messages[0]["role"] == "system" for turn in of_class)),
        )
    Console().print(table)
    return 0


def _show(turns: Sequence[GoldenTurn], turn_id: str) -> int:
    found = next((turn for turn in turns if turn.turn_id == turn_id), None)
    if found is None:
        raise DataError(
            f"turn_id: a turn of the set, got {quoted(turn_id)}; {nearest(turn_id, [t.turn_id for t in turns])}"
        )
    sys.stdout.write(json.dumps(to_data(found), indent=2) + "\n")  # ASCII: golden text cannot reach the terminal
    return 0


def _pin(path: Path, name: str, version: str, licence: str) -> int:
    """Only a set that can be loaded is pinned. One under an old version stays as it is: a changed one needs a new
    version.
    """
    manifest = pin(path, name, version, {"licence": licence})
    if not manifest["files"]:
        raise DataError(f"{path}: <class>/*.jsonl files to pin, got none; correct --path")
    new = verify(path, manifest)
    target = path / MANIFEST
    if target.exists():
        old = read_manifest(path)
        if (old.name, old.version) == (name, version) and old.files != new.files:
            raise DataError(f"{target}: a new version for a changed set, got {version} again; raise --set-version")
    write_manifest(path, manifest)
    sys.stdout.write(f"pinned {sum(entry['turns'] for entry in manifest['files'].values())} turns in {target}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
