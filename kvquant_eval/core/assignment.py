"""Who gets what, so that the whole is best."""

from __future__ import annotations

import math
from collections.abc import Sequence


def best(gain: Sequence[Sequence[float]]) -> list[int]:
    """The column of each row so that the sum of ``gain[row][column]`` is greatest, no column taken twice.

    Needs at least as many columns as rows; takes rows^2 x columns steps. The Hungarian method with potentials (Kuhn,
    1955; Jonker and Volgenant, 1987): row after row is given a column, along the cheapest path of exchanges.
    """
    rows, columns = len(gain), len(gain[0]) if gain else 0
    of_row, of_column = [0.0] * (rows + 1), [0.0] * (columns + 1)
    owner = [0] * (columns + 1)  # rows and columns count from 1; 0: nobody
    for row in range(1, rows + 1):
        owner[0], column = row, 0
        cost, before, seen = [math.inf] * (columns + 1), [0] * (columns + 1), [0]
        free = set(range(1, columns + 1))
        while owner[column]:
            here = owner[column]
            for c in free:
                way = -gain[here - 1][c - 1] - of_row[here] - of_column[c]
                if way < cost[c]:
                    cost[c], before[c] = way, column
            column = min(free, key=cost.__getitem__)
            least = cost[column]
            for c in seen:
                of_row[owner[c]] += least
                of_column[c] -= least
            for c in free:
                cost[c] -= least
            free.remove(column)
            seen.append(column)
        while column:
            owner[column], column = owner[before[column]], before[column]
    return [owner.index(row, 1) - 1 for row in range(1, rows + 1)]
