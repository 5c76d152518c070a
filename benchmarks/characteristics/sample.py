"""Turns of a cell: their conversations, what the baseline earns on them, and what the candidate loses."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from benchmarks.characteristics.cells import EVERYTHING, Cell, Score, Where

_LEVELS = 4096
"""Difficulties of a Beta distribution that are told apart."""
_LOWEST, _RANGE = 60.0, 10.0
"""Graded baselines, in points."""

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]


@dataclass(frozen=True)
class Sample:
    """Turns, all arrays of shape (turns,): points of the baseline, drops, conversations, and places in them."""

    baseline: Floats
    drops: Floats
    conversation: Whole
    index: Whole


def generator(cell: Cell) -> np.random.Generator:
    """Seeded by the cell's name."""
    return np.random.default_rng(zlib.crc32(cell.name.encode()))


def draw(cell: Cell, rng: np.random.Generator) -> Sample:
    """One golden set with its two arms. Conversations are drawn anew each time, their sizes too."""
    sizes = rng.integers(cell.sizes[0], cell.sizes[1], cell.conversations, endpoint=True)
    conversation = np.repeat(np.arange(len(sizes)), sizes)
    index = np.arange(len(conversation)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    damage = _damage(cell, rng, conversation, index, sizes)
    arms = _binary if cell.score is Score.BINARY else _graded
    baseline, drops = arms(cell, rng, conversation, damage)
    return Sample(baseline, drops, conversation, index)


def mean_baseline(cell: Cell) -> float:
    """Of all turns, in points."""
    if cell.score is Score.GRADED:
        return _LOWEST + _RANGE / 2
    return 100.0 * float(_chances(*cell.difficulty).mean())


def break_chance(cell: Cell) -> float:
    """Of a conversation to break, 1 where the drop is no break; for single turns that one of its turns does."""
    loss = mean_baseline(cell) if cell.loss == EVERYTHING else cell.loss
    mean_size = sum(cell.sizes) / 2
    rate = cell.drop / loss
    return {
        Where.UNIFORM: 1.0,
        Where.LATE: 1.0,
        Where.BREAK: rate,
        Where.TURN_BREAK: 1 - (1 - rate) ** mean_size,
        Where.LATE_BREAK: rate / _late_share(cell),
        Where.LONGEST_BREAK: rate * mean_size / cell.sizes[1],
    }[cell.where]


def touched(cell: Cell) -> float:
    """Conversations that are expected to move at all: by a break, by noise or by the drop."""
    within = cell.epochs * (1 if cell.shared else sum(cell.sizes) / 2)
    still = 1 - (1 - cell.disagreement) ** within
    lost = break_chance(cell) if cell.drop else 0.0
    if cell.score is Score.BINARY and cell.drop and cell.where is Where.UNIFORM:
        lost = 1 - (1 - cell.drop / 100) ** within
    return cell.conversations * (1 - (1 - still) * (1 - lost))


def _damage(cell: Cell, rng: np.random.Generator, conversation: Whole, index: Whole, sizes: Whole) -> Floats:
    """Points that each turn is to lose, all it has where infinite, of a mean of ``cell.drop`` over all turns."""
    chance, loss = break_chance(cell), np.inf if cell.loss == EVERYTHING else cell.loss
    broken = rng.random(len(sizes)) < chance
    if cell.where is Where.TURN_BREAK:
        rate = cell.drop / (mean_baseline(cell) if cell.loss == EVERYTHING else cell.loss)
        return np.where(rng.random(len(index)) < rate, loss, 0.0)
    late = index >= cell.sizes[1] // 2
    if cell.where is Where.LATE:
        return np.where(late, cell.drop / _late_share(cell), 0.0)
    if cell.where is Where.UNIFORM:
        return np.full(len(index), cell.drop)
    if cell.where is Where.LONGEST_BREAK:
        longest = sizes == cell.sizes[1]
        broken = longest & (rng.random(len(sizes)) < chance * (cell.sizes[1] - cell.sizes[0] + 1))
    return np.where(broken[conversation] & (late | (cell.where is not Where.LATE_BREAK)), loss, 0.0)


def _late_share(cell: Cell) -> float:
    """Of all turns, those whose index is half the largest size or more."""
    sizes = np.arange(cell.sizes[0], cell.sizes[1] + 1)
    return float(np.maximum(0, sizes - cell.sizes[1] // 2).sum() / sizes.sum())


def _binary(cell: Cell, rng: np.random.Generator, conversation: Whole, damage: Floats) -> tuple[Floats, Floats]:
    """A turn succeeds in an epoch when a draw is below its chance. The candidate has the baseline's draw, or a fresh
    one so often that ``disagreement`` of the pairs differ; then it loses a share of its successes. No chance is
    clipped, so that the mean drop is the planted one.
    """
    chances = _chances(*cell.difficulty)
    places = (_latent(cell, rng, conversation, 1) * _LEVELS).astype(np.int64)
    chance = chances[np.minimum(places, _LEVELS - 1)]
    fresh = cell.disagreement / float(2 * (chances * (1 - chances)).mean())
    drawn = [_latent(cell, rng, conversation, cell.epochs) for _ in range(2 if fresh else 1)]
    again = _latent(cell, rng, conversation, cell.epochs) < fresh if fresh else False
    share = np.minimum(1.0, damage / (100.0 * chances.mean()))[:, np.newaxis]
    kept = _latent(cell, rng, conversation, cell.epochs) >= share if cell.drop else True
    before = drawn[0] < chance
    after = (np.where(again, drawn[-1], drawn[0]) < chance) & kept
    right, still = before.sum(axis=1), after.sum(axis=1)
    return 100.0 * right / cell.epochs, 100.0 * (right - still) / cell.epochs


def _graded(cell: Cell, rng: np.random.Generator, conversation: Whole, damage: Floats) -> tuple[Floats, Floats]:
    """Of the turns, ``disagreement`` have noise; the candidate loses the damage on top."""
    baseline = _LOWEST + _RANGE * _latent(cell, rng, conversation, 1)[:, 0]
    drops = np.minimum(damage, baseline)
    if cell.disagreement:
        moved = _latent(cell, rng, conversation, 1)[:, 0] < cell.disagreement
        position = _latent(cell, rng, conversation, 1)[:, 0]
        noise = special.stdtrit(3, position) / np.sqrt(3) if cell.heavy else special.ndtri(position)
        drops = drops + np.where(moved & (damage < baseline), cell.noise * noise, 0.0)
    return baseline, drops


def _latent(cell: Cell, rng: np.random.Generator, conversation: Whole, epochs: int) -> Floats:
    """Uniform variables (turns, epochs); those of a conversation are correlated in each epoch."""
    if not cell.shared:
        return rng.random((len(conversation), epochs))
    common = rng.standard_normal((cell.conversations, epochs))[conversation]
    own = rng.standard_normal((len(conversation), epochs))
    mixed: Any = special.ndtr(np.sqrt(cell.shared) * common + np.sqrt(1 - cell.shared) * own)
    return mixed


@cache
def _chances(a: float, b: float) -> Floats:
    """Chances of success, equally likely."""
    found: Floats = stats.beta.ppf((np.arange(_LEVELS) + 0.5) / _LEVELS, a, b)
    return found
