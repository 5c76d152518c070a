"""A real Chromium for pages of ours."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

from tests.fakes.browser import QUIET, Chromium


@pytest.fixture
def chromium(tmp_path: Path) -> Iterator[Chromium]:
    """Skips where there is none; `.ci/run` installs it."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium: install the system package chromium")
    log = tmp_path / "net-log.json"
    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            str(tmp_path / "profile"), executable_path=program, args=[*QUIET, f"--log-net-log={log}"]
        )
        yield Chromium(context, log)
        context.close()
