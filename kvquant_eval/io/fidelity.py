"""The arms of a run beside their baselines, token by token, out of the journals."""

from __future__ import annotations

from collections.abc import Sequence

from kvquant_eval.core.arms import Arm
from kvquant_eval.core.attribution import Pair, pairs
from kvquant_eval.core.fidelity import TurnFidelity, measure
from kvquant_eval.core.records import Measure, RenderedTurn, Replay, Role
from kvquant_eval.io.journal import Journal
from kvquant_eval.io.runfolder import RunFolder


def read(run: RunFolder, arms: Sequence[Arm], turns: Sequence[RenderedTurn]) -> dict[Pair, tuple[TurnFidelity, ...]]:
    """Every planned turn, in the order of ``turns``, of every arm beside its baseline, and of every native arm beside
    its reference.

    Journals are read block by block: all most probable tokens at once take twenty times the memory of all the rest.
    """
    compared = [*((arm.baseline, arm.name) for arm in arms if arm.role is not Role.BASELINE), *pairs(arms)]
    names = dict.fromkeys(name for pair in compared for name in pair)
    stored = {name: _Stored(run.arm(name).journal) for name in names}
    place = {turn.turn_id: turn for turn in turns}
    found: dict[Pair, dict[str, TurnFidelity]] = {pair: {} for pair in compared}
    for index in sorted({index for each in stored.values() for index in each.places}):
        forced = {name: each.forced(index) for name, each in stored.items()}
        for left, right in compared:
            for turn_id in forced[left].keys() | forced[right].keys():
                measured = measure(place[turn_id], forced[left].get(turn_id), forced[right].get(turn_id))
                found[left, right][turn_id] = measured
    return {
        pair: tuple(mine.get(turn.turn_id) or measure(turn, None, None) for turn in turns)
        for pair, mine in found.items()
    }


class _Stored:
    """An arm's journal, to be read in any order: ``repeat`` ran its blocks in another one."""

    def __init__(self, journal: Journal) -> None:
        self.journal, self.places = journal, journal.places()

    def forced(self, index: int) -> dict[str, Replay]:
        """The forced replays of a block by turn id; none where the arm does not have the block.

        Forced decoding has no sampling, so there is one epoch of it.
        """
        block = self.journal.read(self.places[index]) if index in self.places else None
        return {r.turn_id: r for r in (block.replays if block else ()) if r.measure is Measure.FORCED}
