"""Text of unknown origin, made harmless for pages, terminals and tables: nothing invisible, nothing endless."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from itertools import accumulate

LINE_CHARS = 1000
TEXT_LINES = 40
TEXT_CHARS = 10_000
MOST_ACCENTS = 8
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories that show nothing or steer the terminal, the line or the reading direction."""
_BLANK = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
"""Letters and marks that show nothing: those of Unicode's ``Default_Ignorable_Code_Point``."""


def safe(text: str) -> str:
    """``text`` cut to ``TEXT_LINES`` lines of ``LINE_CHARS`` characters, with marks that say how much is gone.

    Every hidden character but tab and line feed becomes a backslash escape, so what is left is legal XML; and so does
    every accent behind ``MOST_ACCENTS`` on one letter, which would be piled over other lines. Lines that
    escapes make longer count for what is shown: all but the first fit into ``TEXT_CHARS`` characters.
    """
    lines = text.split("\n")
    shown = [_visible(head(line, LINE_CHARS)) for line in lines[:TEXT_LINES]]
    fit = bisect_right(list(accumulate(map(len, shown))), TEXT_CHARS) or 1
    return "\n".join(shown[:fit]) + _mark(len(lines) - fit, "lines")


def one_line(text: str) -> str:
    """As ``safe``, where a line feed would begin a line that the writer never meant: it is escaped, and so is a tab."""
    return safe(text.replace("\t", "\\t").replace("\n", "\\n"))


def masked(text: str) -> str:
    """``text`` with the credentials in its addresses masked, to the last ``@`` before a path: passwords have some."""
    return re.sub(r"//[^/\s]*@", "//***@", text)


def writable(text: str) -> str:
    """``text`` as it is, but for lone surrogates, which UTF-8 cannot carry: those become backslash escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def head(text: str, chars: int) -> str:
    """The first ``chars`` characters of ``text``, with a mark that says how much follows."""
    return text[:chars] + _mark(len(text) - chars, "characters")


def tail(text: str, chars: int) -> str:
    """The last ``chars`` characters of ``text``, with a mark that says how much came before."""
    left_out = len(text) - chars
    return text if left_out <= 0 else f"[{left_out:,} characters before] … {text[-chars:]}"


def _mark(left_out: int, unit: str) -> str:
    return f" … [{left_out:,} more {unit}]" if left_out > 0 else ""


def _visible(line: str) -> str:
    if line.isascii() and line.isprintable():
        return line
    shown, accents = [], 0
    for char in line:
        accents = accents + 1 if unicodedata.category(char) in ("Mn", "Me") else 0
        shown.append(_escape(char) if accents > MOST_ACCENTS or _is_hidden(char) else char)
    return "".join(shown)


def _is_hidden(char: str) -> bool:
    return char != "\t" and (unicodedata.category(char) in _HIDDEN or _BLANK.match(char) is not None)


def _escape(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
