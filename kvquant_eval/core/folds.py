"""A golden set dealt to folds: what was chosen or calibrated on some conversations is decided on others."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby

from kvquant_eval.core.codec import DataError
from kvquant_eval.core.records import GoldenSet, GoldenTurn

FOLDS = 8
"""How many there are, of as many conversations of each class as can be."""


def fold_of(turns: Iterable[GoldenTurn]) -> dict[str, int]:
    """The fold (0 to ``FOLDS`` - 1) of each conversation by its id, whole even where its turns are of several classes.

    The conversations of a class are dealt in the order of the sha256 of their ids, so the folds of the same classes of
    a set never change, and say nothing about the turns.
    """
    workload = {turn.conversation_id: turn.workload for turn in sorted(turns, key=lambda t: t.workload, reverse=True)}
    order = sorted(workload, key=lambda each: (workload[each], hashlib.sha256(each.encode()).digest()))
    groups = groupby(order, key=lambda each: workload[each])
    return {each: rank % FOLDS for _, mine in groups for rank, each in enumerate(mine)}


def canonical(folds: Sequence[int]) -> tuple[int, ...]:
    """In order; none named where all are, which is the same question."""
    return () if sorted(folds) == list(range(FOLDS)) else tuple(sorted(folds))


def restrict(golden: GoldenSet, folds: Sequence[int], workloads: Iterable[str]) -> GoldenSet:
    """The turns of these folds (none named: all), under the hash of the whole set. Raises DataError where one of the
    ``workloads`` has none.
    """
    if not folds:
        return golden
    dealt = fold_of(golden.turns)
    turns = tuple(turn for turn in golden.turns if dealt[turn.conversation_id] in folds)
    gone = sorted(set(workloads) - {turn.workload for turn in turns})
    if gone:
        rule = f"folds with turns of every class, got {list(folds)}, which have none of {gone[0]!r}"
        raise DataError(f"golden.folds: {rule}; name more, or leave the class out of workload=[...]")
    return replace(golden, turns=turns)
