"""A judge behind a real local HTTP server, which can be told to misbehave."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.fakes.loopback import LoopbackServer

Request = dict[str, Any]
Behave = Callable[["Handler", Request, int], None]
"""Answers the n-th request (from 0)."""
_ANSWER = re.compile(r"<(\w{16}) answer ([AB])>\n(.*?)\n</\1 answer \2>", re.DOTALL)


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: JudgeServer
    timeout = 20

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            number = len(self.server.requests)
            self.server.requests.append(body)
            self.server.headers.append(dict(self.headers))
        self.server.behave(self, body, number)

    def reply(self, data: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content_Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def say(self, text: str) -> None:
        """A chat completion of this text."""
        self.reply(json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]}).encode())

    def log_message(self, *_: object) -> None: ...


def shown(request: Request) -> dict[str, str]:
    """The answers A and B as the judge sees them."""
    return {letter: text for _, letter, text in _ANSWER.findall(request["messages"][1]["content"])}


def by_length(handler: Handler, request: Request, _: int) -> None:
    """A sober judge: 50 points and one for each letter, at most 100."""
    points = {letter: min(100, 50 + len(text)) for letter, text in shown(request).items()}
    handler.say(json.dumps({"reason": "by length", **points}))


class JudgeServer(LoopbackServer):
    """Use as a context manager; ``url`` is the base address. What was asked stays in ``requests`` and ``headers``."""

    def __init__(self, behave: Behave = by_length) -> None:
        super().__init__(Handler)
        self.behave = behave
        self.lock = threading.Lock()
        self.requests: list[Request] = []
        self.headers: list[dict[str, str]] = []

    @property
    def url(self) -> str:
        return f"{super().url}/v1"
