"""A small decided gate without an engine: what ``report.write`` takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kvquant_eval.core.arms import ArmRecord, plan_arms
from kvquant_eval.core.diagnosis import Diagnosis, diagnose
from kvquant_eval.core.document import document
from kvquant_eval.core.engine import EngineFacts, LayerFacts
from kvquant_eval.core.judge import Judgement, judge
from kvquant_eval.core.policy import Policy, Rule, ScorePolicy, ScoreRole
from kvquant_eval.core.records import (
    GoldenSet,
    GoldenTurn,
    Measure,
    ModelSpec,
    Outcome,
    Prepared,
    RenderedTurn,
    Replay,
    Sampling,
)
from kvquant_eval.core.score import Score
from kvquant_eval.core.settings import EngineSettings, PlaceboKind, Settings, TrackingSettings
from kvquant_eval.core.treatment import KVTreatment, Realisation
from kvquant_eval.io import report
from tests.fakes.records import beside


@dataclass(frozen=True)
class Points:
    """Golden likelihood in points; its explanation repeats the replay's text, as careless scorers do."""

    measure: Measure = Measure.FORCED

    def __call__(self, replay: Replay, turn: GoldenTurn, rendered: RenderedTurn) -> Score:
        return Score(100.0 * math.exp(replay.logprobs[0]), f"said {replay.text or turn.turn_id}")


@dataclass(frozen=True)
class Case:
    """Everything ``report.write`` takes, and the folder it wrote to."""

    document: dict[str, Any]
    judgement: Judgement
    golden: GoldenSet
    prepared: Prepared
    diagnosis: Diagnosis

    def write(self, folder: Path) -> dict[str, str]:
        folder.mkdir(exist_ok=True)
        report.write(folder, self.document, self.judgement, self.golden, self.prepared)
        return {name: (folder / name).read_text(encoding="utf-8") for name in ("report.md", "report.html", "junit.xml")}


def make_case(
    drop: float = 0.0,
    *,
    model: str = "acme/tiny",
    reply: str = "four",
    turns: int = 40,
    run_candidate: bool = True,
    error: str = "",
    candidate: KVTreatment | None = None,
    min_turns: int = 10,
    classes: Sequence[str] = ("faq", "math_chain"),
    flag_over: float | None = 2.0,
) -> Case:
    """A gate over ``classes``, ``turns`` turns each; every turn of the candidate drops by ``drop`` points from 80."""
    settings = _settings(model, candidate or KVTreatment(name="fp8_e4m3", dtype="fp8_e4m3"), classes, min_turns)
    golden = GoldenSet(name="tiny", version="3", sha256="ab" * 32, turns=tuple(_golden(classes, turns, reply)))
    prepared = Prepared(
        path="/models/tiny",
        weights_sha256="11" * 32,
        template_sha256="22" * 32,
        device="a chip",
        versions={"vllm": "0.32.0"},
        kv_cache_scheme=False,
        turns=tuple(_rendered(turn) for turn in golden.turns),
    )
    records = []
    for arm in plan_arms(settings):
        stands = arm.role == "candidate"
        ran = run_candidate or not stands
        replays = _replays(golden, 80.0 - (drop if stands else 0.0), reply if stands else "five") if ran else ()
        records.append(
            ArmRecord(
                arm=arm,
                facts=_facts(arm.treatment) if ran else None,
                replays=replays,
                counts={
                    "seconds": 2.0 * ran,
                    "preemptions": 0,
                    "prompt_tokens": 9 * ran,
                    "cached_tokens": 3 * ran,
                    "decoded_tokens": 8,
                },
                error=error if stands else "",
            )
        )
    judgement = judge(settings, prepared, golden.turns, records)
    diagnosis = diagnose(judgement, beside(records, prepared.turns))
    decided = {
        "run_id": "run-1",
        "created_at": "2026-01-01T00:00:00+00:00",
        "attempts": 2,
        **document(judgement, settings, prepared, golden, False, diagnosis),
    }
    for judged in decided["candidates"][0]["classes"].values():
        for score in judged["scores"].values():
            score["flag_over"] = flag_over
    return Case(decided, judgement, golden, prepared, diagnosis)


def _settings(model: str, candidate: KVTreatment, classes: Sequence[str], min_turns: int) -> Settings:
    rule = ScorePolicy(role=ScoreRole.GATE, margin=2.0)
    policy = Policy(
        name="test",
        rule=Rule.DEFAULT,
        hardest=classes[-1],
        scores={workload: {"gl_reply": rule} for workload in classes},
        min_turns=min_turns,
        min_headroom=10,
        largest_break=0.0,
    )
    return Settings(
        model=ModelSpec(id=model, revision="r1", source="hub"),
        engine=EngineSettings(
            engine="fake:Engine", preparer="fake:prepare", args={"enforce_eager": True}, platform="cpu"
        ),
        golden_path="golden",
        sampling=Sampling(),
        block_requests=64,
        baseline=KVTreatment(name="bfloat16", dtype="bfloat16"),
        candidates={candidate.name: candidate},
        placebo=PlaceboKind.JITTER,
        policy=policy,
        scorers={workload: {"gl_reply": Points()} for workload in classes},
        tracking=TrackingSettings(uri="", experiment=""),
        runs_dir="runs",
        cache_dir="cache",
        config={},
    )


def _golden(classes: Sequence[str], turns: int, text: str) -> list[GoldenTurn]:
    return [
        GoldenTurn(
            turn_id=f"{workload}-{number}/t{number % 5}",
            workload=workload,
            conversation_id=f"{workload}-{number}",
            turn_index=number % 5,
            messages=(
                {"role": "user", "content": text},
                {"role": "tool", "content": [{"type": "text", "text": "2 + 2?"}]},
            ),
            reference={
                "role": "assistant",
                "content": None,
                "tool_calls": [{"function": {"name": "add", "arguments": "{}"}}],
            },
        )
        for workload in classes
        for number in range(turns)
    ]


def _rendered(turn: GoldenTurn) -> RenderedTurn:
    return RenderedTurn(
        turn_id=turn.turn_id,
        workload=turn.workload,
        conversation_id=turn.conversation_id,
        turn_index=turn.turn_index,
        prompt_ids=(1, 2, 3),
        golden_ids=(4,),
        spans=(),
        max_tokens=8,
    )


def _replays(golden: GoldenSet, points: float, text: str) -> tuple[Replay, ...]:
    forced = [
        Replay(
            turn_id=turn.turn_id,
            measure=Measure.FORCED,
            epoch=0,
            outcome=Outcome.OK,
            token_ids=(4,),
            text=text,
            logprobs=(math.log((points + number % 3) / 100.0),),
            top=(((4, -0.1),),),
        )
        for number, turn in enumerate(golden.turns)
    ]
    written = [
        Replay(
            turn_id=r.turn_id,
            measure=Measure.GENERATED,
            epoch=0,
            outcome=Outcome.OK,
            token_ids=(7, 8, len(text)),
            text=text,
        )
        for r in forced
    ]
    return (*forced, *written)


def _facts(treatment: KVTreatment) -> EngineFacts:
    quantized = treatment.engine_dtype.startswith("fp8")
    layer = LayerFacts(
        name="layers.0",
        index=0,
        backend="FAKE",
        kv_dtype=treatment.engine_dtype,
        storage="uint8" if quantized else "bfloat16",
        bytes_per_token=64.0 if quantized else 128.0,
        k_scale=1.0,
        v_scale=1.0,
        k_scale_tensor=1.0,
        v_scale_tensor=1.0,
        format=treatment.dtype if treatment.realisation is Realisation.REFERENCE else "",
    )
    return EngineFacts(
        engine="fake",
        version="1",
        device="a chip",
        model_dtype="bfloat16",
        layers=((layer,),),
        capacity_tokens=2000 if quantized else 1000,
        block_size=16,
        settings={},
        versions={},
    )


@pytest.fixture(scope="session")
def case() -> Callable[..., Case]:
    """``make_case``, for tests to call."""
    return make_case
