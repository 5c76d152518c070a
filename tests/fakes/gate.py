"""A whole gate on the fake engine: a small golden set and the settings, also as a program to be killed."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from kvquant_eval.core.policy import Policy, Rule, ScorePolicy, ScoreRole
from kvquant_eval.core.records import ModelSpec, Sampling
from kvquant_eval.core.scorers.likelihood import ReplyLikelihood, SpanLikelihood
from kvquant_eval.core.scorers.math_steps import MathSteps
from kvquant_eval.core.scorers.text import Match
from kvquant_eval.core.settings import EngineSettings, PlaceboKind, Settings, TrackingSettings
from kvquant_eval.core.treatment import KVTreatment, Realisation
from kvquant_eval.io.golden import MANIFEST, pin
from kvquant_eval.pipeline import gate

CONVERSATIONS, TURNS = 10, 2


def write_golden(folder: Path, prices: int = 10, conversations: int = CONVERSATIONS) -> Path:
    """Conversations of two turns in each of two classes, pinned; ``prices`` start there."""
    for workload, turn in (("math_chain", _math), ("faq", partial(_faq, prices))):
        path = folder / workload / "turns.jsonl"
        path.parent.mkdir(parents=True)
        lines = [json.dumps(turn(c, t)) for c in range(conversations) for t in range(TURNS)]
        path.write_text("\n".join(lines) + "\n")
    (folder / MANIFEST).write_text(json.dumps(pin(folder, "fake", "v1", {})))
    return folder


def treatments(*names: str, dtype: str = "fp8_e4m3") -> dict[str, KVTreatment]:
    """One native candidate a name; the name plants the fault of ``tests.fakes.engine``."""
    return {name: KVTreatment(name=name, dtype=dtype) for name in names}


def reference(name: str, dtype: str = "int8") -> dict[str, KVTreatment]:
    return {name: KVTreatment(name=name, dtype=dtype, realisation=Realisation.REFERENCE)}


def policy(rule: Rule = Rule.DEFAULT, **changes: Any) -> Policy:
    gating = ScorePolicy(role=ScoreRole.GATE, margin=2.0)
    bound = ScorePolicy(role=ScoreRole.BOUND, margin=10.0)
    scores: Mapping[str, Mapping[str, ScorePolicy]] = {
        "math_chain": {"gl_reply": gating, "gl_span": gating, "math_steps": bound},
        "faq": {"gl_reply": gating, "gl_span": gating, "match": bound},
    }
    return replace(
        Policy(
            name=str(rule),
            rule=rule,
            hardest="math_chain",
            scores=scores,
            min_turns=30,
            min_headroom=10,
            largest_break=0.0,
        ),
        **changes,
    )


def settings(folder: Path, candidates: Mapping[str, KVTreatment], **changes: Any) -> Settings:
    """A gate over ``folder/golden`` into ``folder/runs``. ``args``, ``timeout_s``, ``stall_s``, ``retries`` and
    ``preparer`` of the engine are taken from ``changes`` too.
    """
    engine = EngineSettings(
        engine="tests.fakes.engine:FakeEngine",
        preparer=changes.pop("preparer", "tests.fakes.engine:prepare"),
        args={"enforce_eager": True, **changes.pop("args", {})},
        platform="gpu",
        timeout_s=changes.pop("timeout_s", 60.0),
        stall_s=changes.pop("stall_s", 60.0),
        retries=changes.pop("retries", 0),
    )
    made = Settings(
        model=ModelSpec(id="org/fake-model", revision="r1", source="folder"),
        engine=engine,
        golden_path=str(folder / "golden"),
        sampling=Sampling(),
        block_requests=16,
        baseline=KVTreatment(name="baseline", dtype="bfloat16"),
        candidates=candidates,
        placebo=PlaceboKind.JITTER,
        policy=policy(),
        scorers={
            "math_chain": {"gl_reply": ReplyLikelihood(), "gl_span": SpanLikelihood(), "math_steps": MathSteps()},
            "faq": {"gl_reply": ReplyLikelihood(), "gl_span": SpanLikelihood(), "match": Match()},
        },
        tracking=TrackingSettings(uri="", experiment="fake"),
        runs_dir=str(folder / "runs"),
        cache_dir=str(folder / "cache"),
        config={"model": "org/fake-model"},
    )
    return replace(made, **changes)


def _math(conversation: int, turn: int) -> dict[str, Any]:
    left, operand = 100 + 7 * conversation, 11 + turn
    result = left + operand
    system = {"role": "system", "content": f"You keep the running number of team {conversation}."}
    history = [{"role": "user", "content": "start"}, {"role": "assistant", "content": "ready"}] * turn
    user = {"role": "user", "content": f"Step {turn}: start with {left}, add {operand}."}
    return {
        "turn_id": f"math_chain-{conversation:02}/{turn}",
        "workload": "math_chain",
        "conversation_id": f"math_chain-{conversation:02}",
        "turn_index": turn,
        "messages": [system, *history, user],
        "reference": {"role": "assistant", "content": f"Step {turn}: {left} + {operand} = {result}"},
        "decisive": [{"text": f"= {result}"}],
        "expected": {
            "steps": [{"left": left, "operator": "+", "operand": operand, "result": result}],
            "final": result,
        },
        "max_tokens": 60,
    }


def _faq(prices: int, conversation: int, turn: int) -> dict[str, Any]:
    answer = f"{prices + conversation}.{turn}0"
    return {
        "turn_id": f"faq-{conversation:02}/{turn}",
        "workload": "faq",
        "conversation_id": f"faq-{conversation:02}",
        "turn_index": turn,
        "messages": [{"role": "user", "content": f"What does item {conversation} cost in size {turn}?"}],
        "reference": {"role": "assistant", "content": f"It costs {answer} euros."},
        "decisive": [{"text": answer}],
        "expected": {"answers": [answer]},
        "max_tokens": 60,
    }


if __name__ == "__main__":  # python -m tests.fakes.gate FOLDER SECONDS_A_BLOCK CANDIDATE
    gate(settings(Path(sys.argv[1]), treatments(sys.argv[3]), args={"slow": sys.argv[2]}))
