"""``kvquant-golden lint`` with the embedded model: the shipped set is clean, planted faults are named by line."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvquant_eval.cli.config import build, compose, data_folder
from kvquant_eval.core.codec import from_data, to_data
from kvquant_eval.core.engine import EngineSpec
from kvquant_eval.core.lint.fault import Placed
from kvquant_eval.core.lint.prefix import find_poison, first_difference, reuse
from kvquant_eval.core.plan import make_blocks
from kvquant_eval.core.records import BlockResult, GoldenTurn, RenderedTurn, Sampling
from kvquant_eval.core.settings import Settings
from kvquant_eval.core.treatment import KVTreatment
from kvquant_eval.io.child import Child
from kvquant_eval.replay import inspect

pytestmark = pytest.mark.integration

Change = Callable[[dict[str, Any]], object]
CLASSES = ("faq", "coding", "tool_calling", "math_chain")
RESULT = {"role": "tool", "content": "?"}
Planted = tuple[Path, dict[tuple[str, int], tuple[str, str]], int, list[str]]


def lint(*arguments: str) -> tuple[int, list[str]]:
    command = [sys.executable, "-m", "kvquant_eval.cli.golden", "lint", *arguments, "scorer.code.allow_execution=true"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def test_the_shipped_set_is_clean_and_small() -> None:
    """Under ``default`` it can promote nothing, which lint says too."""
    status, lines = lint("gate=custom")
    assert status == 0
    assert lines[-2].startswith("prefix cache: 84% of 356,216 prompt tokens as ordered")
    assert lines[-1] == "0 errors, 0 warnings"
    status, lines = lint()
    assert status == 0
    assert lines[-1] == "0 errors, 1 warnings"
    assert any("warning: policy: a set that can promote" in line and "of 14 conversations" in line for line in lines)


def call(turn: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = turn["reference"]["tool_calls"][0]["function"]
    return found


def tool(turn: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = turn["tools"][0]["function"]
    return found


def ask(turn: dict[str, Any], more: str) -> None:
    turn["messages"][-1]["content"] += more


PLANTED: tuple[tuple[str, int, str, str | Change, str], ...] = (
    ("faq", 2, "turn", "{", "JSON, got "),
    ("faq", 4, "turn", lambda t: t.update(refrence={}), "a known key, got 'refrence'; did you mean 'reference'?"),
    ("faq", 6, "turn", lambda t: t["messages"][0].update(role="sytem"), "messages.0.role: one of system, "),
    ("faq", 8, "turn", lambda t: t.update(workload="coding"), "workload 'faq', got 'coding'; move the turn"),
    ("faq", 10, "", lambda t: t.update(turn_id="twin"), ""),
    ("faq", 11, "turn", lambda t: t.update(turn_id="twin"), "turn ids must be unique, got 'twin' 2 times, first in "),
    ("faq", 14, "reference", lambda t: t.update(expected={"answers": ["nowhere"]}), "100 points of match for the "),
    ("faq", 16, "secret", lambda t: ask(t, " Key: AKIAIOSFODNN7EXAMPLE"), "secrets, got an API key;"),
    ("faq", 18, "secret", lambda t: ask(t, " I am jo@mail.acme.com"), "secrets, got an e-mail address;"),
    ("faq", 20, "secret", lambda t: ask(t, f" Bearer {'eyJhbGciOiJIUzI1NiJ9.' * 2}c2ln-bmF0dXJl"), "got a token;"),
    ("faq", 22, "template", lambda t: t.update(decisive=[{"text": "absent"}]), "decisive span 'absent' (nth=0) must "),
    ("faq", 24, "context", lambda t: ask(t, " so" * 9000), "a turn that fits the context, got one that needs "),
    ("coding", 2, "reference", lambda t: t["expected"].update(function="other"), "100 points of python_signature for "),
    ("coding", 6, "reference", lambda t: t["expected"].update(tests=["assert False"]), "100 points of code for the "),
    ("coding", 4, "turn", lambda t: t.update(max_tokens=0), "max_tokens: a number from 1 to 1000000000, got '0'"),
    ("math_chain", 2, "reference", lambda t: t["expected"].update(final=-1), "100 points of math_steps for the "),
    ("math_chain", 4, "turn", lambda t: t["expected"].update(steps=7), "expected: steps: "),
    ("tool_calling", 2, "tools", lambda t: tool(t).update(parameters={"type": "thing"}), "a JSON schema, got "),
    ("tool_calling", 4, "tools", lambda t: call(t).update(name="get_odrer"), "one of the tools, got 'get_odrer'"),
    ("tool_calling", 6, "reference", lambda t: t["expected"]["calls"][0].update(name="x"), "100 points of tool_call"),
    ("tool_calling", 8, "turn", lambda t: t["messages"].append(RESULT), "a tool result of a call before it, got "),
)


def plant(folder: Path) -> dict[tuple[str, int], tuple[str, str]]:
    """Copy the shipped turns of four classes, with a fault on single lines: what is to be said of each."""
    expected = {}
    for workload in CLASSES:
        source = data_folder("golden") / workload / "agents-v2.jsonl"
        lines = source.read_text(encoding="utf-8").splitlines()
        for where, number, check, fault, text in PLANTED:
            if where != workload:
                continue
            if isinstance(fault, str):
                lines[number - 1] = fault
            else:
                turn = json.loads(lines[number - 1])
                fault(turn)
                lines[number - 1] = json.dumps(turn)
            if text:
                expected[workload, number] = (check, text)
        (folder / workload).mkdir(parents=True)
        (folder / workload / "set.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return expected


@pytest.fixture(scope="module")
def planted(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, dict[tuple[str, int], tuple[str, str]], int, list[str]]:
    folder = tmp_path_factory.mktemp("planted") / "set"
    expected = plant(folder)
    lines = (folder / "faq" / "set.jsonl").read_text().splitlines()
    turn = json.loads(lines[30])  # the same turn again, and nearly
    twin = {**turn, "turn_id": "again", "conversation_id": "again"}
    system = {"role": "system", "content": f"{turn['messages'][0]['content']} Be kind."}
    near = {**twin, "turn_id": "near", "conversation_id": "near", "messages": [system, *turn["messages"][1:]]}
    with (folder / "faq" / "set.jsonl").open("a") as stream:
        stream.writelines(json.dumps(each) + "\n" for each in (twin, near))
    expected["faq", len(lines) + 1] = ("duplicate", f"a turn of its own, got {turn['turn_id']} again; remove one")
    expected["faq", len(lines) + 2] = (
        "near-duplicate",
        f"100% of the words of {turn['turn_id']}; reword or remove one",
    )
    status, said = lint("--path", str(folder))
    return folder, expected, status, said


def test_twenty_planted_faults_are_named_at_their_lines(planted: Planted) -> None:
    folder, expected, status, said = planted
    assert status == 2
    assert len(expected) >= 20
    for (workload, number), (check, text) in expected.items():
        place = f"{folder}/{workload}/set.jsonl:{number}:"
        assert any(line.startswith(place) and f" {check}: " in line and text in line for line in said), (place, check)


def test_nothing_else_is_called_wrong(planted: Planted) -> None:
    folder, expected, _, said = planted
    places = {f"{folder}/{workload}/set.jsonl:{number}" for workload, number in expected}
    errors = [line for line in said if ": error: " in line]
    assert [line for line in errors if not any(line.startswith(f"{place}:") for place in places)] == []


def test_a_clock_in_the_system_prompt_is_found(tmp_path: Path) -> None:
    """A time in front of the facts of 14 conversations, another in every turn."""
    lines = (data_folder("golden") / "faq" / "agents-v2.jsonl").read_text(encoding="utf-8").splitlines()
    turns = [json.loads(line) for line in lines]
    for number, turn in enumerate(turns):
        system = turn["messages"][0]
        system["content"] = f"It is 2026-03-01 09:{number:02d}. {system['content']}"
    (tmp_path / "faq").mkdir()
    (tmp_path / "faq" / "set.jsonl").write_text("".join(json.dumps(turn) + "\n" for turn in turns))
    status, said = lint("--path", str(tmp_path))
    assert status == 0
    found = [line for line in said if " prefix-poison: " in line]
    assert len(found) == len(turns)
    assert all("got a clock ('2026-03-01 09:" in line for line in found)


def test_the_predicted_loss_is_what_vllm_measures(tmp_path: Path) -> None:
    """A time at about token 40 of 50 turns; vLLM reads the same prompts with it and without."""
    settings = build(compose(["tracking=none"]))
    turns = []
    for workload, count in (("faq", 44), ("coding", 6)):
        lines = (data_folder("golden") / workload / "agents-v2.jsonl").read_text(encoding="utf-8").splitlines()
        turns += [from_data(GoldenTurn, json.loads(line), workload) for line in lines[:count]]
    poisoned = [with_time(turn, f"09:{number:02d}:{number * 7 % 60:02d}") for number, turn in enumerate(turns)]
    found = list(find_poison([Placed(turn.turn_id, turn) for turn in poisoned]))
    assert sum(len(poison.turns) for poison in found) >= 48
    healed = {turn.turn_id: turn for poison in found for turn in poison.healed}
    log = tmp_path / "log"
    with_it = prompts(settings, poisoned, log)
    without = prompts(settings, [healed.get(turn.turn_id, turn) for turn in poisoned], log)
    group = {at.turn.turn_id for at in found[0].turns}
    assert 30 <= first_difference([turn for turn in with_it if turn.turn_id in group]) <= 50
    predicted = [reuse(each, settings.block_requests, 32).cached_tokens for each in (without, with_it)]
    measured = cached_by_vllm(settings, (without, with_it), tmp_path / "engine.log")
    assert measured[0] - measured[1] > 10_000
    assert predicted[0] - predicted[1] == pytest.approx(measured[0] - measured[1], rel=0.05)
    assert predicted == pytest.approx(measured, rel=0.05)


def with_time(turn: GoldenTurn, time: str) -> GoldenTurn:
    system = turn.messages[0]
    words = system["content"].split(" ")
    words.insert(25, f"[{time}]")
    return replace(turn, messages=({**system, "content": " ".join(words)}, *turn.messages[1:]))


def prompts(settings: Settings, turns: Sequence[GoldenTurn], log: Path) -> list[RenderedTurn]:
    """The turns with one token to reply: only prompts are of interest."""
    seen = [turn.rendered for turn in inspect(settings, turns, log).turns]
    return [replace(turn, golden_ids=turn.golden_ids[:1], spans=(), max_tokens=1) for turn in seen if turn]


def cached_by_vllm(settings: Settings, sets: Sequence[Sequence[RenderedTurn]], log: Path) -> list[int]:
    """What came out of vLLM's prefix cache for each set, in tokens."""
    from kvquant_eval.worker.embedded import materialise

    spec = EngineSpec(
        model=str(materialise(Path(settings.cache_dir)).path),
        revision=None,
        treatment=KVTreatment(name="baseline", dtype="bfloat16"),
        args=settings.engine.args,
        top_logprobs=settings.engine.top_logprobs,
    )
    totals = []
    with Child(log, 600, {**settings.engine.env, **settings.engine.slots[0]}) as child:
        child.call("open", engine=settings.engine.engine, spec=to_data(spec))
        for turns in sets:
            blocks = make_blocks(turns, Sampling(), settings.block_requests)
            results = [from_data(BlockResult, child.call("run", block=to_data(block)), "block") for block in blocks]
            totals.append(sum(replay.cached_tokens for result in results for replay in result.replays))
    return totals
