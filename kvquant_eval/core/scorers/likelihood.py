"""Golden likelihood (GL): how probable the golden reply stays under forced decoding. No sampling noise.

GL = 100 x exp(mean log p), the inverse perplexity in points: 100 is certain, and 20 a perplexity of 5.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kvquant_eval.core.records import GoldenTurn, Measure, RenderedTurn, Replay
from kvquant_eval.core.score import Score


@dataclass(frozen=True)
class ReplyLikelihood:
    """GL over the whole golden reply."""

    measure: Measure = Measure.FORCED

    def __call__(self, replay: Replay, turn: GoldenTurn, rendered: RenderedTurn) -> Score:
        return Score(golden_likelihood(replay.logprobs))


@dataclass(frozen=True)
class SpanLikelihood:
    """GL over the worst decisive span: a mean over the reply dilutes one broken step."""

    measure: Measure = Measure.FORCED

    def __call__(self, replay: Replay, turn: GoldenTurn, rendered: RenderedTurn) -> Score | None:
        if not rendered.spans:
            return None
        points = [golden_likelihood(replay.logprobs[start:end]) for start, end in rendered.spans]
        worst = min(range(len(points)), key=points.__getitem__)
        return Score(points[worst], f"worst span {turn.decisive[worst].text!r}")


def golden_likelihood(logprobs: Sequence[float]) -> float:
    """Points, 0..100, of log probabilities (nats); 0 for none, which is what an engine that left them out proves."""
    if not logprobs:
        return 0.0
    return 100.0 * math.exp(math.fsum(logprobs) / len(logprobs))
