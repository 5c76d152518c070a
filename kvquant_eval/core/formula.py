"""Whether a text is a formula, and the LaTeX that it is: only that may go to a library of symbolic mathematics."""

from __future__ import annotations

import re

LONGEST, DEEPEST = 300, 8
"""Characters of a formula, and brackets inside each other."""

_TEXT = re.compile(r"\\(?:text|mathrm|textbf|mathbf|mbox|textit)\{[^{}]*+\}")
_UNICODE = {
    "−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": "/", "π": r"\pi ", "∞": r"\infty ",
    "√": r"\sqrt ", "≤": r"\leq ", "≥": r"\geq ", "±": r"\pm ", "²": "^2", "³": "^3", "\u222a": r"\cup ", "**": "^",
    "½": r"\frac{1}{2}", "θ": r"\theta ", "\u03b1": r"\alpha ", "β": r"\beta ", r"\left": "", r"\right": "", r"\,": " ",
    r"\!": "", r"\;": " ", r"\displaystyle": "", r"\dfrac": r"\frac", r"\tfrac": r"\frac", r"\(": "", r"\)": "",
    "$": "",
}  # fmt: skip
_LETTERS = re.compile(r"\\?[A-Za-z]++")
_OTHERS = re.compile(r"[\d\s+\-*/^=<>()\[\]{}|.,!_&%:\\]*+", re.ASCII)
_FUNCTIONS = "sin cos tan cot sec csc sinh cosh tanh arcsin arccos arctan ln log exp sqrt"
_GREEK = "pi theta alpha beta gamma delta lambda mu phi omega sigma"
_SIGNS = "cdot times div pm mp infty leq geq le ge neq ne lt gt cup cap in circ"
_COMMANDS = frozenset(f"{_FUNCTIONS} {_GREEK} {_SIGNS} frac binom begin end pmatrix bmatrix matrix".split())
_WORDS = frozenset(f"{_FUNCTIONS} pi pmatrix bmatrix matrix".split())


def latex(text: str) -> str | None:
    """``text`` as LaTeX; None where it is no formula: too long, too deep, or with a word, a command or a sign that
    formulas do not have.

    Two letters may stand for a product; a longer word must be the name of a function. So nothing gets through that a
    parser could take for an attribute, a call or a name of Python.
    """
    if len(text) > LONGEST:
        return None
    made = _TEXT.sub(" ", text)
    for sign, written in _UNICODE.items():
        made = made.replace(sign, written)
    made = made.strip().rstrip(".").strip()
    if not made or "__" in made or not _OTHERS.fullmatch(_LETTERS.sub("", made)):
        return None
    if not all(_is_known(word) for word in _LETTERS.findall(made)) or _depth(made) > DEEPEST:
        return None
    return made


def _is_known(word: str) -> bool:
    return word[1:] in _COMMANDS if word.startswith("\\") else len(word) <= 2 or word in _WORDS


def _depth(text: str) -> int:
    """Most brackets inside each other: a grammar takes exponentially long for them."""
    level = deepest = 0
    for char in text:
        level = max(0, level + (char in "([{") - (char in ")]}"))
        deepest = max(deepest, level)
    return deepest
