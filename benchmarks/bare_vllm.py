"""The other side of ``replay_overhead``: a bare ``LLM`` on the same requests, told on standard input what to run."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from vllm import LLM, SamplingParams, TokensPrompt

from kvquant_eval.core.codec import from_data
from kvquant_eval.core.engine import EngineSpec
from kvquant_eval.core.records import Block, Measure, ReplayRequest
from kvquant_eval.worker.forcing import FORCED


def sampling(request: ReplayRequest) -> SamplingParams:
    """The request's sampling parameters, as a user of vLLM would write them."""
    if request.measure is Measure.GENERATED:
        return SamplingParams(temperature=0.0, seed=request.seed, max_tokens=request.max_tokens)
    forced = list(request.forced_ids)
    return SamplingParams(
        temperature=0.0,
        max_tokens=len(forced),
        logprobs=20,
        ignore_eos=True,
        detokenize=False,
        extra_args={FORCED: forced},
    )


def generate(llm: LLM, requests: tuple[ReplayRequest, ...]) -> None:
    """One bare call."""
    prompts = [TokensPrompt(prompt_token_ids=list(request.prompt_ids)) for request in requests]
    llm.generate(prompts, [sampling(request) for request in requests], use_tqdm=False)


def main(plan: str) -> None:
    """Serve ``ready``, ``blocks`` and ``batch`` until the end of input."""
    data = json.loads(Path(plan).read_text())
    spec = from_data(EngineSpec, data["spec"], plan)
    blocks = [from_data(Block, block, plan) for block in data["blocks"]]
    llm = LLM(
        model=spec.model,
        kv_cache_dtype=spec.treatment.dtype,
        logits_processors=["kvquant_eval.worker.forcing:ForcedDecoding"],
        generation_config="vllm",
        **spec.args,
    )
    for line in sys.stdin:
        started = time.monotonic()
        if line.strip() == "blocks":
            for block in blocks:
                llm.reset_prefix_cache()
                for wave in block.waves:
                    generate(llm, wave)
        elif line.strip() == "batch":
            llm.reset_prefix_cache()
            generate(llm, tuple(request for block in blocks for request in block.requests))
        print(f"seconds {time.monotonic() - started:.3f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
