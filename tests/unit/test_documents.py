"""What docs/faults.md names as proof is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_that_the_faults_name_exists() -> None:
    named = set(re.findall(r"`(test_\w+(?:\.py)?)`", (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")))
    sources = list((ROOT / "tests").glob("**/test_*.py"))
    defined = {name for path in sources for name in re.findall(r"def (test_\w+)\(", path.read_text(encoding="utf-8"))}
    assert named - defined - {path.name for path in sources} == set()
    assert len(named) > 20
