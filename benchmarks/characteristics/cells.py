"""The grid: what is simulated, each cell named by all that it varies."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

EVERYTHING = 100.0
MARGIN = 2.0
"""Points that the mean may drop."""
ALONE, ROUNDS, LONG = (1, 1), (1, 12), (12, 12)
"""Least and most turns of a conversation; sizes are drawn evenly between them."""


class Where(StrEnum):
    """What a drop falls on: every turn; turns from the middle of the longest conversations on; all late turns of a few
    conversations; a few whole conversations; a few of the longest conversations; single turns.
    """

    UNIFORM = "uniform"
    LATE = "late turns"
    LATE_BREAK = "breaks of late turns"
    BREAK = "breaks of conversations"
    LONGEST_BREAK = "breaks of the longest conversations"
    TURN_BREAK = "breaks of turns"


class Score(StrEnum):
    """Yes or no (0 or 100 points), or graded between 60 and 70 points, as golden likelihoods are."""

    BINARY = "binary"
    GRADED = "graded"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One way in which turns may come about.

    About ``turns`` turns in conversations of ``sizes[0]`` to ``sizes[1]``; ``shared`` (0..1) is the correlation of the
    latent variables of turns of one conversation. ``disagreement`` (0..1) is the share of pairs (of epochs) that differ
    where nothing is lost; ``noise`` (points) the standard deviation of graded ones, Student's t with 3 degrees of
    freedom where ``heavy``. ``difficulty`` are the parameters of the Beta distribution of a turn's chance of success.
    ``drop`` (points) is the true mean drop; a break loses ``loss`` points, all there are where it is ``EVERYTHING``.
    """

    score: Score
    turns: int
    drop: float
    sizes: tuple[int, int] = ALONE
    shared: float = 0.0
    disagreement: float = 0.0
    epochs: int = 1
    noise: float = 1.0
    heavy: bool = False
    difficulty: tuple[float, float] = (0.7, 0.3)
    where: Where = Where.UNIFORM
    loss: float = EVERYTHING
    margin: float = MARGIN
    bootstrap: bool = False

    @property
    def conversations(self) -> int:
        return max(2, round(2 * self.turns / sum(self.sizes)))

    @property
    def name(self) -> str:
        least, most = self.sizes
        size = "" if most == 1 else f" of {most} turns" if least == most else f" of {least}-{most} turns"
        unit = f"{self.turns} turns" if most == 1 else f"{self.conversations} conversations{size}"
        parts = [f"{self.score}" + (f" K={self.epochs}" if self.epochs > 1 else ""), unit]
        parts += [f"A/A {self.disagreement:.0%}"] if self.disagreement else ["no noise"]
        parts += [f"r={self.shared:g}"] if self.shared else []
        parts += [f"Beta({self.difficulty[0]:g}, {self.difficulty[1]:g})"] if self.difficulty != (0.7, 0.3) else []
        parts += ["heavy tails"] if self.heavy else []
        parts += [f"sd {self.noise:g}"] if self.noise != 1.0 else []
        if self.drop:
            where = "" if self.where is Where.UNIFORM else f" in {self.where}"
            lost = "all" if self.loss == EVERYTHING else f"{self.loss:g}"
            breaks = f", each {lost}" if "breaks" in self.where else ""
            parts += [f"drop {self.drop:g}{where}{breaks}"]
        parts += [f"margin {self.margin:g}"] if self.margin != MARGIN else []
        return ", ".join(parts)


def binary(turns: int, drop: float, disagreement: float, **changes: object) -> Cell:
    """Yes or no."""
    return Cell(score=Score.BINARY, turns=turns, drop=drop, disagreement=disagreement, **changes)  # type: ignore[arg-type]


def graded(turns: int, drop: float, disagreement: float = 0.0, **changes: object) -> Cell:
    """Golden likelihoods."""
    return Cell(score=Score.GRADED, turns=turns, drop=drop, disagreement=disagreement, **changes)  # type: ignore[arg-type]


ROUND = {"sizes": ROUNDS, "shared": 0.5}
SETS = {"sizes": LONG, "shared": 0.5}


def controls() -> list[Cell]:
    """Nothing is lost."""
    return [
        *(binary(n, 0, 0) for n in (60, 200)),
        *(binary(n, 0, 0.05) for n in (30, 200, 2000)),
        binary(200, 0, 0.1, bootstrap=True),
        *(binary(n, 0, 0.2) for n in (30, 200, 2000)),
        binary(200, 0, 0.05, difficulty=(0.21, 0.09)),
        binary(200, 0, 0.2, difficulty=(7, 3)),
        *(binary(n, 0, d, **ROUND) for d in (0.05, 0.2) for n in (60, 200, 600, 2000)),
        *(binary(12 * c, 0, 0.2, **SETS) for c in (2, 3, 4, 6)),
        *(binary(n, 0, 0.2, epochs=4) for n in (30, 200)),
        binary(200, 0, 0.2, epochs=16),
        binary(600, 0, 0.2, epochs=4, **ROUND),
        graded(200, 0, 1.0),
        *(graded(n, 0, 0.1, **ROUND) for n in (30, 200)),
        *(graded(n, 0, 1.0, **ROUND) for n in (30, 200, 2000)),
        graded(200, 0, 0.1, noise=5.0, bootstrap=True, **ROUND),
        graded(200, 0, 1.0, heavy=True, **ROUND),
        *(graded(12 * c, 0, 1.0, **SETS) for c in (2, 6)),
    ]


def margins() -> list[Cell]:
    """The drop is the margin: to promote is an error, with a chance of 5% at most."""
    return [
        *(binary(n, 2, 0) for n in (30, 200)),
        *(binary(n, 2, 0.05) for n in (60, 200, 2000)),
        binary(200, 2, 0.1, bootstrap=True),
        *(binary(n, 2, 0.2) for n in (60, 200, 2000)),
        binary(600, 2, 0.05, difficulty=(0.21, 0.09)),
        binary(600, 2, 0.2, difficulty=(7, 3)),
        *(binary(n, 10, 0.1, margin=10.0) for n in (40, 200)),
        *(binary(n, 2, d, **ROUND) for d in (0.05, 0.2) for n in (60, 200, 600, 2000)),
        *(binary(12 * c, 2, 0.2, **SETS) for c in (2, 4, 6)),
        *(binary(12 * c, 10, 0.2, margin=10.0, **SETS) for c in (6, 12)),
        *(binary(n, 2, 0.2, epochs=4) for n in (30, 200)),
        *(binary(n, 2, 0.2, epochs=16) for n in (30, 200)),
        binary(600, 2, 0.2, epochs=4, **ROUND),
        *(binary(n, 2, 0.05, where=Where.LATE, **ROUND) for n in (200, 2000)),
        *(graded(n, 2, 1.0, where=Where.LATE, bootstrap=n == 600, **ROUND) for n in (200, 600)),
        *(graded(n, 2, 1.0, bootstrap=n == 30, **ROUND) for n in (30, 200)),
        *(graded(12 * c, 2, 1.0, **SETS) for c in (2, 6)),
    ]


def breaks() -> list[Cell]:
    """The drop is the margin, and made of rare breaks."""
    mixed = {"sizes": ROUNDS}
    return [
        graded(200, 2, where=Where.TURN_BREAK, loss=10.0),
        *(graded(n, 2, where=Where.TURN_BREAK, loss=40.0) for n in (30, 200)),
        *(graded(n, 2, where=Where.TURN_BREAK, bootstrap=n in (60, 120, 200)) for n in (30, 60, 120, 200, 600)),
        graded(600, 2, where=Where.TURN_BREAK, bootstrap=True, **mixed),
        graded(200, 2, 0.1, where=Where.TURN_BREAK, bootstrap=True, noise=5.0),
        *(graded(n, 2, where=Where.BREAK, loss=10.0, **mixed) for n in (200, 600)),
        *(graded(n, 2, where=Where.BREAK, loss=40.0, **mixed) for n in (200, 600, 2000)),
        *(graded(n, 2, where=Where.BREAK, bootstrap=n == 600, **mixed) for n in (200, 600, 1000, 2000)),
        *(graded(n, 2, where=Where.LATE_BREAK, bootstrap=n == 600, **mixed) for n in (200, 600, 2000)),
        *(graded(n, 2, where=Where.LONGEST_BREAK, bootstrap=n == 1000, **mixed) for n in (700, 1000, 1200, 2000)),
        graded(600, 2, 1.0, where=Where.BREAK, loss=40.0, **mixed),
        *(graded(12 * c, 2, where=Where.BREAK, sizes=LONG) for c in (2, 6)),
        binary(200, 2, 0.05, where=Where.BREAK, sizes=LONG),
        binary(2000, 2, 0.05, where=Where.LONGEST_BREAK, **mixed),
    ]


def powers() -> list[Cell]:
    """The drop is not the margin: what is found of it."""
    return [
        *(binary(200, drop, 0.1) for drop in (5, 10, 40)),
        *(binary(600, drop, 0.1, **ROUND) for drop in (5, 10)),
        *(binary(200, drop, 0.2, epochs=4) for drop in (5, 10)),
        *(graded(1000, drop, 1.0, **ROUND) for drop in (0.5, 1)),
        graded(60, 40, 1.0, **ROUND),
        graded(200, 5, 1.0, **ROUND),
        graded(600, 5, 1.0, where=Where.LATE, **ROUND),
        graded(600, 5, 1.0, where=Where.BREAK, **ROUND),
    ]


def grid() -> dict[str, list[Cell]]:
    """All cells by what is asked of them."""
    return {"controls": controls(), "margins": margins(), "breaks": breaks(), "powers": powers()}
