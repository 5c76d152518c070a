"""The seam to an inference engine: one method, plus what it attests and how it ends."""

from __future__ import annotations

from typing import Protocol

from kvquant_eval.core.records import Block, BlockResult, EngineFacts


class Engine(Protocol):
    """An engine with one KV treatment, started by constructing it with an ``EngineSpec``."""

    def run(self, block: Block) -> BlockResult:
        """Replay one block from an empty prefix cache: one ``Replay`` for each of ``block.requests``, in order."""
        ...

    def facts(self) -> EngineFacts:
        """What is really running, read back from the workers."""
        ...

    def close(self) -> None:
        """Stop the engine. Nothing is called afterwards."""
        ...
