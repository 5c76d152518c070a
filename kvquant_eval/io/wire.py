"""One HTTP exchange within bounds: of time, whatever the other side does, and of bytes."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Mapping
from typing import Any

import httpx


class Late(Exception):
    """The exchange was cut."""


class TooLong(Exception):
    """The response has more bytes than are taken."""


class Line:
    """The sockets of one exchange, which can be cut from another thread, whatever is read or written there."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []
        self.is_cut = False

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """See httpcore's extension ``trace``."""
        if event.endswith((".connect_tcp.complete", ".start_tls.complete")):
            self._sockets.append(info["return_value"].get_extra_info("socket"))
            if self.is_cut:
                self.cut()

    def cut(self) -> None:
        self.is_cut = True
        for each in self._sockets:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(each, socket.SHUT_RDWR)  # an SSL socket's own would wait for the other side


def client(timeout_s: float, connect_s: float, headers: Mapping[str, str] | None = None) -> httpx.Client:
    """A client for ``exchange``: it follows no redirect, and what comes is counted as it is."""
    return httpx.Client(
        headers={"Accept-Encoding": "identity", **(headers or {})},
        timeout=httpx.Timeout(timeout_s, connect=min(timeout_s, connect_s)),
        limits=httpx.Limits(max_keepalive_connections=0),  # so that a socket is that of one exchange
        follow_redirects=False,
    )


def exchange(
    client: httpx.Client, line: Line, method: str, url: str, *, seconds: float, most_bytes: int, body: Any = None
) -> tuple[int, httpx.Headers, bytes]:
    """Status, headers and content of the response to one request with the JSON ``body`` (None: without one).

    Raises Late after ``seconds`` or when ``line`` is cut, TooLong for more than ``most_bytes``, and what httpx raises.
    """
    data, timer = b"", threading.Timer(seconds, line.cut)
    timer.start()
    try:
        with client.stream(method, url, json=body, extensions={"trace": line.trace}) as response:
            for chunk in response.iter_raw():
                data += chunk
                if len(data) > most_bytes:
                    raise TooLong(f"a response of more than {most_bytes:,} bytes")
        if line.is_cut:  # where no length was given, that looks like the end
            raise Late
        return response.status_code, response.headers, data
    except httpx.TransportError as error:
        raise (Late if line.is_cut else error) from None
    finally:
        timer.cancel()
