"""The noise of a control, from drops that are known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kvquant_eval.core.codec import DataError, from_data, to_data
from kvquant_eval.core.noise import ScoreNoise, by_conversation, correlation, score_noise
from kvquant_eval.core.records import ScoreDelta


def delta(conversation: int, turn: int, drop: float, baseline: float = 60.0) -> ScoreDelta:
    return ScoreDelta(
        turn_id=f"{conversation}/{turn}", workload="faq", conversation_id=str(conversation), turn_index=turn,
        scorer="gl", baseline=baseline, candidate=baseline - drop, drop=drop,
    )  # fmt: skip


def test_known_values() -> None:
    drops = [0.0, 3.0, -1.0, -5.0]
    found = score_noise([delta(i // 2, i % 2, drop) for i, drop in enumerate(drops)], 2.0)
    assert (found.n_turns, found.n_conversations, found.disagreement) == (4, 2, 0.5)
    assert found.turn_sd == pytest.approx(np.std(drops, ddof=1))
    assert found.quantiles == pytest.approx(tuple(np.quantile([0, 1, 3, 5], [0.5, 0.9, 0.99])))
    assert found.mean_sd == pytest.approx(math.sqrt(2 * (4.5**2 + 4.5**2)) / 4)  # sums 3 and -6, of a mean of -0.75


def test_one_conversation_has_no_standard_error() -> None:
    assert score_noise([delta(0, 0, 1.0), delta(0, 1, 2.0)], 2.0).mean_sd is None


def test_drops_that_a_conversation_shares_are_correlated() -> None:
    owners = [str(i // 5) for i in range(100)]
    rng = np.random.default_rng(3)
    shared = np.repeat(rng.normal(0, 1, 20), 5)
    assert correlation(list(shared), owners) == pytest.approx(1.0)
    assert abs(correlation(list(rng.normal(0, 1, 100)), owners)) < 0.2
    assert correlation(list(shared + rng.normal(0, 1, 100)), owners) == pytest.approx(0.5, abs=0.2)
    assert correlation([0.0] * 100, owners) == 0.0
    assert correlation([1.0, 2.0], ["a", "b"]) == 0.0


def test_turns_without_headroom_can_be_left_out() -> None:
    found = score_noise([delta(0, 0, 1.0), delta(0, 1, 9.0, baseline=10.0), delta(1, 0, 2.0)], 2.0)
    assert [list(drops) for drops in by_conversation(found, 20.0)] == [[1.0], [2.0]]


def test_it_is_read_back_as_it_was() -> None:
    found = score_noise([delta(0, 0, 1.25), delta(1, 0, -0.5)], 2.0)
    assert from_data(ScoreNoise, to_data(found), "noise") == found


@pytest.mark.parametrize("change", [{"drops": [1.0]}, {"drops": [1.0, 500.0]}, {"baseline": [-1.0, 60.0]}])
def test_what_cannot_be_is_refused(change: dict[str, list[float]]) -> None:
    data = to_data(score_noise([delta(0, 0, 1.25), delta(1, 0, -0.5)], 2.0))
    with pytest.raises(DataError):
        from_data(ScoreNoise, {**data, **change}, "noise")
