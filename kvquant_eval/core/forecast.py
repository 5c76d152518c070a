"""What a gate will take, and whether it could end in PROMOTE at all: known before any engine starts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvquant_eval.core.gate import Grounds, decide
from kvquant_eval.core.policy import ScoreRole
from kvquant_eval.core.records import (
    Block,
    GoldenTurn,
    Measure,
    Outcome,
    Prepared,
    RenderedTurn,
    Replay,
    ReplayRequest,
    Rollout,
    ScoreDelta,
)
from kvquant_eval.core.results import CandidateResult
from kvquant_eval.core.score import Score
from kvquant_eval.core.settings import Settings

NEARLY = -0.01
"""Log probability (nats) of a token in the best case; with 0 a score would be taken for one of yes and no."""


@dataclass(frozen=True, kw_only=True)
class Speed:
    """How fast an earlier arm was: seconds for each token that it computed (decoded, or read without the prefix cache),
    and the share of prompt tokens (0..1) that the prefix cache gave.
    """

    seconds_per_token: float
    cached_share: float


@dataclass(frozen=True, kw_only=True)
class ClassLengths:
    """One workload class: turns that run, their conversations, turns that do not fit, and the most tokens that one
    turn needs.
    """

    n_turns: int
    n_conversations: int
    n_skipped: int
    longest: int


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """``todo`` counts the blocks that each arm still has to run, ``tokens`` what these compute at most; ``minutes`` is
    None without an earlier run to tell it from. ``best`` is what the policy makes of a candidate that loses nothing.
    """

    classes: Mapping[str, ClassLengths]
    context: int
    blocks: int
    todo: Mapping[str, int]
    tokens: int
    minutes: float | None
    best: CandidateResult


def forecast(
    settings: Settings,
    prepared: Prepared,
    turns: Sequence[GoldenTurn],
    blocks: Sequence[Block],
    done: Mapping[str, int],
    speed: Speed | None,
) -> Forecast:
    """``done`` is how many blocks of each arm need not be run again."""
    todo = {arm: len(blocks) - count for arm, count in done.items()}
    cached = speed.cached_share if speed else 0.0
    whole = sum(_tokens(request, cached) for block in blocks for request in block.requests)
    prompts = {turn.turn_id: len(turn.prompt_ids) for turn in prepared.turns}
    whole += sum(_rollout_tokens(rollout, prompts, cached) for block in blocks for rollout in block.rollouts)
    tokens = whole * sum(todo.values()) / len(blocks) if blocks else 0.0
    side_by_side = min(len(settings.engine.slots), max(1, sum(count > 0 for count in todo.values())))
    return Forecast(
        classes={name: _lengths([t for t in prepared.turns if t.workload == name]) for name in settings.policy.scores},
        context=prepared.context,
        blocks=len(blocks),
        todo=todo,
        tokens=round(tokens),
        minutes=tokens * speed.seconds_per_token / 60 / side_by_side if speed else None,
        best=best_case(settings, prepared.turns, turns),
    )


def best_case(settings: Settings, rendered: Sequence[RenderedTurn], turns: Sequence[GoldenTurn]) -> CandidateResult:
    """The decision over a candidate that answers every turn that fits nearly as the golden reply does, and so does its
    baseline.
    """
    golden = {turn.turn_id: turn for turn in turns}
    found = [
        (turn, name, _points(settings, name, golden[turn.turn_id], turn))
        for turn in rendered
        if not turn.skip
        for name, rule in settings.policy.scores[turn.workload].items()
        if rule.role is ScoreRole.GATE
    ]
    deltas = [
        ScoreDelta(
            turn_id=turn.turn_id,
            workload=turn.workload,
            conversation_id=turn.conversation_id,
            turn_index=turn.turn_index,
            scorer=name,
            baseline=points,
            candidate=points,
            drop=0.0,
        )
        for turn, name, points in found
        if points is not None
    ]
    skipped = Counter(turn.workload for turn in rendered if turn.skip)
    headroom = {(d.turn_id, d.scorer): d.baseline or 0.0 for d in deltas}
    return decide(deltas, settings.policy, Grounds(headroom=headroom, skipped=skipped))


def _points(settings: Settings, name: str, turn: GoldenTurn, rendered: RenderedTurn) -> float | None:
    """What the scorer gives a reply that has nearly every probability; None where the turn has nothing for it to score,
    such as a decisive span. Scorers of generated replies are not asked: there is none yet.
    """
    scorer, ids = settings.scorers[turn.workload][name], rendered.golden_ids
    if scorer.measure is not Measure.FORCED:
        return 100.0 * math.exp(NEARLY)
    replay = Replay(
        turn_id=turn.turn_id,
        measure=Measure.FORCED,
        epoch=0,
        outcome=Outcome.OK,
        token_ids=ids,
        logprobs=(NEARLY,) * len(ids),
    )
    score = scorer(replay, turn, rendered)
    return score.points if isinstance(score, Score) else None


def _lengths(turns: Sequence[RenderedTurn]) -> ClassLengths:
    running = [turn for turn in turns if not turn.skip]
    return ClassLengths(
        n_turns=len(running),
        n_conversations=len({turn.conversation_id for turn in running}),
        n_skipped=len(turns) - len(running),
        longest=max((len(t.prompt_ids) + max(len(t.golden_ids), t.max_tokens) for t in turns), default=0),
    )


def _tokens(request: ReplayRequest, cached_share: float) -> float:
    """Tokens that an engine computes for a request, at most."""
    return len(request.prompt_ids) * (1.0 - cached_share) + request.max_tokens


def _rollout_tokens(rollout: Rollout, prompts: Mapping[str, int], cached_share: float) -> float:
    """As ``_tokens``, for a conversation; a reply that answers no golden turn has the prompt of the one before."""
    tokens, prompt = 0.0, 0
    for step in rollout.steps:
        prompt = prompts.get(step.turn_id, prompt)
        tokens += prompt * (1.0 - cached_share) + step.max_tokens
    return tokens
