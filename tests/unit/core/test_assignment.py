"""The best pairing, against trying all of them."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvquant_eval.core.assignment import best


@st.composite
def gains(draw: st.DrawFn) -> list[list[float]]:
    rows = draw(st.integers(0, 4))
    columns = draw(st.integers(rows, 5))
    number = st.sampled_from((0.0, 0.5, 0.75, 1.0)) | st.floats(0, 1)
    return draw(st.lists(st.lists(number, min_size=columns, max_size=columns), min_size=rows, max_size=rows))


@given(gains())
def test_no_other_pairing_is_better(gain: list[list[float]]) -> None:
    found = best(gain)
    assert len(set(found)) == len(gain)
    total = sum(row[column] for row, column in zip(gain, found, strict=True))
    columns = range(len(gain[0])) if gain else ()
    for other in permutations(columns, len(gain)):
        assert total >= sum(row[column] for row, column in zip(gain, other, strict=True)) - 1e-9


def test_the_first_row_gives_way() -> None:
    assert best([[1.0, 0.9], [1.0, 0.0]]) == [1, 0]
    assert sum(best([[0.5] * 30] * 30)) == pytest.approx(sum(range(30)))
