"""Traces in a real MLflow store: one SQLite file for the module, one experiment a test. The agent loop is written by
MLflow's own autologging of OpenAI's client, the rest in the shape that it has.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kvquant_eval.core.codec import DataError
from kvquant_eval.core.conversation import Conversation, LeftOut, cut
from kvquant_eval.core.records import GoldenTurn
from kvquant_eval.core.turns import problem
from kvquant_eval.io import tracking
from kvquant_eval.io.golden.importers import mlflow_traces
from kvquant_eval.io.golden.importers.mlflow_traces import read
from kvquant_eval.io.golden.imports import write_turns

SYSTEM = {"role": "system", "content": "You book trains."}
ASK = {"role": "user", "content": "To Ulm, please."}
TOOL = {
    "type": "function",
    "function": {
        "name": "trains",
        "description": "Trains to a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = {"id": "c1", "type": "function", "function": {"name": "trains", "arguments": '{"city": "Ulm"}'}}
WITH_CALL = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "9:14"}
DONE = {"role": "assistant", "content": "At 9:14."}
PICTURE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}]}


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    database = tmp_path_factory.mktemp("store") / "mlflow.db"
    with pytest.MonkeyPatch.context() as patch, tracking.quiet():
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{database}")
        patch.setenv("MLFLOW_ENABLE_ASYNC_TRACE_LOGGING", "false")
        tracking._create(database)
        yield f"sqlite:///{database}"


class Recorder:
    """Writes the traces of one experiment."""

    def __init__(self, uri: str, name: str) -> None:
        from mlflow import MlflowClient

        self.name = name
        self.id = MlflowClient(uri, uri).create_experiment(name)

    def trace(self, body: Callable[[], Any]) -> None:
        """What ``body`` records, under one root span."""
        import mlflow
        from mlflow.entities.trace_location import MlflowExperimentLocation

        with (
            suppress(ZeroDivisionError),
            mlflow.start_span("agent", trace_destination=MlflowExperimentLocation(self.id)),
        ):
            body()

    def calls(self, *calls: tuple[Sequence[Any], Any]) -> None:
        """A trace with one call of a model for each (messages, outputs)."""
        self.trace(lambda: [call({"messages": messages}, outputs) for messages, outputs in calls])


@pytest.fixture
def recorder(uri: str, request: pytest.FixtureRequest) -> Recorder:
    return Recorder(uri, request.node.name)


def call(inputs: Any, outputs: Any, span_type: str = "CHAT_MODEL", **attributes: Any) -> None:
    """A call as autologging writes it; it fails where ``outputs`` is an exception."""
    import mlflow

    with mlflow.start_span("Completions", span_type=span_type, attributes=attributes) as span:
        span.set_inputs(inputs)
        if isinstance(outputs, Exception):
            raise outputs
        span.set_outputs(outputs)


def completion(message: dict[str, Any]) -> dict[str, Any]:
    """A chat completion as OpenAI's client gives it, with all that it adds to a message."""
    added = {"refusal": None, "annotations": [], "audio": None, "function_call": None, "tool_calls": None}
    choice = {"index": 0, "finish_reason": "stop", "logprobs": None, "message": {**added, **message}}
    return {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}


def told(source: str) -> tuple[list[list[str]], list[str]]:
    """The replies that become turns, a list for each conversation; and why records were left out."""
    found = list(read(source))
    replies, reasons = [], []
    for record in found:
        if isinstance(record, LeftOut):
            reasons.append(record.reason)
            continue
        turns = [turn for turn in cut(record, "agent") if isinstance(turn, GoldenTurn)]
        assert [problem(turn) for turn in turns] == [None] * len(turns)
        replies.append([turn.reference["content"] or "call" for turn in turns])
    return replies, reasons


def test_an_agent_loop_that_openai_autologging_recorded_is_one_conversation(recorder: Recorder) -> None:
    httpx, openai = pytest.importorskip("httpx"), pytest.importorskip("openai")
    import mlflow

    answers = [completion(WITH_CALL), completion(DONE)]
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json=answers.pop(0)))
    client = openai.OpenAI(
        api_key="none", base_url="http://localhost/v1", http_client=httpx.Client(transport=transport)
    )

    def loop() -> None:
        messages: list[Any] = [SYSTEM, ASK]
        first = client.chat.completions.create(model="m", messages=messages, tools=[TOOL])
        messages = [*messages, first.choices[0].message, RESULT]
        client.chat.completions.create(model="m", messages=messages, tools=[TOOL])

    mlflow.openai.autolog()
    try:
        recorder.trace(loop)
    finally:
        mlflow.openai.autolog(disable=True)

    [conversation] = read(recorder.name)
    assert isinstance(conversation, Conversation)
    assert conversation.conversation_id.startswith("tr-")
    first, second = cut(conversation, "agent")
    assert isinstance(first, GoldenTurn)
    assert isinstance(second, GoldenTurn)
    called = {"id": "c1", "type": "function", "function": {"name": "trains", "arguments": {"city": "Ulm"}}}
    assert first.messages == (SYSTEM, ASK)
    assert first.reference == {"role": "assistant", "content": None, "tool_calls": [called]}
    assert first.expected == {"calls": [{"name": "trains", "arguments": {"city": "Ulm"}}]}
    assert second.messages == (SYSTEM, ASK, first.reference, RESULT)
    assert second.reference == DONE
    assert first.tools == second.tools == (TOOL,)
    assert (problem(first), problem(second)) == (None, None)


def test_an_experiment_is_found_by_its_id_too(recorder: Recorder) -> None:
    recorder.calls(([ASK], completion(DONE)))
    assert told(recorder.id) == told(recorder.name) == ([["At 9:14."]], [])


@pytest.mark.parametrize(
    "outputs",
    [
        completion(DONE),
        DONE,
        {"message": DONE},
        "At 9:14.",
        {"role": "assistant", "content": [{"type": "text", "text": "At 9:14."}]},
    ],
    ids=["completion", "message", "wrapped", "text", "parts"],
)
@pytest.mark.parametrize("span_type", ["CHAT_MODEL", "LLM"])
def test_a_reply_has_many_shapes(recorder: Recorder, outputs: Any, span_type: str) -> None:
    recorder.trace(lambda: call({"messages": [ASK]}, outputs, span_type))
    assert told(recorder.name) == ([["At 9:14."]], [])


def test_tools_stand_in_the_inputs_or_in_an_attribute(recorder: Recorder) -> None:
    claude = {"name": "trains", "input_schema": TOOL["function"]["parameters"]}
    asked = {"messages": [ASK], "system": "You book trains."}
    recorder.trace(lambda: call({**asked, "tools": [TOOL]}, DONE))
    recorder.trace(lambda: call({**asked, "tools": [claude]}, DONE, **{"mlflow.chat.tools": [TOOL]}))
    for conversation in read(recorder.name):
        assert isinstance(conversation, Conversation)
        assert conversation.tools == [TOOL]
        assert conversation.messages == [SYSTEM, ASK, DONE]


def test_calls_that_share_a_beginning_give_every_reply_once(recorder: Recorder) -> None:
    other = {"role": "assistant", "content": "By bus?"}
    again = {"role": "user", "content": "And back?"}
    history = [ASK, WITH_CALL, RESULT]
    sent_back = [ASK, {**WITH_CALL, "content": ""}, RESULT]
    recorder.calls(
        ([ASK], completion(WITH_CALL)),
        (history, completion(DONE)),
        (sent_back, completion(other)),
        ([*history, DONE, again], completion(DONE)),
    )
    assert told(recorder.name) == ([["By bus?"], ["call", "At 9:14.", "At 9:14."]], [])


def test_a_shortened_history_gives_every_reply_once(recorder: Recorder) -> None:
    said = [{"role": "assistant", "content": text} for text in ("One.", "Two.", "Three.")]
    asked = [{"role": "user", "content": f"{number}?"} for number in range(3)]
    recorder.calls(
        ([asked[0]], said[0]),
        ([asked[0], said[0], asked[1]], said[1]),
        ([asked[1], said[1], asked[2]], said[2]),
    )
    assert told(recorder.name) == ([["One.", "Two."], ["Three."]], [])


def test_a_failed_call_is_left_out_and_the_calls_before_it_are_not(recorder: Recorder) -> None:
    recorder.calls(([ASK], completion(DONE)), ([ASK, DONE, ASK], ZeroDivisionError("rate limit")))
    replies, reasons = told(recorder.name)
    assert replies == [["At 9:14."]]
    assert reasons == ["a call that ended in an error, got 'ZeroDivisionError: rate limit'"]


def test_what_is_no_chat_is_counted(recorder: Recorder, tmp_path: Path) -> None:
    import mlflow

    def retrieve() -> None:
        with mlflow.start_span("search", span_type="RETRIEVER") as span:
            span.set_inputs({"messages": [ASK]})

    recorder.trace(retrieve)
    recorder.trace(lambda: call({"prompt": "To Ulm"}, "At 9:14.", "LLM"))
    recorder.trace(lambda: call("To Ulm", "At 9:14."))
    recorder.calls(([ASK], None), ([ASK, DONE, PICTURE], completion({"role": "assistant", "content": "A train."})))
    target = tmp_path / "turns.jsonl"
    done = write_turns(read(recorder.name), target, "agent")
    assert (done.conversations, done.turns) == (1, 1)
    assert done.left_out == {
        "a trace without a call of a chat model": 1,
        "a call with messages": 1,
        "a call with inputs as a JSON object": 1,
        "a call with a chat reply": 1,
        "an image": 1,
    }
    assert json.loads(target.read_text())["reference"] == DONE


def test_pages_are_read_one_after_the_other_from_the_oldest(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlflow_traces, "PAGE", 2)
    for number in range(5):
        recorder.calls(([ASK], f"Train {number}."))
    assert told(recorder.name) == ([[f"Train {number}."] for number in range(5)], [])


@pytest.mark.parametrize("name", ["no such", "4711"])
def test_an_unknown_experiment_is_said_in_one_line(uri: str, name: str) -> None:
    with pytest.raises(DataError, match=f"source: an experiment of {uri}, got '{name}' .*set MLFLOW_TRACKING_URI"):
        list(read(name))


def test_no_database_is_made_where_there_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    with pytest.raises(DataError, match=r"no such file; .*set MLFLOW_TRACKING_URI"):
        list(read("experiment"))
    assert not list(tmp_path.iterdir())
