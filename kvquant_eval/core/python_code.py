"""Python in text of unknown origin: found and parsed, never run."""

from __future__ import annotations

import ast
import re
import warnings

UNPARSEABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
"""What ``parsed`` raises for what is no Python, or too deep."""
_FENCE = re.compile(r"```(?:python|py)?\s*\n(.*?)(?:```|$)", re.DOTALL)


def code_of(reply: str) -> str:
    """What stands in the first Markdown fence of a reply, closed or not; all of one without a fence."""
    fence = _FENCE.search(reply)
    return fence[1] if fence else reply


def parsed(code: str) -> ast.Module:
    """The syntax tree. Raises ``UNPARSEABLE``; what is only worth a warning is nobody's business here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(code)


def problem(code: str) -> str:
    """Why ``code`` is no statement or more of Python (empty: it is)."""
    try:
        return "" if parsed(code).body else "nothing that does anything"
    except SyntaxError as error:
        return f"{error.msg} in line {error.lineno}"
    except UNPARSEABLE as error:
        return str(error) or type(error).__name__
