"""Chromium for tests of pages: what they show, and what they ask of the network."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Page

QUIET = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-default-apps",
)  # fmt: skip


@dataclass
class Chromium:
    """One started browser. ``requests`` are the addresses that pages asked for, as Playwright saw them."""

    context: Any
    log: Path
    requests: list[str] = field(default_factory=list)

    def open(self, address: str | Path, width: int = 1280, height: int = 900, **media: str) -> Page:
        """A page at ``address``; ``media`` as Playwright's ``emulate_media`` (``color_scheme``, ``media``)."""
        page: Page = self.context.new_page()
        page.set_viewport_size({"width": width, "height": height})
        if media:
            page.emulate_media(**media)  # type: ignore[arg-type]
        page.on("request", lambda request: self.requests.append(request.url))
        page.goto(address.as_uri() if isinstance(address, Path) else address)
        return page

    def logged(self) -> list[str]:
        """Every address in the browser's own network log; closes the browser, as the log is whole only then."""
        self.context.close()
        text = self.log.read_text(encoding="utf-8")
        events = json.loads(text if text.rstrip().endswith("}") else text.rstrip().rstrip(",") + "]}")["events"]
        return [event["params"]["url"] for event in events if "url" in event.get("params", {})]
