"""Tests and the child processes they start find the package and the fakes, installed or not."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

settings.register_profile("kvquant", deadline=None, derandomize=True, max_examples=60, database=None)
settings.load_profile("kvquant")


@pytest.fixture(scope="session", autouse=True)
def _children_import_from_here() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        for name in ("GITHUB_ACTIONS", "GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY"):  # of the job that runs these tests
            patch.delenv(name, raising=False)
        yield
