"""The judge behind an OpenAI-compatible endpoint: one question, one answer, and every failure in one line."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from kvquant_eval.core.codec import DataError
from kvquant_eval.core.records import Json
from kvquant_eval.core.scorers.judge import read_grades
from kvquant_eval.core.settings import JudgeSettings
from kvquant_eval.core.text import head, one_line
from kvquant_eval.io.wire import Late, Line, TooLong, client, exchange

SENT = ("model", "messages", "temperature", "seed", "max_tokens")
"""Keys of a question that the judge sees."""
MOST_BYTES = 1 << 20
"""Of a response; an answer is a few hundred."""
DEAD_AFTER = 3
"""Questions in a row that got no whole response in any attempt; after them nothing more is asked."""
CONNECT_S = 10.0
USELESS = (401, 403, 404, 405)
"""Statuses that every other question would get too."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 20.0
MESSAGE_CHARS = 200


class JudgeClient:
    """See ``evidence.Oracle``. Answers are ``{"A": points, "B": points, "reason": text}``.

    What may pass is tried ``settings.retries`` times more: no connection, timeouts, 408, 429 and 5xx, a response that
    breaks off or does not hold the grades. Once the endpoint is dead or refuses this client the rest fails at once.
    Redirects are not followed: the key belongs to one host.
    """

    def __init__(self, settings: JudgeSettings) -> None:
        self.at_once = settings.at_once
        self._settings = settings
        self._secret = api_key(settings)
        headers = {"Authorization": f"Bearer {self._secret}"} if self._secret else {}
        self._client = client(settings.timeout_s, CONNECT_S, headers)
        self._lock = threading.Lock()
        self._silent = 0
        self._closed = ""
        self._stop = threading.Event()
        self._lines: set[Line] = set()

    def __call__(self, content: Mapping[str, Json]) -> Json:
        body = {key: content[key] for key in SENT if key in content}
        for attempt in range(self._settings.retries + 1):
            if self._closed:
                return {"error": self._closed}
            failure, grades = self._try(body)
            if failure is None:
                self._note(None)
                return grades
            last = attempt == self._settings.retries
            if last or not failure.passes or self._stop.wait(_pause(attempt, failure.retry_after)):
                break
        self._note(failure)
        return {"error": self._closed or str(failure)}

    def close(self) -> None:
        """End waiting retries, cut what is being answered, and close the client."""
        self._stop.set()
        self._closed = self._closed or "not asked to the end"
        with self._lock:
            for line in self._lines:
                line.cut()
        self._client.close()

    def _try(self, body: Mapping[str, Any]) -> tuple[_Failure | None, Json]:
        """One attempt: why it failed, or the grades."""
        try:
            status, headers, data = self._post(body)
            if status == 200:
                return None, _grades(data)
        except _Failure as failure:
            return failure, None
        except Late:
            return _Failure(f"no whole response within {self._settings.timeout_s:g} s", silent=True), None
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            what = self._masked(one_line(str(error))) or "no response"
            return _Failure(f"{type(error).__name__}: {head(what, MESSAGE_CHARS)}", silent=True), None
        passes = status in (408, 429) or status >= 500
        line = f"status {status}{self._said(data)}" if status >= 400 else f"status {status}; redirects are not followed"
        return _Failure(line, passes=passes, useless=status in USELESS, retry_after=_seconds(headers)), None

    def _post(self, body: Mapping[str, Any]) -> tuple[int, httpx.Headers, bytes]:
        """Status, headers and body of the response, within ``timeout_s`` and ``MOST_BYTES``."""
        line, url, seconds = Line(), completions_url(self._settings.url), self._settings.timeout_s
        with self._lock:
            self._lines.add(line)
        try:
            return exchange(self._client, line, "POST", url, seconds=seconds, most_bytes=MOST_BYTES, body=body)
        except TooLong as error:
            raise _Failure(str(error), passes=False) from None
        finally:
            with self._lock:
                self._lines.discard(line)

    def _note(self, failure: _Failure | None) -> None:
        """What became of a question: give the endpoint up where it is dead or will never take this client."""
        with self._lock:
            self._silent = self._silent + 1 if failure is not None and failure.silent else 0
            if failure is None or self._closed:
                return
            if self._silent >= DEAD_AFTER:
                self._closed = f"given up after {self._silent} questions in a row without a response ({failure})"
            elif failure.useless:
                self._closed = str(failure)

    def _said(self, data: bytes) -> str:
        """What the endpoint says of its error: OpenAI's ``error.message``, or the text; never the key."""
        text = data[:MOST_BYTES].decode("utf-8", "replace")
        try:
            error = json.loads(text)["error"]
            text = str(error.get("message", error) if isinstance(error, dict) else error)
        except (ValueError, TypeError, KeyError, RecursionError):
            pass
        line = head(self._masked(one_line(" ".join(text.split()))), MESSAGE_CHARS)
        return f" ({line})" if line else ""

    def _masked(self, text: str) -> str:
        return text.replace(self._secret, "***") if self._secret else text


class _Failure(Exception):
    """No grades this time. ``passes``: it may be otherwise later; ``silent``: nobody responded."""

    def __init__(
        self,
        line: str,
        *,
        passes: bool = True,
        silent: bool = False,
        useless: bool = False,
        retry_after: float = 0.0,
    ) -> None:
        super().__init__(line)
        self.passes, self.silent, self.useless, self.retry_after = passes, silent, useless, retry_after


def completions_url(url: str) -> str:
    """Where questions are posted, of the endpoint's base address (``.../v1``)."""
    return url.rstrip("/").removesuffix("/chat/completions") + "/chat/completions"


def api_key(settings: JudgeSettings) -> str:
    """The key from its environment variable; empty where none is asked for. Raises DataError, without the key or the
    name: a key may have been pasted there.
    """
    if not settings.api_key_env:
        return ""
    where = "scorer.judge.api_key_env"
    key = os.environ.get(settings.api_key_env, "").strip()
    if not key:
        raise DataError(f"{where}: the name of a variable that is set, got one that is not; export it")
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise DataError(f"{where}: a key of printable ASCII in the variable, got something else; correct it")
    return key


def _grades(data: bytes) -> Json:
    """The grades in a whole response. Raises _Failure."""
    try:
        text = json.loads(data)["choices"][0]["message"]["content"]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        raise _Failure("a response that is no chat completion") from None
    grades = read_grades(text) if isinstance(text, str) else None
    if grades is None:
        raise _Failure(f"no JSON with grades A and B of 0 to 100 points, but {head(one_line(repr(text)), 80)}")
    return grades


def _pause(attempt: int, asked_for: float) -> float:
    """Seconds behind the ``attempt``-th attempt (from 0): doubling, or what the endpoint asks for, both bounded."""
    return min(LONGEST_PAUSE_S, max(asked_for, FIRST_PAUSE_S * 2.0**attempt))


def _seconds(headers: httpx.Headers) -> float:
    """``Retry-After`` in seconds; 0 where there is none that can be read."""
    given = str(headers.get("retry-after", ""))
    if given.isascii() and given.isdecimal() and len(given) < 10:
        return float(given)
    try:
        moment: float = parsedate_to_datetime(given).timestamp()
        return max(0.0, moment - time.time())
    except (ValueError, TypeError, OverflowError):
        return 0.0
