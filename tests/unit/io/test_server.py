"""What a server tells, over a real local socket: as vLLM tells it, and as one would who lies, stalls or floods."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import pytest

from kvquant_eval.core.codec import DataError
from kvquant_eval.core.verification import Served
from kvquant_eval.io import server as module
from kvquant_eval.io.server import Server
from tests.fakes.signed import facts, labels, rpc
from tests.fakes.vllm_server import Answer, FakeVllm, Handler, missing, raw, says


def metrics(*engines: dict[str, str]) -> Answer:
    pairs = [",".join(f'{key}="{value}"' for key, value in each.items()) for each in engines]
    lines = ["# HELP vllm:cache_config_info x", *(f"vllm:cache_config_info{{{each}}} 1.0" for each in pairs), "up 1"]
    return raw("\n".join(lines).encode())


def usual(**change: Answer) -> dict[str, Answer]:
    """A server in development mode with our extension."""
    answers = {
        "/version": says({"version": "0.32.0"}),
        "/v1/models": says(
            {"data": [{"id": "prod", "root": "org/model", "parent": None}, {"id": "lora", "parent": "prod"}]}
        ),
        "/collective_rpc": says(rpc("fp8_e4m3", "fp8_e4m3")),
        "/server_info?config_format=json": says({"vllm_config": {"model_config": {"revision": "r1"}}}),
        "/metrics": metrics(labels()),
    }
    return {**answers, **change}


def read(answers: dict[str, Answer], answer_s: float = 10.0) -> Served:
    with FakeVllm(answers) as server:
        return Server(server.url, answer_s).read()


def test_an_address_that_can_be_none_shows_no_password() -> None:
    with pytest.raises(DataError, match=r"got 'http://\*\*\*@host/\?x'"):
        Server("http://user:p@ss@host/?x")


def test_workers_that_can_be_asked() -> None:
    with FakeVllm(usual()) as server:
        found = Server(f"{server.url}/v1/").read()
    assert found == Served(
        version="0.32.0",
        models=(("prod", "org/model"),),
        revision="r1",
        workers=facts("fp8_e4m3", "fp8_e4m3"),
    )
    assert server.bodies == [{"method": "kv_facts"}]  # other methods may end the server


def test_without_development_mode_the_labels_are_read() -> None:
    found = read(usual(**{"/collective_rpc": missing}))
    assert found.workers is None
    assert found.labels == (labels(),)
    assert found.silence == (
        "the server is not in development mode; start it with VLLM_SERVER_DEV_MODE=1 and --worker-extension-cls "
        "kvquant_eval.worker.extension.KVExtension"
    )


def test_without_our_extension_the_labels_are_read() -> None:
    found = read(usual(**{"/collective_rpc": says({"error": {"message": "no attribute"}}, 500)}))
    assert found.labels == (labels(),)
    assert found.silence.startswith("its workers do not say (status 500); start it with VLLM_SERVER_DEV_MODE=1")


def test_labels_of_every_engine_with_what_stands_in_quotes() -> None:
    odd = {**labels(cache_dtype="auto"), "kv_cache_layout": 'a\\"}, b=\\"c'}
    found = read(usual(**{"/collective_rpc": missing, "/metrics": metrics(labels(), odd)}))
    assert found.labels == (labels(), odd)


def changed(**change: Any) -> Answer:
    answer = rpc("fp8_e4m3", "fp8_e4m3")
    answer["results"][1]["layers"][0].update(change)
    return says(answer)


@pytest.mark.parametrize(
    "answer",
    [
        raw(b""),
        raw(b"\xff\xfe"),
        raw(b"<html>"),
        raw(b"[" * 100_000),
        raw(b'{"results": NaN}'),
        says([]),
        says({}),
        says({"results": []}),
        says({"results": [None]}),
        says({"results": ["text"]}),
        says({"results": [{"layers": []}]}),
        says({"results": [{"layers": {}}]}),
        says({"results": [{"layers": [{"name": "x"}]}]}),
        says({"results": [rpc("fp8_e4m3")["results"][0], {"layers": []}]}),
        changed(index="one"),
        changed(kv_dtype=None),
        changed(bytes_per_token={"a": 1}),
        lambda handler: handler.send(b"", 302, Location="http://127.0.0.1:9/"),
    ],
)
def test_workers_that_say_what_they_should_not_show_nothing(answer: Answer) -> None:
    found = read(usual(**{"/collective_rpc": answer}))
    assert found.workers is None
    assert found.silence
    assert found.silence.isprintable()


@pytest.mark.parametrize("path", ["/version", "/v1/models", "/server_info?config_format=json", "/metrics"])
@pytest.mark.parametrize("answer", [raw(b"\x00"), says([1]), says({"data": 1, "version": 2}), says(None, 401)])
def test_any_other_answer_that_is_none_is_left_out(path: str, answer: Answer) -> None:
    found = read(usual(**{path: answer, "/collective_rpc": changed()}))
    assert found.workers is not None
    if path == "/version":
        assert found.version is None
    if path == "/v1/models":
        assert found.models == ()
    if path.startswith("/server_info"):
        assert found.revision is None


@pytest.mark.parametrize("answer", [raw(b""), raw(b"vllm:cache_config_info{"), metrics(*[labels()] * 1001), missing])
def test_metrics_without_labels(answer: Answer) -> None:
    found = read(usual(**{"/collective_rpc": missing, "/metrics": answer}))
    assert found.labels in ((), ({},))
    assert "running" not in found.silence


def test_redirects_are_not_followed() -> None:
    with FakeVllm(usual()) as elsewhere:
        away = {path: _to(elsewhere.url + path) for path in usual()}
        found = read(away)
    assert elsewhere.paths == []
    assert found.workers is None
    assert found.labels == ()
    assert "status 307 to a redirect" in found.silence


def _to(url: str) -> Answer:
    return lambda handler: handler.send(b"", 307, Location=url)


def test_a_flood_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 1 << 20)
    sent = []

    def flood(handler: Handler) -> None:
        handler.send_response(200)
        handler.end_headers()
        for _ in range(1000):
            sent.append(handler.wfile.write(b" " * (1 << 16)))

    found = read(usual(**{"/collective_rpc": flood}))
    assert "a response of more than 1,048,576 bytes" in found.silence
    assert len(sent) < 1000


def test_a_long_line_of_labels_is_no_long_wait() -> None:
    line = b"vllm:cache_config_info{" + b"a" * 4_000_000
    found = read(usual(**{"/collective_rpc": missing, "/metrics": raw(b"\n".join([line] * 3))}))
    assert found.labels == ({}, {}, {})


@pytest.mark.parametrize("drip", [b"", b"x", b"X-A: b\r\n"])
def test_a_server_that_never_comes_to_its_end_is_left(drip: bytes) -> None:
    ended = threading.Event()

    def stall(handler: Handler) -> None:
        try:
            for _ in range(2000):
                time.sleep(0.01)
                handler.wfile.write(drip)
                handler.wfile.flush()
        except OSError:
            ended.set()

    found = read(usual(**{"/collective_rpc": stall}), answer_s=0.5)
    assert "its workers do not say" in found.silence
    assert found.labels == (labels(),)
    assert not drip or ended.wait(10)


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    found = Server(f"http://127.0.0.1:{port}").read()
    assert found.silence.startswith("the server does not answer: ConnectError")
    assert (found.version, found.labels, found.workers) == (None, (), None)


@pytest.mark.parametrize(
    "url",
    ["", "localhost:8000", "ftp://h", "http://", "http://h:0", "http://h:x", "http://h?x=1", "http://h/\n", "http://["],
)
def test_no_address(url: str) -> None:
    with pytest.raises(DataError) as caught:
        Server(url)
    assert str(caught.value).startswith("--server: the address of a vLLM server, got ")


def test_what_is_said_cannot_steer_a_terminal() -> None:
    found = read(usual(**{"/collective_rpc": says({"results": [{"layers": "\x1b[2J\n" * 1000}]})}))
    assert found.silence.isprintable()
    assert len(found.silence) < 1000
