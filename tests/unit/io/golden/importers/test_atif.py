"""Trajectories written after harbor's RFC 0001 (ATIF): field names, and what each version added, are from there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvquant_eval.core.codec import DataError
from kvquant_eval.core.conversation import Conversation, LeftOut, cut
from kvquant_eval.core.records import GoldenTurn
from kvquant_eval.core.turns import problem
from kvquant_eval.io.golden.importers.atif import read

CALL = {"tool_call_id": "c1", "function_name": "price", "arguments": {"ticker": "GOOGL"}}
STEPS: list[dict[str, Any]] = [
    {"step_id": 1, "source": "system", "message": "You trade."},
    {"step_id": 2, "source": "user", "message": "What does GOOGL cost?"},
    {
        "step_id": 3,
        "source": "agent",
        "message": "I look it up.",
        "reasoning_content": "A price is asked for.",
        "tool_calls": [CALL],
        "observation": {"results": [{"source_call_id": "c1", "content": "185.35"}]},
        "metrics": {"prompt_tokens": 520, "completion_tokens": 80},
    },
    {"step_id": 4, "source": "agent", "message": "It costs 185.35."},
]
TOOL = {"type": "function", "function": {"name": "price", "parameters": {"type": "object", "properties": {}}}}


def trajectory(version: str = "1.6", steps: list[Any] | None = None, **more: Any) -> dict[str, Any]:
    agent = {"name": "a", "version": "1", "model_name": "m", "tool_definitions": [TOOL]}
    return {
        "schema_version": f"ATIF-v{version}",
        "session_id": "run-7",
        "agent": agent,
        "steps": STEPS if steps is None else steps,
        **more,
    }


def found(folder: Path, value: Any) -> list[Conversation | LeftOut]:
    path = folder / "trajectory.json"
    path.write_text(json.dumps(value))
    return list(read(str(path)))


def turns(conversation: Conversation | LeftOut) -> list[GoldenTurn | LeftOut]:
    assert isinstance(conversation, Conversation), conversation
    return list(cut(conversation, "agent"))


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2", "1.3", "1.4", "1.5", "1.6", "1.7", "1.8"])
def test_every_step_of_the_agent_is_a_turn(tmp_path: Path, version: str) -> None:
    [conversation] = found(tmp_path, trajectory(version))
    first, second = turns(conversation)
    assert isinstance(first, GoldenTurn)
    assert isinstance(second, GoldenTurn)
    assert (first.turn_id, second.turn_id) == ("run-7/t00", "run-7/t01")
    assert [message["role"] for message in second.messages] == ["system", "user", "assistant", "tool"]
    assert first.expected == {"calls": [{"name": "price", "arguments": {"ticker": "GOOGL"}}]}
    assert first.tools == (TOOL,)
    assert second.messages[-1] == {"role": "tool", "content": "185.35", "tool_call_id": "c1"}
    assert "A price is asked for." not in json.dumps(second.messages)
    assert (problem(first), problem(second)) == (None, None)


def test_what_was_copied_or_not_said_by_a_model_is_history_only(tmp_path: Path) -> None:
    copied = [*STEPS[:2], {**STEPS[2], "is_copied_context": True}, {**STEPS[3], "llm_call_count": 0}]
    last = {"step_id": 5, "source": "agent", "message": "Anything else?"}
    [conversation] = found(tmp_path, trajectory("1.7", [*copied, last]))
    [only] = turns(conversation)
    assert isinstance(only, GoldenTurn)
    assert only.reference["content"] == "Anything else?"
    assert len(only.messages) == 5


def test_an_observation_without_a_call_is_told_by_the_user(tmp_path: Path) -> None:
    acted = {"source": "agent", "message": "ls", "observation": {"results": [{"content": "a.txt"}]}}
    [conversation] = found(tmp_path, trajectory("1.0", [STEPS[1], acted, {"source": "agent", "message": "Done."}]))
    assert isinstance(conversation, Conversation)
    assert conversation.messages[2] == {"role": "user", "content": "a.txt"}
    assert all(isinstance(turn, GoldenTurn) and problem(turn) is None for turn in turns(conversation))


def test_a_picture_leaves_out_what_comes_after(tmp_path: Path) -> None:
    picture = [{"type": "text", "text": "See:"}, {"type": "image", "source": {"media_type": "image/png", "path": "x"}}]
    steps = [*STEPS, {"source": "user", "message": picture}, {"source": "agent", "message": "A cat."}]
    [conversation] = found(tmp_path, trajectory("1.6", steps))
    assert turns(conversation)[2:] == [LeftOut(str(tmp_path / "trajectory.json"), "an image")]


def test_subagents_are_conversations_of_their_own(tmp_path: Path) -> None:
    inner = trajectory("1.7", trajectory_id="helper")
    outer = found(tmp_path, trajectory("1.7", trajectory_id="root", subagent_trajectories=[inner]))
    assert [c.conversation_id for c in outer if isinstance(c, Conversation)] == ["root", "helper"]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([], "a trajectory as a JSON object, got '[]'"),
        ({"steps": []}, "a trajectory of ATIF-v1.0 to v1.8, got 'None'"),
        (trajectory("2.0"), "a trajectory of ATIF-v1.0 to v1.8, got 'ATIF-v2.0'"),
        (trajectory("1.6", [{"source": "robot", "message": ""}]), "a step of the system, the user or the agent, got"),
        (trajectory("1.6", [{**STEPS[2], "tool_calls": [{}]}]), "a tool call with a function_name, got 'None'"),
        (trajectory("1.6", [3]), "a step as a JSON object, got '3'"),
    ],
)
def test_what_is_no_trajectory_is_left_out(tmp_path: Path, value: Any, reason: str) -> None:
    [left] = found(tmp_path, value)
    assert isinstance(left, LeftOut)
    assert left.place == str(tmp_path / "trajectory.json")
    assert left.reason.startswith(reason)


def test_a_folder_is_searched(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "trajectory.json").write_text(json.dumps(trajectory(session_id=name)))
    assert [c.conversation_id for c in read(str(tmp_path)) if isinstance(c, Conversation)] == ["a", "b"]


def test_an_empty_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a folder with \*\.json files, got none; correct the path$"):
        list(read(str(tmp_path)))
