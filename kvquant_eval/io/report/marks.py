"""Two texts side by side: bounded, with the words that differ marked, and where they part."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from itertools import groupby

HEAD_CHARS, TAIL_CHARS = 1000, 400
HEAD_LINES, TAIL_LINES = 24, 12
"""Of a text that is cut: what is kept of its begin and of its end."""
MOST_WORDS = 300
"""Of each text that are compared, behind what both begin with and before what both end with: comparing takes time by
the square of it.
"""
AROUND_CHARS = 60
_WORD_END = re.compile(r"\w*$")
_WORD = re.compile(r"\w+\s*|[^\w\s]\s*|\s+")

Pieces = tuple[tuple[str, bool], ...]
"""A text in pieces: (text, whether it differs)."""


def excerpt(text: str) -> str:
    """The text, of a long one its begin and its end, with a line between that counts the characters left out."""
    start = "\n".join(text[:HEAD_CHARS].split("\n")[:HEAD_LINES])
    end = "\n".join(text[-TAIL_CHARS:].split("\n")[-TAIL_LINES:])
    left_out = len(text) - len(start) - len(end)
    return text if left_out <= 0 else f"{start}\n[… {left_out:,} characters left out …]\n{end}"


def differing(left: str, right: str) -> tuple[Pieces, Pieces]:
    """Both texts with the words marked that the other lacks there. Joined, the pieces are the texts. Behind
    ``MOST_WORDS`` differing words nothing is told apart: the rest is marked whole.
    """
    a, b = _WORD.findall(left), _WORD.findall(right)
    first = _common(a, b)
    last = _common(a[first:][::-1], b[first:][::-1])
    ends = [min(len(words) - last, first + MOST_WORDS) for words in (a, b)]
    steps = SequenceMatcher(None, a[first : ends[0]], b[first : ends[1]], autojunk=False).get_opcodes()
    mine = [(low, high, tag != "equal") for tag, low, high, _, _ in steps]
    others = [(low, high, tag != "equal") for tag, _, _, low, high in steps]
    return _joined(a, first, mine, len(a) - last), _joined(b, first, others, len(b) - last)


def parting(left: str, right: str) -> tuple[str, str, str] | None:
    """The text before the first word that differs, and how both go on, about ``AROUND_CHARS`` each; None for equal
    texts.
    """
    if left == right:
        return None
    at = _common(left, right)
    at -= len(_WORD_END.search(left[max(0, at - AROUND_CHARS) : at])[0])  # type: ignore[index]
    before = f"… {left[at - AROUND_CHARS : at]}" if at > AROUND_CHARS else left[:at]
    return before, _on(left[at:]), _on(right[at:])


def _common(left: Sequence[str], right: Sequence[str]) -> int:
    """How many items both begin with."""
    shorter = min(len(left), len(right))
    return next((i for i in range(shorter) if left[i] != right[i]), shorter)


def _joined(words: list[str], first: int, steps: Sequence[tuple[int, int, bool]], last: int) -> Pieces:
    """Words to pieces: ``steps`` are (from, to, whether it differs), counted from word ``first``; what is between them
    and word ``last`` differs. Space behind words is not marked with them.
    """
    parts = [(words[:first], False), *((words[first + low : first + high], differs) for low, high, differs in steps)]
    parts += [(words[sum(len(part) for part, _ in parts) : last], True), (words[last:], False)]
    pieces: list[tuple[str, bool]] = []
    for differs, run in groupby((part for part in parts if part[0]), key=lambda part: part[1]):
        text = "".join(word for part, _ in run for word in part)
        end = len(text.rstrip()) or len(text)
        pieces += [(text[:end], differs), (text[end:], False)] if differs else [(text, False)]
    return tuple(piece for piece in pieces if piece[0])


def _on(text: str) -> str:
    return f"{text[:AROUND_CHARS]} …" if len(text) > AROUND_CHARS else text
