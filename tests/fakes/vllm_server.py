"""A vLLM server's HTTP face over a real local socket, which can be told to misbehave."""

from __future__ import annotations

import json
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.fakes.loopback import LoopbackServer

Answer = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: FakeVllm
    timeout = 20

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self.server.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self._answer()

    def _answer(self) -> None:
        self.server.paths.append(self.path)
        self.server.answers.get(self.path, missing)(self)

    def send(self, data: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None: ...


class FakeVllm(LoopbackServer):
    """Answers by path; what is not among ``answers`` is not found."""

    def __init__(self, answers: dict[str, Answer]) -> None:
        super().__init__(Handler)
        self.answers = answers
        self.paths: list[str] = []
        self.bodies: list[Any] = []


def says(value: Any, status: int = 200) -> Answer:
    return lambda handler: handler.send(json.dumps(value).encode(), status)


def raw(data: bytes) -> Answer:
    return lambda handler: handler.send(data)


missing = says({"detail": "Not Found"}, 404)
