"""Short ways to write records in tests: everything has a plain default, what matters is named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kvquant_eval.core.arms import ArmRecord
from kvquant_eval.core.attribution import Pair, pairs
from kvquant_eval.core.charges import Grounds
from kvquant_eval.core.compare import Key
from kvquant_eval.core.engine import EngineFacts, LayerFacts
from kvquant_eval.core.fidelity import TurnFidelity, measure
from kvquant_eval.core.policy import Policy, Rule, ScorePolicy, ScoreRole
from kvquant_eval.core.records import GoldenTurn, Measure, Outcome, RenderedTurn, Replay, Role, ScoreDelta
from kvquant_eval.core.treatment import KVTreatment, Realisation


def golden_turn(turn_id: str = "t", **changes: Any) -> GoldenTurn:
    fields: dict[str, Any] = {
        "workload": "math_chain",
        "conversation_id": "c",
        "turn_index": 0,
        "messages": ({"role": "user", "content": "Step 1: add 2 to 3."},),
        "reference": {"role": "assistant", "content": "Step 1: 3 + 2 = 5"},
    }
    return GoldenTurn(turn_id=turn_id, **{**fields, **changes})


def rendered_turn(turn_id: str = "t", **changes: Any) -> RenderedTurn:
    fields: dict[str, Any] = {
        "workload": "math_chain",
        "conversation_id": "c",
        "turn_index": 0,
        "prompt_ids": (1, 2, 3),
        "golden_ids": (4, 5),
        "spans": (),
        "max_tokens": 8,
    }
    return RenderedTurn(turn_id=turn_id, **{**fields, **changes})


def reply(text: str, **changes: Any) -> Replay:
    """A generated reply."""
    fields: dict[str, Any] = {
        "turn_id": "t",
        "measure": Measure.GENERATED,
        "epoch": 0,
        "outcome": Outcome.OK,
        "text": text,
        "finish_reason": "stop",
    }
    return Replay(**{**fields, **changes})


def forced(logprobs: Sequence[float], **changes: Any) -> Replay:
    """A forced replay with these log probabilities (nats)."""
    fields: dict[str, Any] = {
        "turn_id": "t",
        "measure": Measure.FORCED,
        "epoch": 0,
        "outcome": Outcome.OK,
        "token_ids": tuple(range(len(logprobs))),
        "logprobs": tuple(logprobs),
        "top": tuple(((i, p),) for i, p in enumerate(logprobs)),
    }
    return Replay(**{**fields, **changes})


def treatment(dtype: str = "fp8_e4m3", realisation: Realisation = Realisation.NATIVE, *skip: str) -> KVTreatment:
    return KVTreatment(name="arm", dtype=dtype, realisation=realisation, skip_layers=skip)


def layer(index: int = 0, dtype: str = "bfloat16", **changes: Any) -> LayerFacts:
    fields: dict[str, Any] = {
        "name": f"model.layers.{index}.attn",
        "index": index,
        "backend": "CPU_ATTN",
        "kv_dtype": dtype,
        "storage": dtype,
        "bytes_per_token": 64.0 if dtype == "bfloat16" else 32.0,
        "k_scale": 1.0,
        "v_scale": 1.0,
        "k_scale_tensor": 1.0,
        "v_scale_tensor": 1.0,
    }
    return LayerFacts(**{**fields, **changes})


def facts(*layers: LayerFacts, **changes: Any) -> EngineFacts:
    """One worker with these layers."""
    fields: dict[str, Any] = {
        "engine": "vllm",
        "version": "0.32.0",
        "device": "cpu",
        "model_dtype": "bfloat16",
        "layers": (layers,),
        "capacity_tokens": 1000,
        "block_size": 16,
        "settings": {"cache_config.enable_prefix_caching": True},
        "versions": {"torch": "2"},
    }
    return EngineFacts(**{**fields, **changes})


def one_class(role: ScoreRole = ScoreRole.GATE, margin: float = 2.0, flag_over: float = 2.0, **changes: Any) -> Policy:
    """A policy over the class ``hard`` with the gating score ``s``; the drops seen are taken for all there are."""
    scores = {"s": ScorePolicy(role=role, margin=margin, flag_over=flag_over)}
    fields: dict[str, Any] = {
        "name": "test",
        "rule": Rule.DEFAULT,
        "hardest": "hard",
        "scores": {"hard": scores},
        "min_turns": 1,
        "min_headroom": 1,
        "largest_break": 0.0,
    }
    return Policy(**{**fields, **changes})


def delta(turn_id: str, drop: float | None, **changes: Any) -> ScoreDelta:
    """A turn of the class ``hard``, alone in its conversation, whose score ``s`` falls from 80 by ``drop``."""
    fields: dict[str, Any] = {
        "workload": "hard",
        "conversation_id": turn_id,
        "turn_index": 0,
        "scorer": "s",
        "baseline": None if drop is None else 80.0,
        "candidate": None if drop is None else 80.0 - drop,
        "missing": "candidate: infra_error" if drop is None else "",
    }
    return ScoreDelta(turn_id=turn_id, drop=drop, **{**fields, **changes})


def deltas(drops: Sequence[float | None], **changes: Any) -> list[ScoreDelta]:
    return [delta(f"t{i:04}", drop, **changes) for i, drop in enumerate(drops)]


def headroom(of: Sequence[ScoreDelta], points: float = 80.0) -> Mapping[Key, float]:
    return {(d.turn_id, d.scorer): points for d in of}


def grounds(of: Sequence[ScoreDelta], points: float = 80.0, **changes: Any) -> Grounds:
    """With headroom in every turn."""
    return Grounds(**{"headroom": headroom(of, points), **changes})


def beside(records: Sequence[ArmRecord], turns: Iterable[RenderedTurn]) -> dict[Pair, tuple[TurnFidelity, ...]]:
    """As ``io.fidelity.read``, from replays in memory."""
    replays = {
        record.arm.name: {r.turn_id: r for r in record.replays if r.measure is Measure.FORCED} for record in records
    }
    turns = tuple(turns)
    arms = [record.arm for record in records]
    compared = [*((arm.baseline, arm.name) for arm in arms if arm.role is not Role.BASELINE), *pairs(arms)]
    return {
        (left, right): tuple(
            measure(turn, replays[left].get(turn.turn_id), replays[right].get(turn.turn_id)) for turn in turns
        )
        for left, right in compared
    }
