"""The second test of flags: exact p values, Holm decides, Benjamini and Hochberg order the reading list."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kvquant_eval.core.confirm import confirm, to_confirm
from kvquant_eval.core.policy import ScorePolicy, ScoreRole
from kvquant_eval.core.records import Outcome, TurnScore
from tests.fakes.records import delta, one_class

Epochs = Sequence[float | None]


def scores(points: dict[str, Epochs], scorer: str = "s") -> list[TurnScore]:
    return [
        TurnScore(turn_id=turn, scorer=scorer, epoch=i, outcome=Outcome.OK, points=each)
        for turn, epochs in points.items()
        for i, each in enumerate(epochs)
    ]


def right(count: int, of: int = 8) -> list[float | None]:
    return [100.0] * count + [0.0] * (of - count)


def test_yes_no_epochs_have_fishers_exact_p() -> None:
    """8 of 8 against 2 of 8: C(8, 2) / C(16, 6) = 28 / 8008."""
    found = confirm([("t", "s")], scores({"t": right(8)}), scores({"t": right(2)}), 0.01)["t", "s"]
    assert found.p == found.holm == found.q == pytest.approx(28 / 8008)
    assert (found.epochs, found.drop, found.confirmed, found.listed) == (8, 75.0, True, True)


def test_graded_epochs_have_mann_and_whitneys_exact_p() -> None:
    """All three above all three: one of C(6, 3) = 20 orders."""
    found = confirm([("t", "s")], scores({"t": [50, 60, 70]}), scores({"t": [10, 20, 30]}), 0.01)["t", "s"]
    assert found.p == pytest.approx(1 / 20)
    assert (found.drop, found.confirmed) == (40.0, False)


@pytest.mark.parametrize(("baseline", "arm"), [(right(8), right(8)), ([42.0] * 8, [42.0] * 8), (right(0), right(8))])
def test_the_same_epochs_and_gains_confirm_nothing(baseline: Epochs, arm: Epochs) -> None:
    found = confirm([("t", "s")], scores({"t": baseline}), scores({"t": arm}), 0.01)["t", "s"]
    assert found.p == pytest.approx(1.0)
    assert not found.confirmed
    assert not found.listed


def test_holm_decides_and_benjamini_hochberg_lists() -> None:
    """Chances 28 / 8008, 0.1 (8 against 5 of 8: 56 / 560) and 1: times 3, 2, 1 by Holm; by 3 / rank by the other."""
    flags = [("a", "s"), ("b", "s"), ("c", "s")]
    arm = scores({"c": right(2), "a": right(5), "b": right(8)})
    found = confirm(flags, scores({turn: right(8) for turn in "abc"}), arm, 0.01)
    assert [found[key].p for key in flags] == pytest.approx([0.1, 1.0, 28 / 8008])
    assert [found[key].holm for key in flags] == pytest.approx([0.2, 1.0, 3 * 28 / 8008])
    assert [found[key].q for key in flags] == pytest.approx([0.15, 1.0, 3 * 28 / 8008])
    assert [found[key].listed for key in flags] == [False, False, True]
    assert not any(each.confirmed for each in found.values())  # 0.0035 alone is under 0.01, 0.0105 among three is not
    assert confirm(flags[:1] + flags[2:], scores({turn: right(8) for turn in "ac"}), arm, 0.01)["c", "s"].confirmed


@pytest.mark.parametrize(
    ("baseline", "arm"),
    [
        (right(8), [*right(0, 7), None]),
        ([*right(7, 7), None], right(0)),
        (right(8), right(0, 7)),
        ([], right(0)),
        (right(8), []),
    ],
)
def test_a_flag_with_an_unscored_epoch_or_one_too_few_stays_out(baseline: Epochs, arm: Epochs) -> None:
    """It is in no family either: the other flag's p is its own."""
    left, other = scores({"t": baseline, "u": right(8)}), scores({"t": arm, "u": right(2)})
    found = confirm([("t", "s"), ("u", "s")], left, other, 0.01)
    assert set(found) == {("u", "s")}
    assert found["u", "s"].holm == pytest.approx(28 / 8008)


def test_only_flags_are_tested() -> None:
    assert confirm([], scores({"t": right(8)}), scores({"t": right(0)}), 0.01) == {}


def test_drops_over_the_threshold_of_noisy_scores_of_the_hardest_class_are_tested_again() -> None:
    scores = {
        "s": ScorePolicy(role=ScoreRole.GATE, margin=2),
        "kl": ScorePolicy(role=ScoreRole.REPORT, margin=2),
        "exact": ScorePolicy(role=ScoreRole.GATE, margin=2),
    }
    policy = one_class(scores={"hard": scores, "easy": scores}, critical_turns=("e1",))
    deltas = [
        delta("t2", 9.0), delta("t1", 2.1), delta("t3", 2.0), delta("t4", None), delta("t5", 9.0, scorer="exact"),
        delta("t6", 9.0, scorer="kl"), delta("e0", 9.0, workload="easy"), delta("e1", 9.0, workload="easy"),
    ]  # fmt: skip
    noisy = {"hard": frozenset({"s", "kl"}), "easy": frozenset({"s"})}
    assert to_confirm(deltas, policy, noisy) == (("e1", "s"), ("t1", "s"), ("t2", "s"))
    assert to_confirm(deltas, policy, {}) == ()
