"""What a number and a name of the configuration may be. Anything else raises ``DataError``."""

from __future__ import annotations

import operator
import re

from kvquant_eval.core.codec import DataError

LONGEST_NAME = 80


def check_name(where: str, name: str, marks: str = "_.-") -> None:
    """A name becomes a folder, a file, a metric: nothing in it may be a path, a wildcard or a terminal's escape.

    ``marks`` are allowed beside ASCII letters and digits.
    """
    if not re.fullmatch(rf"[A-Za-z0-9][A-Za-z0-9{re.escape(marks)}]{{0,{LONGEST_NAME - 1}}}", name):
        rule = f"names of letters, digits and {' '.join(marks)}, at most {LONGEST_NAME} of them and no mark first"
        raise DataError(f"{where}: {rule}, got {name[:80]!r}; rename it")


def check_number(
    where: str,
    value: float,
    *,
    usual: float,
    at_least: float | None = None,
    above: float | None = None,
    up_to: float | None = None,
    below: float | None = None,
) -> None:
    """A number within its bounds, and no NaN; ``usual`` is one that would do."""
    bounds = (
        ("at least", at_least, operator.ge),
        ("above", above, operator.gt),
        ("up to", up_to, operator.le),
        ("below", below, operator.lt),
    )
    given = [(f"{word} {bound}", holds(value, bound)) for word, bound, holds in bounds if bound is not None]
    if not all(inside for _, inside in given):
        rule = " and ".join(word for word, _ in given)
        raise DataError(f"{where}: {rule}, got {str(value)[:80]}; such as {where}={usual}")
