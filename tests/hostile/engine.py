"""An engine that puts payloads wherever an engine can put text, and a preparer whose tokens do not depend on text.

``args["kind"]`` says which payloads: so a hostile run and its harmless twin have the same tokens, drops and flags.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvquant_eval.core.engine import EngineFacts, EngineSpec
from kvquant_eval.core.records import (
    Block,
    BlockResult,
    GoldenTurn,
    Measure,
    ModelSpec,
    Outcome,
    Prepared,
    RenderedTurn,
    Replay,
    ReplayRequest,
)
from kvquant_eval.core.treatment import KVTreatment
from tests.fakes.engine import FakeEngine, uniform
from tests.hostile.payloads import LONG, name, names, text

GOLDEN_IDS = (7, 8, 9, 10)
TURNS = 60
CANDIDATES = ("first", "last", "differs", "raises", "dies")
"""``first`` and ``last`` drop most on the first and the last turns, and ``last`` has infra errors; ``differs`` runs
with another setting; ``raises`` and ``dies`` end in the first block.
"""


class HostileEngine:
    """See ``core.engine.Engine``."""

    def __init__(self, spec: EngineSpec) -> None:
        self.spec, self.kind, self.arm = spec, str(spec.args["kind"]), spec.treatment.name

    def run(self, block: Block, beat: Callable[[], None]) -> BlockResult:
        if self.arm == "raises":
            raise RuntimeError(names(self.kind))
        if self.arm == "dies":
            sys.stderr.write("\n".join([names(self.kind), *(LONG if self.kind == "hostile" else ())]))
            sys.stderr.flush()
            os._exit(1)
        replays = tuple(self._replay(request, block.index) for request in block.requests)
        return BlockResult(index=block.index, replays=replays, preemptions=0, seconds=0.5)

    def facts(self) -> EngineFacts:
        engine, version, device, dtype, backend, key, value = (names(self.kind, 7 * place) for place in range(7))
        facts = FakeEngine(self.spec).facts()
        layers = tuple(replace(layer, backend=backend) for layer in facts.layers[0])
        if self.arm == "differs":
            value = "".join(LONG) if self.kind == "hostile" else "other"
        return replace(
            facts,
            engine=engine,
            version=version,
            device=device,
            model_dtype=dtype,
            layers=(layers,),
            settings={key: value},
            versions={key: version},
        )

    def close(self) -> None: ...

    def _replay(self, request: ReplayRequest, block: int) -> Replay:
        (number,) = request.prompt_ids
        common: dict[str, Any] = {
            "turn_id": request.turn_id,
            "measure": request.measure,
            "epoch": request.epoch,
            "outcome": Outcome.OK,
            "prompt_tokens": 1,
        }
        if self.arm == "last" and block == 0:
            return Replay(**common | {"outcome": Outcome.INFRA_ERROR, "error": text(self.kind, number)})
        if request.measure is Measure.GENERATED:
            shift = 20 if self.arm in CANDIDATES else 0
            return Replay(**common, token_ids=(1, 2, 3), text=text(self.kind, number + shift), finish_reason="stop")
        noise = 0.001 * uniform(number, self.spec.treatment.dtype)
        worst = {"first": TURNS - number, "last": number + 1}.get(self.arm, 0)
        return Replay(**common, token_ids=GOLDEN_IDS, logprobs=(-0.25 - noise - 0.01 * worst,) * len(GOLDEN_IDS))


def prepare(
    model: ModelSpec,
    turns: Sequence[GoldenTurn],
    args: Mapping[str, Any],
    cache: Path,
    treatments: Sequence[KVTreatment],
) -> Prepared:
    """One prompt token a turn: its number."""
    said = names(str(args["kind"]))
    return Prepared(
        path=said,
        weights_sha256="11" * 32,
        template_sha256="22" * 32,
        device=said,
        versions={said: said, "vllm": name(str(args["kind"]), 3)},
        kv_cache_scheme=False,
        turns=tuple(
            RenderedTurn(
                turn_id=turn.turn_id,
                workload=turn.workload,
                conversation_id=turn.conversation_id,
                turn_index=turn.turn_index,
                prompt_ids=(int(turn.expected["number"]),),
                golden_ids=GOLDEN_IDS,
                spans=((0, 2),),
                max_tokens=turn.max_tokens,
            )
            for turn in turns
        ),
    )
