"""Plots as they are drawn: places, shapes, labels as text, and bytes that ten thousand turns can afford."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from kvquant_eval.core.text import head, one_line
from kvquant_eval.io.report.blocks import Panel
from kvquant_eval.io.report.scale import Scale
from kvquant_eval.io.report.svg import LABEL_CHARS, draw

DROPS = Panel("faq", "turns", (("gl", (1.0, 2.0, 3.0), (9.0, 1.0, -4.0)),), 2.0, (-1.0, 1.0))


def parse(drawn: str) -> ET.Element:
    return ET.fromstring(drawn)  # noqa: S314


def marks(drawn: str) -> list[tuple[str, list[str]]]:
    """(Stroke width, relative steps) of every path of marks, small ones first."""
    paths = re.findall(r'<path d="((?:m-?\d+[ -]\d+h0)+)"[^>]*stroke-width="(\d+)"', drawn)
    return [(width, re.findall("m[^h]*", d)) for d, width in paths]


def test_turns_over_the_threshold_have_larger_marks_on_top() -> None:
    (small, pale), (large, strong) = marks(draw(DROPS, "c"))
    assert int(small) < int(large)
    assert (len(pale), len(strong)) == (2, 1)


def test_without_a_threshold_no_turn_stands_out() -> None:
    drawn = draw(replace(DROPS, threshold=None), "c")
    ((_, places),) = marks(drawn)
    assert len(places) == 3
    assert "threshold" not in drawn
    assert "dasharray" not in drawn


def test_below_the_diagonal_by_more_than_the_threshold_stands_out() -> None:
    points = (("gl", (80.0,) * 6, (95.0, 79.0, 78.0, 77.5, 70.0, 60.0)),)
    panel = Panel("faq", "baseline", points, 2.0, None, "candidate", paired=True)
    (_, pale), (_, strong) = marks(draw(panel, "c"))
    assert (len(pale), len(strong)) == (3, 3)


def test_the_threshold_lies_below_the_diagonal() -> None:
    panel = Panel("faq", "x", (("gl", (0.0, 100.0), (0.0, 100.0)),), 10.0, None, "candidate", paired=True)
    line = re.search(r'd="M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)" stroke="var\(--limit\)', draw(panel, "c"))
    assert line
    x0, y0, x1, y1 = map(float, line.groups())
    diagonal = re.search(r'd="M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)" stroke="currentColor"', draw(panel, "c"))
    assert diagonal
    left, bottom, right, top = map(float, diagonal.groups())
    assert (x0, y0) == (pytest.approx(left + (right - left) * 10 / 108, abs=0.2), bottom)
    assert (x1, y1) == (right, pytest.approx(top + (bottom - top) * 10 / 108, abs=0.2))


def test_marks_on_one_place_are_drawn_once_and_counted() -> None:
    many = (("gl", (1.0,) * 5000 + (2.0,) * 5000, tuple(i / 1000 for i in range(10_000))),)
    drawn = draw(replace(DROPS, series=many), "c")
    shown = sum(len(places) for _, places in marks(drawn))
    assert shown < 200
    assert f"gl ({shown} marks for 10,000 turns)" in drawn
    assert len(drawn) < 8000


def test_the_worst_turn_is_never_thinned_away() -> None:
    drops = (50.0, *(i % 7 / 7 for i in range(9999)))
    (_, pale), (_, strong) = marks(draw(replace(DROPS, series=(("gl", (1.0,) * 10_000, drops),)), "c"))
    assert len(strong) == 1
    assert len(pale) <= 7


def test_series_differ_by_shape_and_colour() -> None:
    series = tuple((f"s{i}", (1.0, 2.0), (float(i), 9.0)) for i in range(4))
    drawn = draw(replace(DROPS, series=series), "c")
    assert [drawn.count(sign) for sign in "●■◆▲"] == [1] * 4
    styles = re.findall(
        r'<path d="m[-\d ]+([^m"]+)[^"]*"[^>]*stroke="(var\(--series-\d\))" stroke-linecap="(\w+)"', drawn
    )
    assert {colour for _, colour, _ in styles} == {f"var(--series-{i})" for i in range(4)}
    assert len({shape for shape, _, _ in styles}) == 4
    assert {cap for shape, _, cap in styles if shape == "h0"} == {"round"}, "paper shows no other stroke without length"


def test_a_trend_runs_from_end_to_end_in_the_colour_of_its_series() -> None:
    panel = replace(DROPS, trends=((0, (1.0, 0.0), (3.0, 5.0)),))
    plain, drawn = draw(DROPS, "c"), draw(panel, "c")
    (line,) = re.findall(r'<path d="M([\d. ]+)L([\d. ]+)" stroke="var\(--series-0\)" stroke-width="2"/>', drawn)
    (x0, y0), (x1, y1) = (tuple(map(float, end.split())) for end in line)
    assert x0 < x1
    assert y0 > y1  # upwards: y counts down in SVG
    assert 'stroke-width="2"' not in plain


def test_series_that_stand_aside_do_not_cover_each_other() -> None:
    series = tuple((name, (1.0, 2.0), (3.0, 4.0)) for name in "ab")
    together, apart = (
        re.findall(r'd="m(\d+)', draw(replace(DROPS, series=series, aside=aside), "c")) for aside in (False, True)
    )
    assert together[0] == together[1]
    assert int(apart[1]) - int(apart[0]) == 6


@pytest.mark.parametrize(
    "title", ["$\\frac{1}{0}$", "<b>&amp;", "数 \U0001f600", "%s {0}", "_hidden", "a\nb", "x" * 9999, "\x00\u202e"]
)
def test_every_label_is_text(title: str) -> None:
    drawn = draw(Panel(title, one_line(title), ((title, (1.0,), (2.0,)),), 1.0, (0.0, 1.0)), one_line(title))
    said = "".join(parse(drawn.replace("\x00", "")).itertext())
    assert said.count(head(one_line(title), LABEL_CHARS)) >= 2


def test_one_turn_and_equal_values_have_room() -> None:
    for x, y in (((1.0,), (0.0,)), ((3.0, 3.0), (5.0, 5.0))):
        parse(draw(Panel("t", "x", (("gl", x, y),), None, None), "c"))


@pytest.mark.parametrize(
    ("low", "high", "log", "whole", "expected"),
    [
        (0.0, 10.0, False, False, ["0", "2", "4", "6", "8", "10"]),
        (1.0, 3.0, False, True, ["1", "2", "3"]),
        (0.0, 0.3, False, False, ["0", "0.05", "0.1", "0.15", "0.2", "0.25", "0.3"]),
        (-20.0, 40.0, False, False, ["-20", "-10", "0", "10", "20", "30", "40"]),
        (11_520.0, 23_040.0, False, False, ["12,000", "14,000", "16,000", "18,000", "20,000", "22,000"]),
        (300.0, 6000.0, True, False, ["500", "1,000", "2,000", "5,000"]),
        (0.5, 40_000.0, True, False, ["1", "10", "100", "1,000", "10,000"]),
        (410.0, 900.0, True, False, ["400", "500", "600", "700", "800", "900"]),
    ],
)
def test_ticks_are_round_values(low: float, high: float, log: bool, whole: bool, expected: list[str]) -> None:
    scale = Scale.over((low, high), 0.0, 100.0, log, whole)
    assert [name for _, name in scale.ticks()] == expected
    places = [scale.at(value) for value, _ in scale.ticks()]
    assert places == sorted(places)
    assert 0.0 <= places[0] <= places[-1] <= 100.0


def test_a_logarithmic_axis_spaces_by_ratio() -> None:
    scale = Scale.over((1.0, 100.0), 0.0, 100.0, log=True)
    assert scale.at(10.0) - scale.at(1.0) == pytest.approx(scale.at(100.0) - scale.at(10.0))
    assert scale.at(0.0) == 0.0
