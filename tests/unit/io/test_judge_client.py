"""The judge's client against a real local server, sound and broken."""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kvquant_eval.core.codec import DataError
from kvquant_eval.core.judge_noise import second
from kvquant_eval.core.score import Ask
from kvquant_eval.core.scorers.judge import Judge
from kvquant_eval.core.settings import JudgeSettings
from kvquant_eval.io import judge_client
from kvquant_eval.io.judge_client import MOST_BYTES, JudgeClient
from tests.fakes.judge_server import Behave, Handler, JudgeServer
from tests.fakes.records import golden_turn, rendered_turn, reply

KEY = "sk-very-secret-0123456789"
GRADES = {"A": 80, "B": 70.5, "reason": "fine"}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_client, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(judge_client, "LONGEST_PAUSE_S", 0.05)


def content() -> Mapping[str, Any]:
    ask = Judge(model="m")(reply("Step 1: 3 + 2 = 6"), golden_turn(), rendered_turn())
    assert isinstance(ask, Ask)
    return second(ask.question).content


def settings(url: str, **changes: Any) -> JudgeSettings:
    return JudgeSettings(**{"url": url, "model": "m", "timeout_s": 10.0, "retries": 2, **changes})


def ask(behave: Behave, **changes: Any) -> tuple[Any, JudgeServer]:
    with JudgeServer(behave) as server:
        client = JudgeClient(settings(server.url, **changes))
        try:
            return client(content()), server
        finally:
            client.close()


def says(text: str) -> Behave:
    return lambda handler, _, __: handler.say(text)


def answers(data: bytes, status: int = 200, **headers: str) -> Behave:
    return lambda handler, _, __: handler.reply(data, status, **headers)


def then_sound(fault: Behave, faults: int = 1) -> Behave:
    """The fault first, then grades."""

    def behave(handler: Handler, request: Any, n: int) -> None:
        (fault if n < faults else says(json.dumps(GRADES)))(handler, request, n)

    return behave


def test_a_question_is_asked_as_it_is_and_answered_with_the_grades() -> None:
    answer, server = ask(says(json.dumps(GRADES)))
    assert answer == GRADES
    (sent,) = server.requests
    assert sent == {key: value for key, value in content().items() if key != "again"}
    assert (sent["model"], sent["temperature"], sent["seed"]) == ("m", 0, 0)
    assert "Authorization" not in server.headers[0]


@pytest.mark.parametrize(
    "text",
    [
        '```json\n{"A": 80, "B": 70.5, "reason": "fine"}\n```',
        '<think>{"A": 1, "B": 1}</think>\n{"A": 80, "B": 70.5, "reason": "fine"}',
    ],
)
def test_a_fence_and_thoughts_are_no_part_of_the_answer(text: str) -> None:
    assert ask(says(text))[0] == GRADES


@pytest.mark.parametrize(
    "text",
    [
        "",
        "A: 80, B: 70",
        "[80, 70]",
        '{"A": 80}',
        '{"A": 80, "B": 101}',
        '{"A": -1, "B": 50}',
        '{"A": NaN, "B": 50}',
        '{"A": 1e999, "B": 50}',
        '{"A": "80", "B": "70"}',
        '{"A": true, "B": 70}',
        '{"A": null, "B": 70}',
        '{"A": 80, "B": 70, "A": 100}',
        '{"A": 80, "B": 70, "C": 1}',
        '{"A": 80, "B": 70, "reason": ["x"]}',
        '{"A": 80, "B": 70} and more',
        "[" * 5000,
        '<think>{"A": 80, "B": 70}',
    ],
)
def test_what_holds_no_grades_is_asked_again_and_then_no_evidence(text: str) -> None:
    answer, server = ask(says(text))
    assert list(answer) == ["error"]
    assert answer["error"].startswith("no JSON with grades A and B of 0 to 100 points, but '")
    assert len(answer["error"]) < 250
    assert len(server.requests) == 3
    assert ask(then_sound(says(text)))[0] == GRADES


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"garbage",
        b"{}",
        b'{"choices": []}',
        b'{"choices": [{"message": null}]}',
        b"[" * 9999,
        b"\xff\xfe",
        b"null",
    ],
)
def test_what_is_no_chat_completion_is_asked_again(data: bytes) -> None:
    answer, server = ask(answers(data))
    assert answer == {"error": "a response that is no chat completion"}
    assert len(server.requests) == 3
    assert ask(then_sound(answers(data)))[0] == GRADES


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504, 529])
def test_what_may_pass_is_tried_again(status: int) -> None:
    fault = answers(b'{"error": {"message": "busy\\nnow"}}', status, Retry_After="86400")
    answer, server = ask(fault)
    assert answer == {"error": f"status {status} (busy now)"}
    assert len(server.requests) == 3
    assert ask(then_sound(fault, 2))[0] == GRADES


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_what_will_not_pass_is_not_tried_again(status: int) -> None:
    answer, server = ask(answers(b"no such model", status))
    assert answer == {"error": f"status {status} (no such model)"}
    assert len(server.requests) == 1


def test_a_refusal_that_holds_for_all_questions_is_asked_for_once() -> None:
    with JudgeServer(answers(b"", 401)) as server:
        client = JudgeClient(settings(server.url))
        assert [client(content()) for _ in range(50)] == [{"error": "status 401"}] * 50
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("given", "pause"),
    [
        ("2", 2.0),
        ("86400", 20.0),
        ("Wed, 21 Oct 2099 07:28:00 GMT", 20.0),
        ("Wed, 21 Oct 1999 07:28:00 GMT", 0.5),
        ("soon", 0.5),
        ("-1", 0.5),
        ("9" * 20, 0.5),
        ("", 0.5),
    ],
)
def test_retry_after_is_heeded_and_bounded(given: str, pause: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    asked: list[float] = []
    with JudgeServer(then_sound(answers(b"", 429, Retry_After=given))) as server:
        client = JudgeClient(settings(server.url))
        monkeypatch.setattr(client._stop, "wait", asked.append)
        assert client(content()) == GRADES
    assert asked == [pause]


def test_pauses_double() -> None:
    with JudgeServer(answers(b"", 503)) as server, pytest.MonkeyPatch.context() as patch:
        patch.setattr(judge_client, "FIRST_PAUSE_S", 0.5)
        patch.setattr(judge_client, "LONGEST_PAUSE_S", 20.0)
        client, asked = JudgeClient(settings(server.url, retries=8)), []
        patch.setattr(client._stop, "wait", asked.append)
        assert client(content()) == {"error": "status 503"}
    assert asked == [0.5, 1, 2, 4, 8, 16, 20, 20]


def slow(handler: Handler, *_: Any) -> None:
    time.sleep(3)


def drips(handler: Handler, *_: Any) -> None:
    handler.send_response(200)
    handler.end_headers()
    for _ in range(40):
        handler.wfile.write(b" ")
        handler.wfile.flush()
        time.sleep(0.1)


def drips_headers(handler: Handler, *_: Any) -> None:
    for _ in range(40):
        handler.wfile.write(b"H")
        handler.wfile.flush()
        time.sleep(0.1)


def breaks_off(handler: Handler, *_: Any) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"choices": [')
    handler.close_connection = True


def hangs_up(handler: Handler, *_: Any) -> None:
    handler.connection.shutdown(socket.SHUT_RDWR)
    handler.close_connection = True


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (slow, ("ReadTimeout: timed out", "no whole response within 0.5 s")),
        (drips, "no whole response within 0.5 s"),
        (drips_headers, ("no whole response within 0.5 s", "RemoteProtocolError: illegal status line")),
        (breaks_off, "RemoteProtocolError: peer closed connection without sending complete message body"),
        (hangs_up, "RemoteProtocolError: Server disconnected without sending a response."),
    ],
)
def test_a_server_that_does_not_finish(fault: Behave, error: str | tuple[str, ...]) -> None:
    answer, server = ask(fault, timeout_s=0.5)
    assert answer["error"].startswith(error)
    assert 1 <= len(server.requests) <= 3  # on a busy machine an attempt may end before it was read
    assert ask(then_sound(fault), timeout_s=5.0)[0] == GRADES


@pytest.mark.parametrize("length", [{}, {"Content_Length": str(10**12)}])
def test_a_huge_body_is_not_read_to_its_end(length: dict[str, str]) -> None:
    answer, server = ask(answers(b" " * (4 * MOST_BYTES), **length), timeout_s=10)
    assert answer == {"error": "a response of more than 1,048,576 bytes"}
    assert len(server.requests) == 1


def test_a_redirect_is_not_followed() -> None:
    with JudgeServer() as other:
        answer, _ = ask(answers(b"", 302, Location=f"{other.url}/chat/completions"))
        assert answer == {"error": "status 302; redirects are not followed"}
        assert not other.requests


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_dead_endpoint_is_given_up() -> None:
    client = JudgeClient(settings(f"http://127.0.0.1:{free_port()}/v1"))
    found = [client(content())["error"] for _ in range(300)]
    assert found[0] == "ConnectError: [Errno 111] Connection refused"
    assert set(found[2:]) == {
        "given up after 3 questions in a row without a response (ConnectError: [Errno 111] Connection refused)"
    }


def test_a_silent_endpoint_costs_the_timeouts_of_a_few_questions() -> None:
    with JudgeServer(slow) as server, ThreadPoolExecutor(4) as pool:
        client = JudgeClient(settings(server.url, retries=1, timeout_s=0.5))
        began = time.monotonic()
        found = list(pool.map(lambda _: client(content()), range(300)))
        assert time.monotonic() - began < 60
        assert all("error" in answer for answer in found)
        assert len(server.requests) < 20


def test_an_endpoint_that_answers_now_and_then_is_not_given_up() -> None:
    def behave(handler: Handler, request: Any, n: int) -> None:
        (says(json.dumps(GRADES)) if n % 3 == 2 else hangs_up)(handler, request, n)

    with JudgeServer(behave) as server:
        client = JudgeClient(settings(server.url, retries=0))
        assert sum(client(content()) == GRADES for _ in range(12)) == 4


@pytest.mark.parametrize("status", [200, 401, 500])
def test_the_key_goes_out_in_the_header_and_nowhere_else(
    status: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("JUDGE_KEY", KEY)
    caplog.set_level(logging.DEBUG)
    echo = f'{{"error": {{"message": "bad key {KEY}"}}}}'.encode()
    answer, server = ask(answers(echo, status), api_key_env="JUDGE_KEY", retries=0)
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert KEY not in json.dumps(answer) + json.dumps(server.requests) + caplog.text + repr(settings(server.url))
    assert status == 200 or "bad key ***" in answer["error"]


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("NOT_SET", None, "the name of a variable that is set, got one that is not; export it"),
        ("EMPTY", " ", "the name of a variable that is set, got one that is not; export it"),
        ("BROKEN", "a\nb", "a key of printable ASCII in the variable, got something else; correct it"),
        ("BROKEN", "schlüssel", "a key of printable ASCII in the variable, got something else; correct it"),
    ],
)
def test_a_key_that_is_not_there(name: str, value: str | None, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if value is not None:
        monkeypatch.setenv(name, value)
    with pytest.raises(DataError) as caught:
        JudgeClient(settings("http://h/v1", api_key_env=name))
    assert str(caught.value) == f"scorer.judge.api_key_env: {line}"


@pytest.mark.parametrize("base", ["http://h:1/v1", "http://h:1/v1/", "http://h:1/v1/chat/completions"])
def test_where_questions_are_posted(base: str) -> None:
    assert judge_client.completions_url(base) == "http://h:1/v1/chat/completions"


def test_an_address_that_no_client_takes_is_an_error_like_others() -> None:
    client = JudgeClient(settings("http://a..b/v1", retries=0))
    assert list(client(content())) == ["error"]


def test_closing_ends_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_client, "LONGEST_PAUSE_S", 60.0)
    with JudgeServer(answers(b"", 429, Retry_After="50")) as server, ThreadPoolExecutor(1) as pool:
        client = JudgeClient(settings(server.url))
        waiting = pool.submit(client, content())
        _until(lambda: len(server.requests) == 1)
        time.sleep(0.1)
        client.close()
        assert waiting.result(timeout=5) == {"error": "not asked to the end"}


def test_closing_cuts_what_is_being_answered() -> None:
    with JudgeServer(lambda handler, _, __: time.sleep(20)) as server, ThreadPoolExecutor(1) as pool:
        client = JudgeClient(settings(server.url, timeout_s=60))
        waiting = pool.submit(client, content())
        _until(lambda: len(server.requests) == 1)
        began = time.monotonic()
        client.close()
        assert waiting.result(timeout=5) == {"error": "not asked to the end"}
        assert time.monotonic() - began < 60


def _until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not true() and time.monotonic() < deadline:
        time.sleep(0.01)
