"""A gate with payloads in every place of the golden set, the configuration and the model's answers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvquant_eval.core.codec import digest, from_json
from kvquant_eval.core.policy import Policy, Rule, ScorePolicy, ScoreRole
from kvquant_eval.core.records import GoldenSet, GoldenTurn, Measure, ModelSpec
from kvquant_eval.core.scorers.likelihood import ReplyLikelihood, SpanLikelihood
from kvquant_eval.core.scorers.math_steps import MathSteps
from kvquant_eval.core.scorers.text import Match, TokenF1
from kvquant_eval.core.scorers.tool_call import ToolCall
from kvquant_eval.core.settings import Settings
from kvquant_eval.io import golden as golden_io
from kvquant_eval.io.golden.manifest import MANIFEST
from kvquant_eval.pipeline import GateRun, gate
from tests.fakes.gate import settings as fake_settings
from tests.fakes.gate import treatments
from tests.hostile.engine import CANDIDATES, TURNS
from tests.hostile.payloads import MILLION, name, names, text

CLASSES = ("a", "b")


def class_name(kind: str, letter: str) -> str:
    return f"{names(kind, 9 * (letter == 'b'))}{letter}"


def turn_id(kind: str, number: int) -> str:
    """One of them is a million characters long."""
    return ("x" * MILLION if kind == "hostile" else "x") if number == 0 else f"{name(kind, number)}-{number}"


def write_golden(folder: Path, kind: str) -> Path:
    """``TURNS`` turns in conversations of two, half of them in each class; the manifest is written by hand."""
    files = {}
    for place, letter in enumerate(CLASSES):
        numbers = range(place * TURNS // 2, (place + 1) * TURNS // 2)
        data = "".join(json.dumps(_turn(kind, letter, number)) + "\n" for number in numbers).encode()
        path = folder / letter / "turns.jsonl"
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
        files[f"{letter}/turns.jsonl"] = {
            "workload": class_name(kind, letter),
            "sha256": hashlib.sha256(data).hexdigest(),
            "turns": len(numbers),
        }
    said = names(kind)
    about = {"name": names(kind, 44), "version": names(kind, 15), "licence": said, "provenance": said}
    (folder / MANIFEST).write_text(json.dumps({**about, "files": files}))
    return folder


def decided(folder: Path, kind: str) -> GateRun:
    """The gate, come to its end: the loader and the rule of names would refuse such texts."""
    write_golden(folder / "golden", kind)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(golden_io, "load", read)
        patch.setattr("kvquant_eval.core.policy.check_name", lambda *_: None)
        return gate(settings(folder, kind))


def read(folder: Path, workloads: Iterable[str] = ()) -> GoldenSet:
    """The set with no rule checked: the loader refuses such names, and what comes behind it must stand all the same."""
    manifest = json.loads((folder / MANIFEST).read_text())
    lines = [line for name in manifest["files"] for line in (folder / name).read_bytes().splitlines()]
    turns = tuple(from_json(GoldenTurn, line, "turn") for line in lines)
    return GoldenSet(name=manifest["name"], version=manifest["version"], sha256=digest(manifest["files"]), turns=turns)


def settings(folder: Path, kind: str) -> Settings:
    """A gate over ``folder/golden`` into ``folder/runs``, two arms at a time."""
    said = names(kind)
    gating, reported = (ScorePolicy(role=role, margin=2.0) for role in (ScoreRole.GATE, ScoreRole.REPORT))
    scorers = (ReplyLikelihood(), SpanLikelihood(), Match(), TokenF1(), MathSteps(), ToolCall())
    named = {f"{place} {names(kind, 7 * place)}": scorer for place, scorer in enumerate(scorers)}
    classes = [class_name(kind, letter) for letter in CLASSES]
    scores = {score: gating if scorer.measure is Measure.FORCED else reported for score, scorer in named.items()}
    policy = Policy(
        name=said,
        rule=Rule.DEFAULT,
        hardest=classes[0],
        scores=dict.fromkeys(classes, scores),
        min_turns=10,
        min_headroom=10,
        largest_break=0.0,
        allow_underpowered=True,
        critical_turns=tuple(turn_id(kind, number) for number in range(TURNS - 20, TURNS)),  # shown first too
        accept_differences=(f"{said} accepted",),
    )
    made = fake_settings(folder, treatments(*CANDIDATES), args={"kind": kind, "note": said})
    return replace(
        made,
        model=ModelSpec(id=names(kind, 11), revision=names(kind, 22), source="folder", provenance=names(kind, 33)),
        engine=replace(
            made.engine,
            engine="tests.hostile.engine:HostileEngine",
            preparer="tests.hostile.engine:prepare",
            slots=({}, {}),
        ),
        policy=policy,
        scorers=dict.fromkeys(classes, named),
        config={"model": {"id": said}, said: [name(kind, number) for number in range(TURNS)], "note": {said: said}},
    )


def _turn(kind: str, letter: str, number: int) -> dict[str, Any]:
    said = names(kind)
    call = {"function": {"name": name(kind, number + 6), "arguments": json.dumps({said: said})}}
    return {
        "turn_id": turn_id(kind, number),
        "workload": class_name(kind, letter),
        "conversation_id": f"{name(kind, number // 2 + 1)}-{number // 2}",
        "turn_index": number % 2,
        "messages": [
            {"role": "system", "content": said},
            {"role": name(kind, number + 2), "content": [{"type": "text", "text": name(kind, number + 3)}]},
            {"role": "user", "content": text(kind, number + 4)},
        ],
        "reference": {"role": "assistant", "content": f"golden {text(kind, number + 5)}", "tool_calls": [call]},
        "decisive": [{"text": text(kind, number + 7)}],
        "tools": [{"type": "function", "function": {"name": said, "description": said}}],
        "expected": {
            "number": number,
            "answers": [f"never said {name(kind, number)}"],
            "steps": [{"left": 1, "operator": "+", "operand": 1, "result": 2}],
            "final": 2,
            "calls": [{"name": said, "arguments": {said: said}}],
        },
        "tags": [said],
    }
