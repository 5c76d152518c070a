"""The arms of a run beside their baselines, token by token, out of the journals."""

from __future__ import annotations

from collections.abc import Sequence

from kvquant_eval.core.arms import Arm
from kvquant_eval.core.fidelity import TurnFidelity, measure
from kvquant_eval.core.records import Measure, RenderedTurn, Replay, Role
from kvquant_eval.io.journal import Journal
from kvquant_eval.io.runfolder import RunFolder


def read(run: RunFolder, arms: Sequence[Arm], turns: Sequence[RenderedTurn]) -> dict[str, tuple[TurnFidelity, ...]]:
    """Every planned turn of every arm that has a baseline to be compared with, in the order of ``turns``.

    Journals are read block by block: all most probable tokens at once take twenty times the memory of all the rest.
    """
    stored = {arm.name: _Stored(run.arm(arm.name).journal) for arm in arms}
    compared = [arm for arm in arms if arm.role is not Role.BASELINE]
    place = {turn.turn_id: turn for turn in turns}
    found: dict[str, dict[str, TurnFidelity]] = {arm.name: {} for arm in compared}
    for index in sorted({index for each in stored.values() for index in each.places}):
        baselines = {name: stored[name].forced(index) for name in {arm.baseline for arm in compared}}
        for arm in compared:
            base, mine = baselines[arm.baseline], stored[arm.name].forced(index)
            for turn_id in base.keys() | mine.keys():
                found[arm.name][turn_id] = measure(place[turn_id], base.get(turn_id), mine.get(turn_id))
    return {
        name: tuple(mine.get(turn.turn_id) or measure(turn, None, None) for turn in turns)
        for name, mine in found.items()
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
