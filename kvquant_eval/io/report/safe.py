"""Text of unknown origin made harmless for any page: nothing invisible, nothing endless."""

from __future__ import annotations

import unicodedata

LINE_CHARS = 1000
TEXT_LINES = 40
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories that show nothing or steer the terminal, the line or the reading direction."""


def safe(text: str) -> str:
    """``text`` cut to ``TEXT_LINES`` lines of ``LINE_CHARS`` characters, with marks that say how much is gone.

    Every hidden character but tab and line feed becomes a backslash escape, so what is left is legal XML.
    """
    lines = text.split("\n")
    kept = [_visible(head(line, LINE_CHARS)) for line in lines[:TEXT_LINES]]
    return "\n".join(kept) + _mark(len(lines) - TEXT_LINES, "lines")


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
    return "".join(_escape(char) if _is_hidden(char) else char for char in line)


def _is_hidden(char: str) -> bool:
    return char != "\t" and unicodedata.category(char) in _HIDDEN


def _escape(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
