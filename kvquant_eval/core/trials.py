"""Simulated arms that lose nothing, looked at as a policy looks at real ones. Drops have the shape (runs, turns)."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np

from kvquant_eval.core.inference import Estimate
from kvquant_eval.core.policy import Policy, Rule, ScoreRole
from kvquant_eval.core.stats import Array, Clusters, sign_flip, spread
from kvquant_eval.core.targets import Mask, Target


def draw(target: Target, runs: int) -> Array:
    """Drops, shape (runs, turns); the same for the same target."""
    seed = zlib.crc32(f"{target.workload}/{target.name}".encode())
    return target.source.draw(target.sizes, runs, np.random.default_rng(seed))


def estimates(target: Target, drops: Array, turns: Mask | None = None) -> Iterator[Estimate]:
    """What each run says; of some ``turns`` alone."""
    owners = np.repeat(np.arange(len(target.sizes)), target.sizes)
    mine = np.ones(len(owners), dtype=bool) if turns is None else turns
    owners, drops = owners[mine], drops[:, mine]
    starts = np.flatnonzero(np.diff(owners, prepend=-1))
    sizes = np.diff(starts, append=len(owners)).astype(float)
    for row, sums in zip(drops, np.add.reduceat(drops, starts, axis=1), strict=True):
        seen = Clusters(sums, sizes)
        yes_no = target.source.yes_no
        yield Estimate(
            seen=seen,
            flips=(int((row > 0).sum()), int((row < 0).sum())) if yes_no else None,
            spread=spread(seen, row) if yes_no else 1.0,
            largest=target.largest,
        )


def passes(target: Target, drops: Array, policy: Policy) -> Mask:
    """Whether the score lets its class pass, by run."""
    if policy.rule is Rule.ZERO_FLAGS:
        return ~broken(target, drops, policy)
    below = np.array([each.below(target.rule.margin) for each in estimates(target, drops)])
    for part in target.strata:
        left = np.flatnonzero(below)
        inside = estimates(target, drops[left], part)
        below[left] = [each.below(target.rule.margin) for each in inside]
    return below


def broken(target: Target, drops: Array, policy: Policy) -> Mask:
    """Whether turns that may not drop over the threshold do, by run."""
    counted = drops if policy.rule is Rule.ZERO_FLAGS else drops[:, target.critical]
    return np.asarray((counted > target.rule.flag_over).any(axis=1))


def charges(target: Target, drops: Array, policy: Policy) -> Iterator[Array]:
    """The chance of each reason to hold, by run; as ``gate.decide`` has them."""
    if policy.rule is Rule.ZERO_FLAGS:
        return
    yield beyond(target, drops, policy)
    if target.rule.role is ScoreRole.GATE and target.workload == policy.hardest:
        yield surplus(target, drops)
    for part in target.strata:
        yield beyond(target, drops, policy, part)


def beyond(target: Target, drops: Array, policy: Policy, turns: Mask | None = None) -> Array:
    """The chance of such a mean drop were it within the margin, by run; of some ``turns`` alone."""
    margin = target.rule.margin
    found = estimates(target, drops, turns)
    return np.array([e.beyond(margin, policy.hold_level) if e.seen.mean > margin else 1.0 for e in found])


def surplus(target: Target, drops: Array) -> Array:
    """Of drops over the threshold over gains over it."""
    over = target.rule.flag_over
    signs = (drops > over).astype(float) - (drops < -over)
    starts = np.concatenate([[0], np.cumsum(target.sizes)[:-1]])
    sizes = np.array(target.sizes, dtype=float)
    return np.array([sign_flip(Clusters(sums, sizes)) for sums in np.add.reduceat(signs, starts, axis=1)])
