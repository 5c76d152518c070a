"""What a gate will take, and whether it could end in PROMOTE at all: known before any engine starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvquant_eval.core.charges import Grounds
from kvquant_eval.core.compare import Key
from kvquant_eval.core.gate import decide
from kvquant_eval.core.judge import first_block
from kvquant_eval.core.noise import Noise
from kvquant_eval.core.policy import Policy, ScoreRole
from kvquant_eval.core.power import Power, foresee
from kvquant_eval.core.records import (
    Block,
    GoldenTurn,
    Prepared,
    RenderedTurn,
    ReplayRequest,
    Rollout,
    ScoreDelta,
)
from kvquant_eval.core.results import CandidateResult
from kvquant_eval.core.settings import Settings
from kvquant_eval.core.strata import positions
from kvquant_eval.core.targets import find_targets, scorable


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
    None without an earlier run to tell it from. ``power`` is what the policy can see in these turns.
    """

    classes: Mapping[str, ClassLengths]
    context: int
    blocks: int
    todo: Mapping[str, int]
    tokens: int
    minutes: float | None
    power: Power


def forecast(
    settings: Settings,
    prepared: Prepared,
    blocks: Sequence[Block],
    done: Mapping[str, int],
    speed: Speed | None,
    power: Power,
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
        power=power,
    )


def said(found: Forecast, policy: Policy) -> tuple[str, ...]:
    """The same in a few lines."""
    power = found.power
    chances = f"is promoted with a chance of {power.chance:.0%} and held with one of {power.held:.1%}"
    source = f"measured in {power.noise}" if power.noise else "assumed"
    drops = ", ".join(
        f"{name} {'none' if each.detectable is None else f'{each.detectable:.1f}'}"
        for name, each in power.classes.items()
    )
    time = f"about {found.minutes:.0f} minutes" if found.minutes is not None else "no earlier run to tell minutes from"
    return (
        f"under {policy.name} a candidate that loses nothing {chances} (noise: {source})",
        f"smallest mean drop that would be held, in points: {drops}",
        f"{sum(found.todo.values())} blocks to run, at most {found.tokens:,} tokens to compute, {time}",
    )


def best_case(settings: Settings, rendered: Sequence[RenderedTurn], points: Mapping[Key, float]) -> CandidateResult:
    """The decision over a candidate of which no turn moves: it has the ``points`` of its baseline (``scorable``)."""
    deltas = [
        ScoreDelta(
            turn_id=turn.turn_id,
            workload=turn.workload,
            conversation_id=turn.conversation_id,
            turn_index=turn.turn_index,
            scorer=name,
            baseline=points[turn.turn_id, name],
            candidate=points[turn.turn_id, name],
            drop=0.0,
        )
        for turn in rendered
        for name, rule in settings.policy.scores[turn.workload].items()
        if rule.role is ScoreRole.GATE and (turn.turn_id, name) in points
    ]
    skipped = Counter(turn.workload for turn in rendered if turn.skip)
    where = positions(rendered, first_block(settings, rendered))
    return decide(deltas, settings.policy, Grounds(headroom=points, skipped=skipped, positions=where))


def find_power(
    settings: Settings,
    rendered: Sequence[RenderedTurn],
    turns: Sequence[GoldenTurn],
    noise: Noise | None = None,
    measured_by: str = "",
) -> Power:
    """What the policy can see in these turns; ``measured_by`` is the run whose ``noise`` that is."""
    points = scorable(settings, rendered, turns, noise)
    where = positions(rendered, first_block(settings, rendered))
    targets = find_targets(settings, points, rendered, where, noise)
    return foresee(targets, settings.policy, best_case(settings, rendered, points), measured_by)


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
