"""What a running vLLM server tells of itself. Answers are data: bounded in time and size, checked, never trusted."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import httpx

from kvquant_eval.core.codec import DataError, from_data, quoted
from kvquant_eval.core.engine import EngineFacts, LayerFacts
from kvquant_eval.core.strict_json import BadJson, parse
from kvquant_eval.core.text import head, masked, one_line
from kvquant_eval.core.verification import EXTENSION, Served
from kvquant_eval.io.wire import Late, Line, TooLong, client, exchange

MOST_BYTES = 16 << 20
"""Of an answer: workers tell about 400 bytes a layer."""
ANSWER_S, CONNECT_S = 60.0, 10.0
"""Of one request; the server may be at work."""
MOST_ENGINES = 1000
MESSAGE_CHARS = 200
DEVELOPMENT = f"start it with VLLM_SERVER_DEV_MODE=1 and --worker-extension-cls {EXTENSION}"
LINE_CHARS = 20_000
_INFO = "vllm:cache_config_info{"
_LABEL = re.compile(r'\b(\w++)="((?:[^"\\]|\\.)*+)"')


class Silent(Exception):
    """No answer that can be used, in one line."""

    def __init__(self, line: str, status: int = 0) -> None:
        super().__init__(head(one_line(line), MESSAGE_CHARS))
        self.status = status


class Server:
    """Asks a vLLM server. ``url`` is its base address. Raises DataError for one that can be none."""

    def __init__(self, url: str, answer_s: float = ANSWER_S) -> None:
        try:
            parts = urlsplit(url)
            sound = parts.scheme in ("http", "https") and parts.hostname and not (parts.query or parts.fragment)
            sound = sound and (parts.port is None or parts.port > 0)
        except ValueError:
            sound = False
        if not sound or not url.isprintable():
            raise DataError(
                f"--server: the address of a vLLM server, got {quoted(masked(url))}; write http://HOST:PORT"
            )
        self._base, self._answer_s = url.rstrip("/").removesuffix("/v1"), answer_s
        self._client = client(answer_s, CONNECT_S)

    def read(self) -> Served:
        """What it tells. ``collective_rpc`` is asked for our own method alone: some of vLLM's workers' (0.32) return
        what the server cannot send, and no answer comes out of it afterwards.
        """
        with self._client:
            try:
                version = self._json("GET", "/version")
            except Silent as silent:
                if not silent.status:
                    return Served(silence=f"the server does not answer: {silent}; start it, or correct --server")
                version = None
            told = Served(version=_text(version, "version"), models=self._models())
            try:
                workers = self._workers()
            except Silent as silent:
                labels, why = self._labels()
                return replace(told, labels=labels, silence=f"{silent}{why}")
            return replace(told, workers=workers, revision=self._revision())

    def _workers(self) -> EngineFacts:
        try:
            answer = self._json("POST", "/collective_rpc", {"method": "kv_facts"})
        except Silent as silent:
            if silent.status == httpx.codes.NOT_FOUND:
                raise Silent(f"the server is not in development mode; {DEVELOPMENT}") from None
            raise Silent(f"its workers do not say ({silent}); {DEVELOPMENT}") from None
        try:
            results = from_data(list[dict[str, Any]], answer.get("results"), "results")
            workers = [from_data(tuple[LayerFacts, ...], each.get("layers"), "layers") for each in results]
        except DataError as error:
            raise Silent(f"its workers say what was not asked ({error})") from None
        if not workers or not all(workers):
            raise Silent("its workers have no attention layer that can be read back")
        return EngineFacts(
            engine="vllm",
            version="",
            device="",
            model_dtype="",
            layers=tuple(workers),
            capacity_tokens=0,
            block_size=0,
            settings={},
            versions={},
        )

    def _labels(self) -> tuple[tuple[dict[str, str], ...], str]:
        """The labels of every engine's cache; none with why not."""
        try:
            text = self._get("GET", "/metrics").decode("utf-8", "replace")
        except Silent as silent:
            return (), f"; /metrics: {silent}"
        lines = [line[:LINE_CHARS] for line in text.split("\n") if line.startswith(_INFO)]
        found = tuple(dict(_LABEL.findall(line)) for line in lines[: MOST_ENGINES + 1])
        if not found or len(found) > MOST_ENGINES:
            return (), f"; /metrics: no cache_config_info (of {len(found)} engines)"
        return found, ""

    def _models(self) -> tuple[tuple[str, str], ...]:
        """Id and root of every model that is no adapter; none where the server keeps them for clients with a key."""
        try:
            answer = self._json("GET", "/v1/models")
            listed = from_data(list[dict[str, Any]], answer.get("data"), "data")
        except (Silent, DataError):
            return ()
        own = [each for each in listed if not each.get("parent")]
        return tuple((_text(each, "id") or "", _text(each, "root") or "") for each in own)

    def _revision(self) -> str | None:
        """The revision that the front end was started with, where development mode shows its configuration."""
        try:
            config = self._json("GET", "/server_info?config_format=json").get("vllm_config")
        except Silent:
            return None
        model = config.get("model_config") if isinstance(config, dict) else None
        return _text(model, "revision")

    def _json(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        try:
            value = parse(self._get(method, path, body))
        except BadJson as error:
            raise Silent(f"no JSON: {error}", httpx.codes.OK) from None
        if not isinstance(value, dict):
            raise Silent("no JSON object", httpx.codes.OK)
        return value

    def _get(self, method: str, path: str, body: Any = None) -> bytes:
        try:
            status, _, data = exchange(
                self._client,
                Line(),
                method,
                self._base + path,
                seconds=self._answer_s,
                most_bytes=MOST_BYTES,
                body=body,
            )
        except Late:
            raise Silent(f"no whole answer within {self._answer_s:g} s") from None
        except TooLong as error:
            raise Silent(str(error), httpx.codes.OK) from None
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            raise Silent(f"{type(error).__name__}: {str(error) or 'no answer'}") from None
        if status != httpx.codes.OK:
            raise Silent(f"status {status}" + " to a redirect" * (300 <= status < 400), status)
        return data


def _text(value: Any, key: str) -> str | None:
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, str) else None
