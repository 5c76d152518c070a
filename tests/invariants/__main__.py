"""``python -m tests.invariants``: break each invariant in a copy of the project and see its test fail."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.invariants.mutants import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
COPIED = ("kvquant_eval", "conf", "golden", "tests", "pyproject.toml")


def main() -> int:
    """Print the list as a table; return how many mutants no test noticed."""
    print("| invariant | broken | fails |\n| --- | --- | --- |")
    unnoticed = 0
    for mutant in MUTANTS:
        failed = failing(mutant)
        unnoticed += not failed
        print(f"| {mutant.invariant} | {mutant.what} | {failed or 'NO TEST'} |", flush=True)
    return unnoticed


def failing(mutant: Mutant) -> str:
    """The name of the first test that fails for the mutant; empty when none does."""
    with tempfile.TemporaryDirectory() as folder:
        for name in COPIED:
            source, target = ROOT / name, Path(folder) / name
            shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
        file = Path(folder) / mutant.file
        file.write_text(file.read_text(encoding="utf-8").replace(mutant.old, mutant.new), encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", mutant.test]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return lines[0].split()[1] if done.returncode == 1 and lines else ""


if __name__ == "__main__":
    sys.exit(main())
