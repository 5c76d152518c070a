"""Folds: whole conversations, every class in each, the same ones for ever."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from kvquant_eval.core.codec import DataError
from kvquant_eval.core.folds import FOLDS, fold_of, restrict
from kvquant_eval.core.records import GoldenSet
from kvquant_eval.io.golden import load

CLASSES = ("coding", "faq", "long_context", "math_chain", "tool_calling")


@pytest.fixture(scope="module")
def golden() -> GoldenSet:
    return load(Path(__file__).parents[3] / "golden", CLASSES)


def test_every_class_is_in_every_fold_and_as_often_as_can_be(golden: GoldenSet) -> None:
    dealt = fold_of(golden.turns)
    workload = {turn.conversation_id: turn.workload for turn in golden.turns}
    counts = Counter((workload[conversation], fold) for conversation, fold in dealt.items())
    for name in CLASSES:
        mine = [counts[name, fold] for fold in range(FOLDS)]
        assert min(mine) >= 1
        assert max(mine) - min(mine) <= 1


def test_folds_do_not_depend_on_the_order_of_the_turns_and_do_not_change(golden: GoldenSet) -> None:
    dealt = fold_of(golden.turns)
    assert fold_of(reversed(golden.turns)) == dealt
    assert sorted(each for each, fold in dealt.items() if fold == 0) == [
        "coding-queue-01",
        "coding-tiles-02",
        "faq-campsite-02",
        "faq-outfitter-01",
        "long_context-audit-08",
        "long_context-minutes-02",
        "math_chain-archive-chain-05",
        "math_chain-credits-chain-06",
        "math_chain-nursery-10",
        "tool_calling-order-desk-02",
        "tool_calling-travel-desk-02",
    ]


def test_two_halves_share_no_conversation_and_are_the_whole(golden: GoldenSet) -> None:
    left, right = (restrict(golden, folds, CLASSES) for folds in ([0, 2, 4, 6], [1, 3, 5, 7]))
    sides = [{turn.conversation_id for turn in half.turns} for half in (left, right)]
    assert not sides[0] & sides[1]
    assert len(left.turns) + len(right.turns) == len(golden.turns)
    assert left.sha256 == right.sha256 == golden.sha256
    assert restrict(golden, (), CLASSES) is golden


def test_a_conversation_of_two_classes_has_one_fold(golden: GoldenSet) -> None:
    first = golden.turns[0]
    both = [*golden.turns, *(replace(first, workload=name, turn_id=f"x/{name}") for name in CLASSES)]
    folds = {fold_of(both)[turn.conversation_id] for turn in both if turn.conversation_id == first.conversation_id}
    assert len(folds) == 1


def test_a_class_without_turns_in_the_folds_is_named(golden: GoldenSet) -> None:
    few = GoldenSet(name="few", version="1", sha256="0" * 64, turns=golden.turns[:1])
    with pytest.raises(DataError, match=r"golden\.folds: folds with turns of every class, got \[7\], .* 'faq'"):
        restrict(few, [7], ["faq"])
