"""Flags of sampled yes/no scores and their second test, by the project's own functions on records."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

from kvquant_eval.core.confirm import confirm, to_confirm
from kvquant_eval.core.policy import Policy, Rule, ScorePolicy, ScoreRole
from kvquant_eval.core.records import Outcome, ScoreDelta, TurnScore

RUNS = 500
TURNS, SCREEN_EPOCHS, LOSS = 200, 4, 0.5
"""Turns of a golden set, epochs of the first stage, and what a damaged turn loses of its chance of success (0..1)."""
EPOCHS = Policy.confirm_epochs
_CLASS, _SCORE = "sampled", "answer"


@dataclass(frozen=True, kw_only=True)
class Stage:
    """``damaged`` turns of the golden set lose ``LOSS``; chances of success are Beta distributed."""

    difficulty: tuple[float, float]
    damaged: int
    epochs: int


@dataclass(frozen=True, kw_only=True)
class Confirmed:
    """Over all runs: flags of the first stage, damaged turns among them; confirmed flags, damaged turns among them;
    runs that confirmed a turn that was not damaged.
    """

    stage: Stage
    flagged: int
    screened: int
    confirmed: int
    found: int
    false_runs: int

    @property
    def precision(self) -> float | None:
        """Share (0..1) of the confirmed flags that are true; None where there are none."""
        return self.found / self.confirmed if self.confirmed else None

    @property
    def power(self) -> float | None:
        """Share (0..1) of the damaged turns that are confirmed."""
        return self.found / (self.stage.damaged * RUNS) if self.stage.damaged else None


STAGES = [
    Stage(difficulty=difficulty, damaged=damaged, epochs=epochs)
    for difficulty in ((0.7, 0.3), (2.0, 1.0), (7.0, 3.0))
    for epochs, damaged in ((EPOCHS, 0), (EPOCHS, 5), (EPOCHS, 10), (32, 10))
]


def policy() -> Policy:
    """One class with one yes/no score that gates."""
    score = ScorePolicy(role=ScoreRole.GATE, margin=10.0)
    return Policy(name="sampled", rule=Rule.DEFAULT, hardest=_CLASS, scores={_CLASS: {_SCORE: score}})


def trial(stage: Stage) -> Confirmed:
    """The same for the same stage."""
    rng = np.random.default_rng(zlib.crc32(repr(stage).encode()))
    counts = np.zeros(5, dtype=int)
    for _ in range(RUNS):
        flags, confirmed, damaged = _once(stage, rng)
        false = len(confirmed - damaged)
        counts += [len(flags), len(flags & damaged), len(confirmed), len(confirmed & damaged), int(false > 0)]
    names = ("flagged", "screened", "confirmed", "found", "false_runs")
    return Confirmed(stage=stage, **dict(zip(names, map(int, counts), strict=True)))


def _once(stage: Stage, rng: np.random.Generator) -> tuple[set[str], set[str], set[str]]:
    """Flagged, confirmed and damaged turns of one run."""
    chance = rng.beta(*stage.difficulty, TURNS)
    damaged = rng.choice(np.flatnonzero(chance >= LOSS), stage.damaged, replace=False)
    left = chance.copy()
    left[damaged] -= LOSS
    names = [f"t{i:03}" for i in range(TURNS)]
    means = [100.0 * rng.binomial(SCREEN_EPOCHS, arm) / SCREEN_EPOCHS for arm in (chance, left)]
    rule = policy()
    flags = to_confirm(
        [_delta(name, float(a), float(b)) for name, a, b in zip(names, *means, strict=True)],
        rule,
        {_CLASS: frozenset({_SCORE})},
    )
    again = [int(turn_id[1:]) for turn_id, _ in flags]
    fresh = [[s for i in again for s in _scores(names[i], arm[i], stage.epochs, rng)] for arm in (chance, left)]
    found = confirm(flags, *fresh, rule.hold_level)
    confirmed = {turn_id for (turn_id, _), each in found.items() if each.confirmed}
    return {turn_id for turn_id, _ in flags}, confirmed, {names[i] for i in damaged}


def _delta(turn_id: str, baseline: float, candidate: float) -> ScoreDelta:
    return ScoreDelta(
        turn_id=turn_id,
        workload=_CLASS,
        conversation_id=turn_id,
        turn_index=0,
        scorer=_SCORE,
        baseline=baseline,
        candidate=candidate,
        drop=baseline - candidate,
    )


def _scores(turn_id: str, chance: float, epochs: int, rng: np.random.Generator) -> list[TurnScore]:
    return [
        TurnScore(turn_id=turn_id, scorer=_SCORE, epoch=epoch, outcome=Outcome.OK, points=100.0 * right)
        for epoch, right in enumerate((rng.random(epochs) < chance).tolist())
    ]
