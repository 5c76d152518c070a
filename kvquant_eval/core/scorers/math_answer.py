"""The final answer of a word problem, compared by value."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from kvquant_eval.core import formula
from kvquant_eval.core.codec import quoted
from kvquant_eval.core.records import GoldenTurn, Json, Measure, RenderedTurn, Replay
from kvquant_eval.core.score import Ask, Question, Score
from kvquant_eval.core.scorers.text import holds
from kvquant_eval.core.text import one_line
from kvquant_eval.core.units import Unit, unit_of

KIND = "math"

_MOST_DIGITS = 100
_UNIT_CHARS = 80
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
_DOLLARS = re.compile(r"\$([^$\n]++)\$|\\\(((?:[^\\\n]|\\(?!\)))*+)\\\)")


@dataclass(frozen=True)
class MathAnswer:
    r"""100 when the final answer of the reply is one of ``expected.answers``, else 0.

    It is what stands in the last ``\boxed{}``, else behind the last ``####``, else behind the last "answer is" (or
    "answer:"), else the last number. Numbers are equal by value, exactly: ``1,200.50`` is ``$1200.5``, ``0.75`` is
    ``3/4`` and ``\frac{3}{4}``, ``1 1/2`` is ``1.5``; where one of both has a percent sign it may be that or a
    hundredth. A unit may be missing and may be spelt out, but two units that are both known and differ (``core.units``)
    are two answers: ``12 km`` is ``12 kilometers`` and ``12``, not ``12 m``, and not ``12000 m``, as nothing is
    converted. An expected answer that is no number must be what was read, but for case and spaces.

    ``symbolic``: a marked answer that is a formula, and none of the above, is compared with formulas among
    ``expected.answers`` by the library math-verify (SymPy): ``2x+3`` is ``3+2x``, ``\sqrt{8}`` is ``2\sqrt{2}``.
    """

    symbolic: bool = False
    measure: Measure = Measure.GENERATED

    @property
    def asks(self) -> str:
        """The kind of question that is asked; empty: none."""
        return KIND if self.symbolic else ""

    def __call__(self, replay: Replay, turn: GoldenTurn, rendered: RenderedTurn) -> Score | Ask | None:
        answers = turn.expected.get("answers")
        if not answers:
            return None
        final = _final(replay.text)
        if final is None:
            return Score(0.0, "no final answer to read", parseable=False)
        read = f"read {quoted(final.number.text if final.number else final.text)} {final.place}"
        if right := next((answer for answer in answers if _same(answer, final)), None):
            return Score(100.0, f"{read}, which is {quoted(right)}{_missing_unit(right, final)}")
        if right := next((answer for answer in answers if _same(answer, final, units=False)), None):
            return Score(0.0, f"{read}, in another unit than {quoted(right)}")
        wrong = Score(0.0, f"{read}, none of {quoted(answers)}")
        return (_ask(answers, final, read, wrong) if self.symbolic else None) or wrong


def _ask(answers: Sequence[str], final: _Final, read: str, wrong: Score) -> Ask | None:
    """The question whether two formulas are one; None where there are no two, or both are plain numbers."""
    answer = formula.latex(final.formula) if final.formula else None
    plain = _whole(_answer(final.formula)) is not None
    found = {
        wanted: tex
        for wanted in answers
        if (tex := formula.latex(wanted)) and not (plain and _whole(_answer(wanted)) is not None)
    }
    if answer is None or not found:
        return None

    def score(said: Json) -> Score:
        same = said["same"]
        if same is not None:
            right = {tex: wanted for wanted, tex in reversed(found.items())}[same]
            return Score(100.0, f"{read}, which is {quoted(right)} by symbolic equality")
        why = said.get("why")
        return replace(wrong, explanation=f"{wrong.explanation}; {one_line(str(why))}") if why else wrong

    return Ask(Question(KIND, {"gold": list(dict.fromkeys(found.values())), "answer": answer}), score)


@dataclass(frozen=True)
class _Number:
    """``unit`` is None where there is none, or none that is known."""

    text: str
    value: Fraction
    percent: bool
    unit: Unit | None = None

    def equals(self, other: _Number, units: bool) -> bool:
        if units and self.unit is not None and other.unit is not None and self.unit != other.unit:
            return False
        if self.percent == other.percent:
            return self.value == other.value
        percent, plain = (self, other) if self.percent else (other, self)
        return plain.value in (percent.value, percent.value / 100)


@dataclass(frozen=True)
class _Final:
    """What was read where, and the number in it; ``formula`` is where a formula would stand (empty: nowhere)."""

    text: str
    place: str
    number: _Number | None
    prose: bool = False
    formula: str = ""


def _final(text: str) -> _Final | None:
    boxed = _last_boxed(text)
    if boxed is not None:
        plain = _answer(boxed)
        return _Final(plain, "in \\boxed{}", _whole(plain), formula=boxed)
    for mark, place in _MARKS:
        raw = _last_behind(mark, text)
        if behind := _answer(raw):
            number = _whole(behind) or _first(behind)
            return _Final(behind, place, number, prose=True, formula=_formula(raw))
    numbers = [match for match in _NUMBER.finditer(_plain(text)) if _value(match) is not None]
    return _Final(numbers[-1][0], "as the last number", _number(numbers[-1])) if numbers else None


def _formula(line: str) -> str:
    """Where a formula would stand in a line of prose: between the last two dollars or LaTeX's brackets, else all."""
    between = _DOLLARS.findall(line)
    return "".join(between[-1]) if between else line.strip(" *")


def _last_boxed(text: str) -> str | None:
    r"""What stands in the last ``\boxed{}`` that is closed behind its beginning; None: there is none."""
    start = text.rfind(_BOXED)
    if start < 0:
        return None
    level = 1
    for brace in re.finditer(r"[{}]", text[start + len(_BOXED) :]):
        level += 1 if brace[0] == "{" else -1
        if not level:
            return text[start + len(_BOXED) :][: brace.start()]
    return None


def _last_behind(mark: re.Pattern[str], text: str) -> str:
    """The first line with text behind the last ``mark``; empty where there is none."""
    end = max((match.end() for match in mark.finditer(text)), default=len(text))
    return text[end:].lstrip(" \t\r\n:*").partition("\n")[0]


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
    if value is None:
        return None
    return _Number(match[0].strip(), value, match[6] is not None, unit_of(match.string[match.end() :][:_UNIT_CHARS]))


def _value(match: re.Match[str]) -> Fraction | None:
    """None for a number too long to be meant, and for one over zero."""
    sign, mixed, above, below, decimal, _ = match.groups()
    if len(match[0]) > _MOST_DIGITS or (below and not int(below)):
        return None
    value = Fraction(decimal.replace(",", "")) if decimal else Fraction(int(above), int(below)) + int(mixed or 0)
    return -value if sign else value


def _missing_unit(answer: str, final: _Final) -> str:
    number = _whole(_answer(answer))
    missing = number is not None and number.unit and final.number is not None and final.number.unit is None
    return " without its unit" if missing else ""


def _same(answer: str, final: _Final, units: bool = True) -> bool:
    wanted = _answer(answer)
    number = _whole(wanted)
    if number is not None:
        return final.number is not None and number.equals(final.number, units)
    return _squeezed(wanted) == _squeezed(final.text) or (final.prose and holds(final.text, wanted))


def _squeezed(text: str) -> str:
    return "".join(text.casefold().split()).rstrip(".")
