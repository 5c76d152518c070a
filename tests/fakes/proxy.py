"""An HTTP proxy that misbehaves as planned, in front of a server that does not."""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum, auto
from http.server import BaseHTTPRequestHandler
from threading import Lock, Thread
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit


class Fault(StrEnum):
    """What becomes of one request."""

    NONE = auto()
    ERROR = auto()
    """Status 500; the server is not asked."""
    BUSY = auto()
    """Status 503 with the wish to be asked again in an hour."""
    CUT_REQUEST = auto()
    """Half of the body reaches the server, then both connections close."""
    CUT_ANSWER = auto()
    """The server has done what it was asked; half of its answer comes back."""
    LOST_ANSWER = auto()
    """The server has done what it was asked; the connection closes without an answer."""
    DEATH = auto()
    """No answer, and the proxy is gone for good: further connections are refused."""


Plan = Callable[[int], Fault]
"""The fault of the n-th request, counted from 1."""


def never(n: int) -> Fault:
    return Fault.NONE


def always(fault: Fault) -> Plan:
    return lambda n: fault


def only(nth: int, fault: Fault) -> Plan:
    return lambda n: fault if n == nth else Fault.NONE


def first(count: int, fault: Fault) -> Plan:
    return lambda n: fault if n <= count else Fault.NONE


class Proxy:
    """``with Proxy(upstream, plan, delay_s) as proxy`` serves ``proxy.url``; ``requests`` lists what came."""

    def __init__(self, upstream: str, plan: Plan = never, delay_s: float = 0.0) -> None:
        self.plan, self.delay_s = plan, delay_s
        self.upstream = urlsplit(upstream).netloc
        self.requests: list[str] = []
        self._lock = Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.die()

    def die(self) -> None:
        """Refuse every further connection."""
        with suppress(OSError):  # dead already
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def fault(self, request: str) -> Fault:
        """Count a request and say what becomes of it."""
        with self._lock:
            self.requests.append(request)
            return self.plan(len(self.requests))

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError:
                return
            Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            _Handler(connection, None, self)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    """One connection to the proxy, which is ``server`` here."""

    protocol_version = "HTTP/1.1"
    server: Proxy  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Callable[[], None]:
        if name.startswith("do_"):
            return self._pass_on
        raise AttributeError(name)

    def log_message(self, *_: object) -> None: ...

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.server.fault(f"{self.command} {urlsplit(self.path).path}")
        time.sleep(self.server.delay_s)
        self.close_connection = fault is not Fault.NONE
        if fault is Fault.DEATH:
            self.server.die()
        elif fault is Fault.ERROR:
            self._answer(500, [], b'{"error_code": "INTERNAL_ERROR", "message": "planned"}')
        elif fault is Fault.BUSY:
            self._answer(503, [("Retry-After", "3600")], b"")
        elif fault is Fault.CUT_REQUEST:
            self._ask(body[: len(body) // 2]).close()
        else:
            connection = self._ask(body)
            answer = connection.getresponse()
            content = answer.read()
            if fault is not Fault.LOST_ANSWER:
                self._answer(answer.status, answer.getheaders(), content, cut=fault is Fault.CUT_ANSWER)
            connection.close()

    def _ask(self, body: bytes) -> http.client.HTTPConnection:
        """Send the request with the client's own headers, its Content-Length too, whatever there is of the body."""
        connection = http.client.HTTPConnection(self.server.upstream, timeout=60)
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        return connection

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes, cut: bool = False) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) + cut))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if cut else body)
