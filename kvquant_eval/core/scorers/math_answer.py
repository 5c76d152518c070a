"""The final answer of a word problem, compared by value."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from kvquant_eval.core.codec import quoted
from kvquant_eval.core.records import GoldenTurn, Measure, RenderedTurn, Replay
from kvquant_eval.core.score import Score
from kvquant_eval.core.scorers.text import holds

_MOST_DIGITS = 100
_NUMBER = re.compile(
    r"(?<![\w./])(-?+)"
    r"(?:(?:(\d++)\s++)?(\d++)/(\d++)(?![\d/])|((?:\d{1,3}(?:,\d{3}(?!\d))++|\d++)(?:\.\d++)?+|\.\d++))(\s?%)?+"
)
"""Sign, whole part, numerator and denominator of a fraction, or a decimal; percent. Never begun inside a word."""
_UNIT = re.compile(
    r"(?:(?:\s++|(?=[^\W\d_]{2}|[mgshlLCFKJWVAN°²³]))[^\d+*=<>(){}\\^-]*+(?:\^\{?[23]\}?)?+)?+[.\s]*+", re.ASCII
)
"""What may follow a number that is all of an answer: words, ``km/h``, ``cm^2``. A lone letter may be a variable."""
_EQUATION = re.compile(r"(?:[A-Za-z]\w{0,15}+\s*+=|[\d\s.,+\-*/×÷x^()%]*+=)++")
"""``x =``, ``3 + 4 =``: what stands before the answer."""
_FRACTION = re.compile(r"(\d?)\\[dt]?frac(?:\{(\d++)\}\{(\d++)\}|(\d)(\d))")
_TEXT = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox)\{([^{}]*+)\}")
_NOISE = re.compile(r"\\[!,;:()\[\]]|\\left|\\right|\\circ|\*\*|\\?[$€£¥]|\\(?=%)")
_MARKS = (
    (re.compile(r"####"), "behind '####'"),
    (re.compile(r"\banswer\s*+(?:is\b|:|=)", re.IGNORECASE), "behind 'answer is'"),
)
_BOXED = "\\boxed{"


@dataclass(frozen=True)
class MathAnswer:
    r"""100 when the final answer of the reply is one of ``expected.answers``, else 0.

    It is what stands in the last ``\boxed{}``, else behind the last ``####``, else behind the last "answer is" (or
    "answer:"), else the last number. Numbers are equal by value, exactly: ``1,200.50`` is ``$1200.5``, ``0.75`` is
    ``3/4`` and ``\frac{3}{4}``, ``1 1/2`` is ``1.5``; units are dropped, and where one of both has a percent sign it
    may be that or a hundredth. An expected answer that is no number must be what was read, but for case and spaces.
    """

    measure: Measure = Measure.GENERATED

    def __call__(self, replay: Replay, turn: GoldenTurn, rendered: RenderedTurn) -> Score | None:
        answers = turn.expected.get("answers")
        if not answers:
            return None
        final = _final(replay.text)
        if final is None:
            return Score(0.0, "no final answer to read", parseable=False)
        read = f"read {quoted(final.number.text if final.number else final.text)} {final.place}"
        if right := next((answer for answer in answers if _same(answer, final)), None):
            return Score(100.0, f"{read}, which is {quoted(right)}")
        return Score(0.0, f"{read}, none of {quoted(answers)}")


@dataclass(frozen=True)
class _Number:
    text: str
    value: Fraction
    percent: bool

    def equals(self, other: _Number) -> bool:
        if self.percent == other.percent:
            return self.value == other.value
        percent, plain = (self, other) if self.percent else (other, self)
        return plain.value in (percent.value, percent.value / 100)


@dataclass(frozen=True)
class _Final:
    """What was read where, and the number in it."""

    text: str
    place: str
    number: _Number | None
    prose: bool = False


def _final(text: str) -> _Final | None:
    boxed = _last_boxed(text)
    if boxed is not None:
        return _Final(boxed, "in \\boxed{}", _whole(boxed))
    for mark, place in _MARKS:
        behind = _last_behind(mark, text)
        if behind:
            return _Final(behind, place, _whole(behind) or _first(behind), prose=True)
    numbers = [match for match in _NUMBER.finditer(_plain(text)) if _value(match) is not None]
    return _Final(numbers[-1][0], "as the last number", _number(numbers[-1])) if numbers else None


def _last_boxed(text: str) -> str | None:
    r"""What stands in the last ``\boxed{}`` that is closed behind its beginning; None: there is none."""
    start = text.rfind(_BOXED)
    if start < 0:
        return None
    level = 1
    for brace in re.finditer(r"[{}]", text[start + len(_BOXED) :]):
        level += 1 if brace[0] == "{" else -1
        if not level:
            return _answer(text[start + len(_BOXED) :][: brace.start()])
    return None


def _last_behind(mark: re.Pattern[str], text: str) -> str | None:
    """The first line with text behind the last ``mark``."""
    end = max((match.end() for match in mark.finditer(text)), default=None)
    return None if end is None else _answer(text[end:].lstrip(" \t\r\n:*").partition("\n")[0])


def _answer(text: str) -> str:
    plain = _plain(text).strip()
    equation = _EQUATION.match(plain)
    return plain[equation.end() :].strip() if equation else plain


def _plain(text: str) -> str:
    """Without LaTeX's ornaments and currencies; fractions with a slash."""
    text = text.replace("−", "-").replace("{,}", ",")
    text = _FRACTION.sub(
        lambda m: f"{m[1]} {m[2] or m[4]}/{m[3] or m[5]}" if m[1] else f"{m[2] or m[4]}/{m[3] or m[5]}", text
    )
    return _NOISE.sub("", _TEXT.sub(r" \1 ", text))


def _whole(plain: str) -> _Number | None:
    """The number that ``plain`` is, with its unit; None where it is more than that."""
    match = _NUMBER.match(plain)
    return _number(match) if match and _UNIT.fullmatch(plain, match.end()) else None


def _first(plain: str) -> _Number | None:
    match = _NUMBER.search(plain)
    return _number(match) if match else None


def _number(match: re.Match[str]) -> _Number | None:
    value = _value(match)
    return None if value is None else _Number(match[0].strip(), value, match[6] is not None)


def _value(match: re.Match[str]) -> Fraction | None:
    """None for a number too long to be meant, and for one over zero."""
    sign, mixed, above, below, decimal, _ = match.groups()
    if len(match[0]) > _MOST_DIGITS or (below and not int(below)):
        return None
    value = Fraction(decimal.replace(",", "")) if decimal else Fraction(int(above), int(below)) + int(mixed or 0)
    return -value if sign else value


def _same(answer: str, final: _Final) -> bool:
    wanted = _answer(answer)
    number = _whole(wanted)
    if number is not None:
        return final.number is not None and number.equals(final.number)
    return _squeezed(wanted) == _squeezed(final.text) or (final.prose and holds(final.text, wanted))


def _squeezed(text: str) -> str:
    return "".join(text.casefold().split()).rstrip(".")
