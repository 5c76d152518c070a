"""An engine without a model: every log probability is a hash of the prompt and the position, and faults can be planted.

A token is a character. Forced replies get pseudo log probabilities; a generated reply is the golden one of the same
block, now and then with a digit off. A fault is chosen by the treatment's name, or by ``args["faults"]`` under that
name, so that it can be planted into one arm only.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvquant_eval.core.codec import DataError
from kvquant_eval.core.engine import EngineFacts, EngineSpec, LayerFacts
from kvquant_eval.core.outcome import classify
from kvquant_eval.core.ranges import FormatCounts, HalfRanges, HeadCounts, LayerRanges
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
    Rollout,
)
from kvquant_eval.core.treatment import KVTreatment, Realisation, together
from kvquant_eval.core.walk import Walk

LAYERS = 4
NOISE = {
    "bfloat16": 0.0,
    "placebo": 0.002,
    "fp8_e4m3": 0.004,
    "fp8_e5m2": 0.008,
    "int8": 0.003,
    "int4": 0.01,
    "nvfp4": 0.01,
}
"""Half width (nats) of what a dtype does to each log probability, both ways alike."""

FORGOTTEN = ("math_chain-02/1", "math_chain-06/1")
"""Turns that the fault ``forgets_two_turns`` is about."""

VERSIONS = {"python": "3", "vllm": "none"}


def fault_of(spec: EngineSpec) -> str:
    """The fault planted into this arm: by name of the treatment, directly or through ``args["faults"]``."""
    faults: Mapping[str, str] = spec.args.get("faults", {})
    return faults.get(spec.treatment.name, spec.treatment.name)


def uniform(*parts: object) -> float:
    """A number in [0, 1) that only depends on ``parts``."""
    raw = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(raw[:8], "big") / 2.0**64


class FakeEngine:
    """See ``core.engine.Engine``."""

    def __init__(self, spec: EngineSpec) -> None:
        self.spec, self.fault, self.runs = spec, fault_of(spec), 0
        self.first = 0
        if self.fault == "does_not_start":
            raise RuntimeError("no memory for the KV cache")

    def run(self, block: Block, beat: Callable[[], None] = lambda: None) -> BlockResult:
        self._plant_before(block, beat)
        self.first = self.first if self.runs else block.index
        golden = {r.turn_id: r.forced_ids for r in block.requests if r.measure is Measure.FORCED}
        replays = [self._replay(request, golden.get(request.turn_id, ()), block.index) for request in block.requests]
        replays += [replay for rollout in block.rollouts for replay in self._converse(rollout, block.index)]
        if self.fault == "fewer_replies" and block.index == 0:
            dropped = block.requests[0].turn_id
            replays = [replay for replay in replays if replay.turn_id != dropped]
        self.runs += 1
        return BlockResult(
            index=block.index,
            replays=tuple(replays),
            preemptions=int(self.fault == "preempts" and block.index == 1),
            seconds=0.5,
            second_rounding=(100, 1000) if self.spec.treatment.realisation is Realisation.REFERENCE else (0, 0),
            ranges=_ranges(self.spec.profile, block.index) if self.spec.profile else (),
        )

    def treat(self, treatment: KVTreatment) -> None:
        self.__init__(replace(self.spec, treatment=treatment))  # type: ignore[misc]

    def facts(self) -> EngineFacts:
        layers = () if self.fault == "no_layers" else tuple(self._layer(index) for index in range(LAYERS))
        settings: dict[str, Any] = {
            "cache_config.enable_prefix_caching": self.fault != "prefix_caching_off",
            "scheduler_config.max_num_seqs": self.spec.args.get("max_num_seqs", 64),
        }
        return EngineFacts(
            engine="fake",
            version="1",
            device="none",
            model_dtype="bfloat16",
            layers=(layers,),
            capacity_tokens=2000 if layers and layers[0].storage == "bfloat16" else 4000,
            block_size=16,
            settings=settings,
            versions={"python": "3"},
        )

    def close(self) -> None:
        if self.fault == "dies_on_close":
            os._exit(1)

    def _converse(self, rollout: Rollout, block: int) -> list[Replay]:
        """A conversation that is golden but for what ``_reply`` gets wrong; ``forgets`` says nothing right in it,
        ``wanders`` talks until the context is full.
        """
        golden = {step.turn_id: tuple(map(ord, str(step.recorded["content"]))) for step in rollout.steps}
        walk = Walk(rollout, _prompt_ids, int(self.spec.args.get("max_model_len", 4096)))
        while walk.due:
            reply = self._replay(walk.due, golden[walk.due.turn_id], block)
            text = {"forgets": "I forgot.", "wanders": "and so on " * 15}.get(self.fault, reply.text)
            walk.take(replace(reply, text=text))
        return walk.replays

    def _plant_before(self, block: Block, beat: Callable[[], None]) -> None:
        """Faults that end the process or take time; ``slow`` leaves time to kill the parent."""
        self._end(block)
        if self.fault == "raises_in_block_1" and block.index == 1:
            raise RuntimeError("EngineDeadError")
        if self.fault == "hangs":
            time.sleep(600)
        if self.fault == "plods":  # longer than the patience of its test, but with signs of life
            for _ in range(3):
                time.sleep(1.0)
                beat()
        if self.fault == "slow" or "slow" in self.spec.args:
            time.sleep(float(self.spec.args.get("slow", 0.2)))

    def _end(self, block: Block) -> None:
        if self.fault == "dies_in_block_1" and block.index == 1:
            sys.stderr.write("CUDA error: an illegal memory access was encountered\n")
            sys.stderr.flush()
            os._exit(139)
        if self.fault == "dies_when_asked_again" and all(r.measure is Measure.GENERATED for r in block.requests):
            os._exit(1)
        if self.fault == "killed_for_memory" and block.index == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "dies_in_every_block" and self.runs == 1:
            os._exit(1)
        if self.fault == "dies_once" and block.index == 1:
            marker = Path(self.spec.args["marker"])
            if not marker.exists():
                marker.touch()
                os._exit(1)

    def _layer(self, index: int) -> LayerFacts:
        treatment = self.spec.treatment
        asked = treatment.engine_dtype
        if self.fault == "ignores_dtype" or str(index) in treatment.skip_layers:
            asked = "bfloat16"
        if self.fault == "skips_a_layer" and index == LAYERS - 1:
            asked = "bfloat16"
        quantized = asked not in ("auto", "bfloat16")
        scale = {"zero_scales": 0.0, "nan_scales": math.nan, "negative_scales": -1.0}.get(self.fault, 1.0)
        asked_scales = None if self.fault == "loses_scales" else treatment.scales_at(index)
        rounded = together(*treatment.at(index)) if treatment.realisation is Realisation.REFERENCE else "bfloat16"
        return LayerFacts(
            name=f"model.layers.{index}.self_attn.attn",
            index=index,
            backend="OTHER_ATTN" if self.fault == "other_backend" else "FAKE_ATTN",
            kv_dtype=asked,
            storage=asked if quantized else "bfloat16",
            bytes_per_token=32.0 if quantized else 64.0,
            k_scale=scale,
            v_scale=scale,
            k_scale_tensor=0.5 if self.fault == "half_applied_scales" else scale,
            v_scale_tensor=scale,
            format="" if rounded == "bfloat16" else rounded,
            head_size=16,
            k_scales=asked_scales.k if asked_scales else (),
            v_scales=asked_scales.v if asked_scales else (),
        )

    def _replay(self, request: ReplayRequest, golden: Sequence[int], block: int) -> Replay:
        forced = request.measure is Measure.FORCED
        ids = tuple(request.forced_ids) if forced else self._reply(request, golden)
        logprobs = self._logprobs(request, ids)
        outcome, error, finish = Outcome.OK, "", ""
        text = "" if forced else "".join(map(chr, ids))
        if not forced:
            finish = "length" if len(ids) >= request.max_tokens else "stop"
            outcome = classify(ids, text, finish)
        if self.fault == "infra_errors" and block == 0:
            outcome, error, logprobs = Outcome.INFRA_ERROR, "the engine returned a non-finite logprob", ()
        return Replay(
            turn_id=request.turn_id,
            measure=request.measure,
            epoch=request.epoch,
            outcome=outcome,
            token_ids=ids,
            text=text,
            logprobs=logprobs,
            top=tuple(((token, p),) for token, p in zip(ids, logprobs, strict=True)) if forced and not error else (),
            finish_reason="length" if forced else finish,
            prompt_tokens=len(request.prompt_ids),
            cached_tokens=0 if forced else len(request.prompt_ids),
            error=error,
        )

    def _reply(self, request: ReplayRequest, golden: Sequence[int]) -> tuple[int, ...]:
        """The golden reply up to the token limit; one in twenty has its last digit off, another one for each dtype."""
        if self.fault == "empty_replies":
            return (ord(" "),)
        if self.fault == "loops":
            return tuple(map(ord, "no no no no no no no no no no "))[: request.max_tokens]
        if self.fault == "stutters" and request.turn_id.endswith("/1"):
            return tuple(map(ord, "".join(map(chr, golden)) + " ok" * 12))[: request.max_tokens]
        if request.temperature > 0:
            return self._sampled(request)
        ids = list(golden)[: request.max_tokens]
        dtype = "bfloat16" if self.fault == "not_applied" else self.spec.treatment.dtype
        salt = "" if uniform(request.prompt_ids, dtype) > 0.02 else dtype
        if uniform(request.prompt_ids, "wrong", salt) < 0.05:
            last = max((i for i, token in enumerate(ids) if chr(token).isdigit()), default=None)
            if last is not None:
                ids[last] = ord(str((int(chr(ids[last])) + 1) % 10))
        return tuple(ids)

    def _sampled(self, request: ReplayRequest) -> tuple[int, ...]:
        """A step that is right in nine of ten epochs; ``FORGOTTEN`` ones in two of ten, where that is planted.

        One epoch in ten is drawn anew for each dtype.
        """
        prompt = "".join(map(chr, request.prompt_ids))
        step = re.search(r"Step (\d+): start with (\d+), add (\d+)\.\s*$", prompt)
        if step is None:
            return tuple(map(ord, "I do not know."))
        number, left, operand = map(int, step.groups())
        lost = self.fault == "forgets_two_turns" and request.turn_id in FORGOTTEN
        dtype = self.spec.treatment.dtype
        salt = dtype if uniform(request.prompt_ids, request.seed, dtype) < 0.1 else ""
        right = uniform(request.prompt_ids, request.seed, "right", salt) < (0.2 if lost else 0.9)
        result = left + operand + (0 if right else 1)
        return tuple(map(ord, f"Step {number}: {left} + {operand} = {result}"))

    def _logprobs(self, request: ReplayRequest, ids: Sequence[int]) -> tuple[float, ...]:
        """Nats, <= 0: about -0.25 each, plus the dtype's noise, less the planted drop."""
        dtype = "bfloat16" if self.fault == "not_applied" else self.spec.treatment.dtype
        width = NOISE.get(dtype, 0.0)
        values = [
            -0.05 - 0.4 * uniform(request.prompt_ids, i) + width * (2 * uniform(request.prompt_ids, i, dtype) - 1)
            for i in range(len(ids))
        ]
        if self.fault == "keeps_state" and self.first:
            values = [value - 0.1 for value in values]
        if self.fault == "nan_logprobs" and request.measure is Measure.FORCED:
            return (math.nan, *values[1:])
        if request.measure is Measure.FORCED:
            likelihood = 100 * math.exp(math.fsum(values) / len(values))
            shift = math.log1p(-self._drop(request, likelihood) / likelihood)
            values = [min(0.0, value + shift) for value in values]
        return tuple(values)

    def _drop(self, request: ReplayRequest, likelihood: float) -> float:
        """Points of golden likelihood, of those that there are, that the planted fault takes from this turn."""
        if self.fault == "drops_math_chain" and request.turn_id.startswith("math_chain"):
            return 8.0
        if self.fault == "drops_faq" and request.turn_id.startswith("faq"):
            return 8.0
        if self.fault == "drops_three_turns" and request.turn_id in (
            "math_chain-03/1",
            "math_chain-05/1",
            "math_chain-07/1",
        ):
            return 3.0 + 2.0 * uniform(request.turn_id)
        if self.fault == "broken":
            return 0.98 * likelihood
        return self._fragile()

    def _fragile(self) -> float:
        """Points that layers cost where they are quantized: (layer, points) pairs in ``args["fragile"]``."""
        at = self.spec.treatment.at
        fragile: Sequence[tuple[int, float]] = self.spec.args.get("fragile", ())
        return sum(cost for layer, cost in fragile if {*at(layer)} - {"bfloat16", "placebo"})


def _ranges(formats: Sequence[str], block: int) -> tuple[LayerRanges, ...]:
    """Two heads a layer, of about 10; K of the last head in layer 2 is a thousand times that."""

    def half(name: str, layer: int) -> HalfRanges:
        heads = []
        for head in range(2):
            size = (1 + uniform(name, layer, head, block)) * (5000 if (name, layer, head) == ("k", 2, 1) else 5)
            counts = {f: FormatCounts(beyond=int(size > 448), noise=size / 1000) for f in formats if f != "bfloat16"}
            heads.append(HeadCounts(values=100, largest=size, signal=size * size, formats=counts))
        return HalfRanges(limits={f: 448.0 for f in formats if f == "fp8_e4m3"}, heads=tuple(heads))

    return tuple(LayerRanges(index=i, k=half("k", i), v=half("v", i)) for i in range(LAYERS))


def prepare(
    model: ModelSpec,
    turns: Sequence[GoldenTurn],
    args: Mapping[str, Any],
    cache: Path,
    treatments: Sequence[KVTreatment],
) -> Prepared:
    """Render each turn to characters, without a tokenizer."""
    limit = int(args.get("max_model_len", 4096))
    return Prepared(
        path="/models/local",
        weights_sha256=hashlib.sha256(model.id.encode()).hexdigest(),
        template_sha256=hashlib.sha256(b"role: content").hexdigest(),
        device="none",
        versions=VERSIONS,
        kv_cache_scheme=False,
        context=limit,
        turns=tuple(_render(turn, limit) for turn in turns),
    )


def prepare_newer(*arguments: Any) -> Prepared:
    """As ``prepare``, with a newer engine installed."""
    return replace(prepare(*arguments), versions={**VERSIONS, "vllm": "newer"})


def refuse(*_: Any) -> Prepared:
    raise DataError("model: no such model")


def _prompt_ids(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
    return tuple(map(ord, "".join(f"{m['role']}: {m['content']}\n" for m in messages)))


def _render(turn: GoldenTurn, limit: int) -> RenderedTurn:
    prompt = _prompt_ids(turn.messages, turn.tools)
    reply = str(turn.reference["content"])
    spans = tuple((reply.index(s.text), reply.index(s.text) + len(s.text)) for s in turn.decisive)
    needed = len(prompt) + max(len(reply), turn.max_tokens)
    return RenderedTurn(
        turn_id=turn.turn_id,
        workload=turn.workload,
        conversation_id=turn.conversation_id,
        turn_index=turn.turn_index,
        prompt_ids=prompt,
        golden_ids=tuple(map(ord, reply)),
        spans=spans,
        max_tokens=turn.max_tokens,
        skip=f"needs {needed} tokens, the context is {limit}" if needed > limit else "",
    )
