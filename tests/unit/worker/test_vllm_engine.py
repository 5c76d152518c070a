"""vLLM's output to a replay: what it returned, or why that is no evidence."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from kvquant_eval.core.plan import make_blocks
from kvquant_eval.core.records import Outcome, Replay, Sampling
from kvquant_eval.worker.vllm_engine import _replay
from tests.fakes.records import rendered_turn

TURN = rendered_turn("t", prompt_ids=(1, 2, 3), golden_ids=(7, 8))
(BLOCK,) = make_blocks([TURN], Sampling())
FORCED, GENERATED = BLOCK.requests


def output(ids: list[int], *, prompt: int = 3, logprob: float = -0.5) -> Any:
    steps = [{token: SimpleNamespace(logprob=logprob), 99: SimpleNamespace(logprob=-3.0)} for token in ids]
    completion = SimpleNamespace(token_ids=ids, logprobs=steps, text="x", finish_reason="stop")
    return SimpleNamespace(outputs=[completion], prompt_token_ids=[1, 2, 3][:prompt], num_cached_tokens=2)


def replay(made: Any) -> Replay:
    return _replay(FORCED, made)


def test_a_forced_reply_keeps_its_log_probabilities() -> None:
    found = replay(output([7, 8]))
    assert (found.outcome, found.logprobs, found.error) == (Outcome.OK, (-0.5, -0.5), "")
    assert found.top == (((7, -0.5), (99, -3.0)), ((8, -0.5), (99, -3.0)))
    assert (found.prompt_tokens, found.cached_tokens) == (3, 2)


def test_a_generated_reply_is_judged_by_its_text() -> None:
    assert _replay(GENERATED, output([5, 6])).outcome is Outcome.OK


@pytest.mark.parametrize("request_of", [FORCED, GENERATED])
def test_a_prompt_that_was_cut_is_no_evidence(request_of: Any) -> None:
    found = _replay(request_of, output([7, 8], prompt=2))
    assert (found.outcome, found.error) == (Outcome.INFRA_ERROR, "the engine took 2 of 3 prompt tokens")
    assert found.prompt_tokens == 2


@pytest.mark.parametrize(
    ("made", "error"),
    [
        (output([7, 9]), "the engine did not decode the forced tokens"),
        (output([7]), "the engine did not decode the forced tokens"),
        (output([7, 8], logprob=math.nan), "the engine returned a non-finite logprob"),
        (output([7, 8], logprob=-math.inf), "the engine returned a non-finite logprob"),
    ],
)
def test_what_cannot_be_scored_is_an_infra_error(made: Any, error: str) -> None:
    found = replay(made)
    assert (found.outcome, found.error, found.logprobs, found.top) == (Outcome.INFRA_ERROR, error, (), ())
