"""vLLM as an engine: replays blocks by forced decoding and by generation, and reads back what its workers run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from vllm import LLM, RequestOutput, SamplingParams, TokensPrompt
from vllm.engine.arg_utils import EngineArgs

from kvquant_eval.core.codec import from_data, to_data
from kvquant_eval.core.engine import EngineFacts, EngineSpec, LayerFacts
from kvquant_eval.core.outcome import classify
from kvquant_eval.core.ranges import LayerRanges, joined
from kvquant_eval.core.records import Block, BlockResult, Measure, Outcome, Replay, ReplayRequest, Rollout
from kvquant_eval.core.stored import StoredLayer, merged
from kvquant_eval.core.treatment import KVTreatment, Realisation
from kvquant_eval.core.walk import Walk
from kvquant_eval.worker.chat import load_tokenizer
from kvquant_eval.worker.forcing import FORCED
from kvquant_eval.worker.machine import device_name, versions
from kvquant_eval.worker.render import prompt_ids

# Nothing that could change an answer is left to a default: the model's own sampling defaults, statistics, the runner.
_ALWAYS = {"generation_config": "vllm", "disable_log_stats": False}
_SETTINGS = {
    "model_config": ("dtype", "quantization", "max_model_len", "enforce_eager", "seed", "logprobs_mode"),
    "cache_config": ("block_size", "enable_prefix_caching"),
    "scheduler_config": ("max_num_seqs", "max_num_batched_tokens", "enable_chunked_prefill"),
    "parallel_config": ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"),
}


class VllmEngine:
    """One vLLM engine in this process tree, with the KV treatment of its spec."""

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec
        treatment = spec.treatment
        args: dict[str, Any] = {
            **_ALWAYS,
            **spec.args,
            "model": spec.model,
            "revision": spec.revision,
            "kv_cache_dtype": treatment.engine_dtype,
            "worker_extension_cls": "kvquant_eval.worker.extension.KVExtension",
        }
        reference = treatment.realisation is Realisation.REFERENCE
        if treatment.skip_layers and not reference:
            args["kv_cache_dtype_skip_layers"] = list(treatment.skip_layers)
        if (reference or spec.profile) and not args.get("enforce_eager"):
            raise ValueError(f"{treatment.name}: a compiled engine ignores hooks; set engine.args.enforce_eager=true")
        self.trace_replay = bool(EngineArgs(**args).create_engine_config().use_v2_model_runner)
        if self.trace_replay:
            args["enable_trace_replay"] = True
        else:
            args["logits_processors"] = ["kvquant_eval.worker.forcing:ForcedDecoding"]
        self.llm = LLM(**args)
        self.widened = sum(self.llm.collective_rpc("kv_widen")) if args.get("enforce_eager") else 0
        if args.get("enforce_eager"):  # a compiled engine may store K and V where no Python sees it
            self.llm.collective_rpc("kv_audit")
        if spec.profile:
            scales = [to_data(each) for each in spec.profile_scales]
            self.llm.collective_rpc("kv_profile", args=(list(spec.profile), scales))
        if reference:
            self.treat(treatment)

    def run(self, block: Block, beat: Callable[[], None]) -> BlockResult:
        """See ``Engine.run``. Raises RuntimeError when the prefix cache cannot be reset or replies are missing."""
        if not self.llm.reset_prefix_cache():
            raise RuntimeError(f"block {block.index}: the engine refused to reset its prefix cache")
        preempted, rounded, started = self._preemptions(), self._rounding(), time.monotonic()
        replays = [replay for wave in block.waves if wave for replay in self._wave(wave, beat)]
        replays += self._rollouts(block.rollouts, beat)
        seconds, now = time.monotonic() - started, self._rounding()
        return BlockResult(
            index=block.index,
            replays=tuple(replays),
            preemptions=self._preemptions() - preempted,
            seconds=seconds,
            second_rounding=(now[0] - rounded[0], now[1] - rounded[1]),
            stored=self._stored(),
            ranges=self._ranges(),
        )

    def treat(self, treatment: KVTreatment) -> None:
        """See ``Engine.treat``."""
        self.llm.collective_rpc("kv_install", args=(to_data(treatment),))

    def facts(self) -> EngineFacts:
        config, installed = self.llm.llm_engine.vllm_config, versions()
        workers: list[dict[str, Any]] = self.llm.collective_rpc("kv_facts")
        settings: dict[str, Any] = {
            f"{group}.{name}": _plain(getattr(getattr(config, group), name, None))
            for group, names in _SETTINGS.items()
            for name in names
        }
        settings["compilation_mode"] = str(config.compilation_config.mode)
        settings["linears_in_fp32"] = self.widened
        settings["forced_decoding"] = "trace_replay" if self.trace_replay else "logits_processor"
        return EngineFacts(
            engine="vllm",
            version=installed["vllm"],
            device=device_name(),
            model_dtype=_plain(config.model_config.dtype),
            layers=tuple(
                tuple(from_data(LayerFacts, layer, f"worker {rank}") for layer in worker["layers"])
                for rank, worker in enumerate(workers)
            ),
            capacity_tokens=min(worker["num_blocks"] * worker["block_size"] for worker in workers),
            block_size=workers[0]["block_size"],
            settings=settings,
            versions=installed,
        )

    def close(self) -> None:
        self.llm.llm_engine.engine_core.shutdown()

    def _wave(self, wave: Sequence[ReplayRequest], beat: Callable[[], None]) -> list[Replay]:
        requests = dict(zip(self._together(wave), wave, strict=True))
        outputs = {output.request_id: output for output in self._finished(beat)}
        if outputs.keys() != requests.keys():
            raise RuntimeError(f"the engine returned {len(outputs)} of {len(wave)} replies")
        return [_replay(request, outputs[key]) for key, request in requests.items()]

    def _rollouts(self, rollouts: Sequence[Rollout], beat: Callable[[], None]) -> list[Replay]:
        """All conversations at once, each at its own pace: what follows a finished reply joins the next step."""
        walks = [Walk(rollout, self._prompt, self.llm.model_config.max_model_len) for rollout in rollouts]
        begun = [(walk, walk.due) for walk in walks if walk.due]
        under_way = dict(zip(self._together([due for _, due in begun]), begun, strict=True))
        for output in self._finished(beat):
            walk, request = under_way.pop(output.request_id)
            walk.take(_replay(request, output))
            if walk.due:
                (key,) = self._enqueue([walk.due])
                under_way[key] = walk, walk.due
        if under_way:
            raise RuntimeError(f"the engine left {len(under_way)} of {len(walks)} conversations without a reply")
        return [replay for walk in walks for replay in walk.replays]

    def _prompt(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        return tuple(prompt_ids(self.tokenizer, self.spec.chat_template, messages, tools, "conversation"))

    @cached_property
    def tokenizer(self) -> Any:
        """The one that the golden turns were rendered with."""
        return load_tokenizer(Path(self.spec.model), bool(self.spec.args.get("trust_remote_code")))

    def _together(self, requests: Sequence[ReplayRequest]) -> list[str]:
        """Hand over all requests while the scheduler stands still: what shares a step must not depend on how fast they
        arrive.
        """
        if not requests:
            return []
        self.llm.sleep(level=0, mode="keep")
        keys = self._enqueue(requests)
        self.llm.wake_up(["scheduling"])
        return keys

    def _enqueue(self, requests: Sequence[ReplayRequest]) -> list[str]:
        """The ids under which the engine returns them; vLLM's own have something random behind."""
        keys: list[str] = self.llm.enqueue(
            [TokensPrompt(prompt_token_ids=list(request.prompt_ids)) for request in requests],
            [self._sampling(request) for request in requests],
            use_tqdm=False,
        )
        return [key.partition("-")[0] for key in keys]

    def _finished(self, beat: Callable[[], None]) -> Iterator[RequestOutput]:
        """What the engine finishes, as it does, until it has nothing more to do."""
        while self.llm.llm_engine.has_unfinished_requests():
            yield from (output for output in self.llm.llm_engine.step() if output.finished)
            beat()

    def _sampling(self, request: ReplayRequest) -> SamplingParams:
        if request.measure is not Measure.FORCED:
            return SamplingParams(
                temperature=request.temperature,
                top_p=request.top_p,
                top_k=request.top_k,
                seed=request.seed,
                max_tokens=request.max_tokens,
            )
        forced = list(request.forced_ids)
        force: dict[str, Any] = (
            {"trace_decode_token_ids": forced} if self.trace_replay else {"extra_args": {FORCED: forced}}
        )
        return SamplingParams(
            temperature=0.0,
            max_tokens=len(forced),
            logprobs=self.spec.top_logprobs,
            ignore_eos=True,
            detokenize=False,
            **force,
        )

    def _rounding(self) -> tuple[int, int]:
        """(values that did not fit BF16 exactly, values seen) over all workers since the start."""
        counts: list[Any] = self.llm.collective_rpc("kv_second_rounding")
        return sum(inexact for inexact, _ in counts), sum(seen for _, seen in counts)

    def _stored(self) -> tuple[StoredLayer, ...]:
        workers: list[list[Any]] = self.llm.collective_rpc("kv_stored")
        return merged(from_data(StoredLayer, layer, "stored") for worker in workers for layer in worker)

    def _ranges(self) -> tuple[LayerRanges, ...]:
        if not self.spec.profile:
            return ()
        workers: list[list[Any]] = self.llm.collective_rpc("kv_ranges")
        return joined(from_data(LayerRanges, layer, "ranges") for worker in workers for layer in worker)

    def _preemptions(self) -> int:
        metrics: list[Any] = self.llm.get_metrics()
        return sum(int(metric.value) for metric in metrics if metric.name == "vllm:num_preemptions")


def _replay(request: ReplayRequest, output: RequestOutput) -> Replay:
    """Turn vLLM's output into a Replay; a forced reply that is not the golden one, or a non-finite logprob, is
    unscored.
    """
    completion = output.outputs[0]
    ids = tuple(completion.token_ids)
    steps: list[Any] = list(completion.logprobs or ())
    logprobs = tuple(float(step[token].logprob) for step, token in zip(steps, ids, strict=bool(steps)))
    forced = request.measure is Measure.FORCED
    finish = str(completion.finish_reason or "")
    seen = len(output.prompt_token_ids or ())
    error = _fault(request, ids, logprobs, seen)
    outcome = Outcome.OK if forced else classify(ids, completion.text, finish)
    return Replay(
        turn_id=request.turn_id,
        measure=request.measure,
        epoch=request.epoch,
        outcome=Outcome.INFRA_ERROR if error else outcome,
        token_ids=ids,
        text=completion.text,
        logprobs=() if error else logprobs,
        top=tuple(_top(step) for step in steps) if forced and not error else (),
        finish_reason=finish,
        prompt_tokens=seen,
        cached_tokens=output.num_cached_tokens or 0,
        error=error,
    )


def _fault(request: ReplayRequest, ids: tuple[int, ...], logprobs: tuple[float, ...], seen: int) -> str:
    """What makes a reply no evidence (empty: nothing). ``seen`` counts the prompt tokens that the engine took."""
    if seen != len(request.prompt_ids):
        return f"the engine took {seen} of {len(request.prompt_ids)} prompt tokens"
    if not all(map(math.isfinite, logprobs)):
        return "the engine returned a non-finite logprob"
    if request.measure is Measure.FORCED and ids != request.forced_ids:
        return "the engine did not decode the forced tokens"
    return ""


def _top(step: Any) -> tuple[tuple[int, float], ...]:
    ranked = sorted(step.items(), key=lambda item: (-item[1].logprob, item[0]))
    return tuple((int(token), float(entry.logprob)) for token, entry in ranked)


def _plain(value: Any) -> Any:
    """A setting as a JSON value."""
    return value if isinstance(value, bool | int | float | str | None) else str(value).removeprefix("torch.")
