"""How near an arm's next-token distributions stay to its baseline's under forced decoding. Diagnostic: nothing decides
by it.

Both arms decode the golden reply, so a position has one history and two distributions, P of the baseline and Q of the
arm. An engine keeps the most probable tokens of each (and the golden one), so KL(P || Q) is taken between what is left
of both when all other tokens are lumped: {every token that both list} and {the rest}. That is a lower bound of the KL
over the vocabulary (data processing, by the log sum inequality: Cover and Thomas, Elements of Information Theory,
2nd ed., theorem 2.7.1), and equal to it but for what happens inside the rest; ``rest_mass`` says how much that is.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvquant_eval.core.codec import to_data
from kvquant_eval.core.judge import ROUNDING
from kvquant_eval.core.records import RenderedTurn, Replay
from kvquant_eval.core.text import one_line

Floats = NDArray[np.float64]
MASS_ROUNDING = 1e-6
"""The least mass of a rest: what twenty probabilities in single precision sum to is known no better. Both rests are
raised to it, which never makes a KL larger.
"""
LEAST = -700.0
"""Log probabilities (nats) below it, minus infinity too, are taken for it: so every mean stays a finite number."""
TOKENS, KL, REST, AGREED, DROP, NATS = range(6)
"""Columns of sums over tokens: how many, KL (nats), mass of the rest, same top-1, drop of the golden token (points),
fall of its log probability (nats).
"""


@dataclass(frozen=True, kw_only=True, eq=False)
class TurnFidelity:
    """One golden reply. ``sums`` are over the tokens of each bin of positions, (bins, 6); a bin is 0, 1, 2-3, 4-7, ...

    ``first_divergence`` is the first position (0-based) whose most probable tokens differ, None where all are the same.
    ``missing`` says why there is nothing to compare (empty: there is); ``sums`` has no bins then.
    """

    turn_id: str
    workload: str
    conversation_id: str
    turn_index: int
    sums: Floats = field(default_factory=lambda: np.zeros((0, 6)))
    first_divergence: int | None = None
    missing: str = ""

    @property
    def means(self) -> Means:
        return _means(self.sums)


@dataclass(frozen=True, kw_only=True)
class Means:
    """Over ``n_tokens`` positions; None where there are none.

    ``kl``: KL(baseline || arm), nats a token, >= 0. ``rest_mass``: the baseline's probability (0..1) of the tokens that
    KL lumps. ``top1_agreement``: share (0..1) of positions with the same most probable token. ``golden_drop``:
    probability of the golden token, baseline minus arm, in points of 100; > 0 is worse. ``perplexity_ratio``: arm by
    baseline; 1 is alike, > 1 is worse.
    """

    n_tokens: int
    kl: float | None = None
    rest_mass: float | None = None
    top1_agreement: float | None = None
    golden_drop: float | None = None
    perplexity_ratio: float | None = None


@dataclass(frozen=True, kw_only=True)
class Position:
    """Positions ``first`` to ``last`` (0-based, inclusive) of the golden replies of ``n_turns`` turns."""

    first: int
    last: int
    n_turns: int
    means: Means


@dataclass(frozen=True, kw_only=True)
class Fidelity:
    """Some turns of one arm: means over their tokens, all together and by position; ``n_left_out`` had no pair.

    ``never_diverged`` is the share (0..1) of turns whose most probable tokens are all the same,
    ``median_first_divergence`` a position (0-based) over the other turns; None where there are none.
    """

    n_turns: int
    n_left_out: int
    means: Means
    never_diverged: float | None
    median_first_divergence: float | None
    by_position: tuple[Position, ...]


@dataclass(frozen=True, eq=False)
class _Forced:
    """A forced reply of n tokens, at most k listed for each: ``tokens`` (n, k), NaN where fewer are; ``logprobs``
    (n, k), minus infinity there; ``golden`` (n,), the forced token's. Nats.
    """

    tokens: Floats
    logprobs: Floats
    golden: Floats


def measure(turn: RenderedTurn, baseline: Replay | None, arm: Replay | None) -> TurnFidelity:
    """One turn from its two forced replays (None: not run). An unscored side leaves the pair out and says why."""
    left, right = _forced(baseline), _forced(arm)
    why = "; ".join(f"{name}: {side}" for name, side in (("baseline", left), ("arm", right)) if isinstance(side, str))
    if baseline and arm and not why and baseline.token_ids != arm.token_ids:
        why = "other tokens were forced"
    sums, first = np.zeros((0, 6)), None
    if isinstance(left, _Forced) and isinstance(right, _Forced) and not why:
        values = _compare(left, right)
        sums = np.add.reduceat(values, _starts(len(values)))
        first = next((int(at) for at in np.flatnonzero(values[:, AGREED] == 0)), None)
    return TurnFidelity(
        turn_id=turn.turn_id,
        workload=turn.workload,
        conversation_id=turn.conversation_id,
        turn_index=turn.turn_index,
        sums=sums,
        first_divergence=first,
        missing=f"skipped: {one_line(turn.skip)}" if turn.skip else why,
    )


def summarise(turns: Sequence[TurnFidelity]) -> Fidelity:
    """Turns to means over all their tokens: a long reply weighs more than a short one."""
    measured = [turn for turn in turns if not turn.missing]
    lengths = [len(turn.sums) for turn in measured]
    sums = np.zeros((max(lengths, default=0), 6))
    for turn in measured:
        sums[: len(turn.sums)] += turn.sums
    diverged = [turn.first_divergence for turn in measured if turn.first_divergence is not None]
    return Fidelity(
        n_turns=len(measured),
        n_left_out=len(turns) - len(measured),
        means=_means(sums),
        never_diverged=(len(measured) - len(diverged)) / len(measured) if measured else None,
        median_first_divergence=float(statistics.median(diverged)) if diverged else None,
        by_position=tuple(
            Position(
                first=1 << bin >> 1,
                last=(1 << bin) - 1,
                n_turns=sum(length > bin for length in lengths),
                means=_means(sums[bin : bin + 1]),
            )
            for bin in range(len(sums))
        ),
    )


def kl_shares(turns: Sequence[TurnFidelity]) -> tuple[float, ...]:
    """What each turn adds to the mean KL over all their tokens (nats a token), 0 where there is nothing to compare."""
    tokens = sum(float(turn.sums[:, TOKENS].sum()) for turn in turns)
    return tuple(float(turn.sums[:, KL].sum()) / tokens if tokens else 0.0 for turn in turns)


def as_data(turns: Sequence[TurnFidelity]) -> dict[str, Any]:
    """An arm as ``decision.json`` has it: ``all`` its turns, and ``classes`` in the order of the turns; means stand
    beside the counts, not under them.
    """
    grouped: dict[str, list[TurnFidelity]] = defaultdict(list)
    for turn in turns:
        grouped[turn.workload].append(turn)
    return {
        "all": _data(summarise(turns)),
        "classes": {workload: _data(summarise(mine)) for workload, mine in grouped.items()},
    }


def _data(found: Fidelity) -> dict[str, Any]:
    return {**_flat(found), "by_position": [_flat(at) for at in found.by_position]}


def _flat(found: Fidelity | Position) -> dict[str, Any]:
    data = to_data(found)
    return {**data.pop("means"), **data}


def _forced(replay: Replay | None) -> _Forced | str:
    """The replay as arrays, or what makes it no evidence."""
    if replay is None:
        return "not run"
    if not replay.outcome.scored:
        return ", ".join(filter(None, [str(replay.outcome), one_line(replay.error)]))
    lengths = np.array([len(step) for step in replay.top], dtype=int)
    if not len(replay.token_ids) == len(replay.logprobs) == len(lengths) or not len(lengths) or not lengths.all():
        return "log probabilities are missing"
    flat = np.fromiter(chain.from_iterable(chain.from_iterable(replay.top)), float, 2 * int(lengths.sum()))
    golden = np.array(replay.logprobs)
    if not ((flat[1::2] <= ROUNDING).all() and (golden <= ROUNDING).all()):
        return "an impossible log probability"
    there = np.arange(lengths.max()) < lengths[:, None]
    tokens, logprobs = np.full(there.shape, math.nan), np.full(there.shape, -math.inf)
    tokens[there], logprobs[there] = flat[::2], np.maximum(flat[1::2], LEAST)
    return _Forced(tokens, logprobs, np.maximum(golden, LEAST))


def _compare(left: _Forced, right: _Forced) -> Floats:
    """The columns of ``TurnFidelity.sums``, a row a token: (n, 6)."""
    kl, rest = _kl(left, right)
    agreed = _most_probable(left) == _most_probable(right)
    drop = 100 * (np.exp(left.golden) - np.exp(right.golden))
    return np.column_stack([np.ones(len(kl)), kl, rest, agreed, drop, left.golden - right.golden])


def _kl(left: _Forced, right: _Forced) -> tuple[Floats, Floats]:
    """KL(left || right) in nats, and left's mass of the rest (0..1), for each token: (n,), (n,).

    Each term is p log(p / q) - p + q, which is >= 0; they sum to the KL, as both sides sum to 1
    (``scipy.special.kl_div``; Boyd and Vandenberghe, Convex Optimization, p. 90). From the logs, nothing overflows.
    """
    same = left.tokens[:, :, None] == right.tokens[:, None, :]
    both = same.any(axis=2)
    log_p = np.where(both, left.logprobs, 0.0)
    log_q = np.where(both, np.take_along_axis(right.logprobs, same.argmax(axis=2), axis=1), 0.0)
    p, q = np.where(both, np.exp(log_p), 0.0), np.where(both, np.exp(log_q), 0.0)
    rest_p, rest_q = 1 - p.sum(axis=1), 1 - q.sum(axis=1)
    a, b = np.maximum(rest_p, MASS_ROUNDING), np.maximum(rest_q, MASS_ROUNDING)
    kl = (p * (log_p - log_q) - p + q).sum(axis=1) + (a * np.log(a / b) - a + b)
    return np.maximum(kl, 0.0), np.maximum(rest_p, 0.0)


def _most_probable(side: _Forced) -> Floats:
    """The most probable token at each position, the least id of those that tie: (n,)."""
    best = side.logprobs == side.logprobs.max(axis=1, keepdims=True)
    most: Floats = np.where(best, side.tokens, math.inf).min(axis=1)
    return most


def _starts(n: int) -> list[int]:
    """Where the bins of positions begin in a reply of n > 0 tokens: 0, 1, 2, 4, 8, ..."""
    return [0, *(1 << bit for bit in range((n - 1).bit_length()))]


def _means(sums: Floats) -> Means:
    total = sums.sum(axis=0)
    n = int(total[TOKENS])
    if not n:
        return Means(n_tokens=0)
    mean = [float(value) / n for value in total]
    return Means(
        n_tokens=n,
        kl=mean[KL],
        rest_mass=mean[REST],
        top1_agreement=mean[AGREED],
        golden_drop=mean[DROP],
        perplexity_ratio=math.exp(mean[NATS]),
    )
