"""The browser that other tests look through sees what it should see."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.browser import Chromium

pytestmark = pytest.mark.browser


def test_scripts_run_and_requests_are_logged_where_nothing_forbids_them(chromium: Chromium, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("<title>a</title><script>document.title = 'ran'</script><img src='http://127.0.0.1:9/pixel'>")
    assert chromium.open(page).title() == "ran"
    assert "http://127.0.0.1:9/pixel" in chromium.requests
    assert "http://127.0.0.1:9/pixel" in chromium.logged()
