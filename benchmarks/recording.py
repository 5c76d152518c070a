"""The gate's engine, which remembers what it was asked and counts what it wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from vllm import RequestOutput

from kvquant_eval.core.engine import EngineSpec
from kvquant_eval.core.records import ReplayRequest
from kvquant_eval.worker.vllm_engine import VllmEngine


class RecordingEngine(VllmEngine):
    """``asked`` grows by every request that is handed to vLLM, ``decoded`` by the tokens of every reply."""

    def __init__(self, spec: EngineSpec) -> None:
        super().__init__(spec)
        self.asked: list[ReplayRequest] = []
        self.decoded = 0

    def _enqueue(self, requests: Sequence[ReplayRequest]) -> list[str]:
        self.asked += requests
        return super()._enqueue(requests)

    def _finished(self, beat: Callable[[], None]) -> Iterator[RequestOutput]:
        for output in super()._finished(beat):
            self.decoded += len(output.outputs[0].token_ids)
            yield output
