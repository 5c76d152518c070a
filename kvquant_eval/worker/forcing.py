"""Forced decoding on vLLM's V1 model runner: a logits processor that leaves only the golden token to choose.

Raw logprobs are taken before processors run, so what vLLM reports is the model's own probability of the golden token.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality

FORCED = "forced_tokens"
"""Key in ``SamplingParams.extra_args`` that holds the ids to force."""


class ForcedDecoding(LogitsProcessor):
    """Keeps (forced ids, output ids so far) for each row of the persistent batch that has forced ids."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        self.rows: dict[int, tuple[list[int], list[int]]] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow requests as they join, leave and move; the order removed, added, moved is vLLM's contract."""
        if batch_update is None:
            return
        for row in batch_update.removed:
            self.rows.pop(row, None)
        for row, params, _, output_ids in batch_update.added:
            forced = (params.extra_args or {}).get(FORCED)
            self._put(row, None if forced is None else (forced, output_ids))
        for source, target, direction in batch_update.moved:
            moving, displaced = self.rows.pop(source, None), self.rows.pop(target, None)
            self._put(target, moving)
            if direction == MoveDirectionality.SWAP:
                self._put(source, displaced)

    def apply(self, logits: Tensor) -> Tensor:
        """logits: [rows, vocabulary], changed in place."""
        for row, (forced, output_ids) in self.rows.items():
            if len(output_ids) < len(forced):
                logits[row].fill_(float("-inf"))
                logits[row, forced[len(output_ids)]] = 0.0
        return logits

    def _put(self, row: int, state: tuple[list[int], list[int]] | None) -> None:
        if state is None:
            self.rows.pop(row, None)
        else:
            self.rows[row] = state
