"""JSON is read strictly: what is wrong is named with its place, and what is read can be written again."""

from __future__ import annotations

import json

import pytest
from hypothesis import given

from kvquant_eval.core.strict_json import DEEPEST, BadJson, parse
from tests.unit.core.test_codec import JSON


def refused(data: bytes) -> BadJson:
    with pytest.raises(BadJson) as caught:
        parse(data)
    return caught.value


@given(JSON)
def test_what_json_can_say_is_read_as_json_reads_it(value: object) -> None:
    for ascii_only in (True, False):
        text = json.dumps(value, ensure_ascii=ascii_only, indent=1)
        assert parse(text.encode(errors="replace")) == json.loads(text.encode(errors="replace"))


@pytest.mark.parametrize(
    ("text", "reason", "line", "column"),
    [
        ('{"a": }', "Expecting value", 1, 7),
        ('{"é": x}', "Expecting value", 1, 7),
        ('{"a": 1 "b": 2}', "Expecting ',' delimiter", 1, 9),
        ('{"a": "b', "Unterminated string", 1, 7),
        ('{"a": "b\x01"}', "Invalid control character", 1, 9),
        ("{} {}", "Extra data", 1, 4),
        ('{"a": 1,\n "b": nope}', "Expecting value", 2, 7),
        ('{"NaN": "\\"NaN", "b": NaN}', "NaN", 1, 23),
        ('{"a": [1,\n -Infinity]}', "-Infinity", 2, 2),
        ('{"a": 1e5, "b": 1e500}', "1e500", 1, 17),
        ("[NaNs]", "NaN", 1, 2),
    ],
)
def test_malformed_text_is_named_with_line_and_column(text: str, reason: str, line: int, column: int) -> None:
    error = refused(text.encode())
    assert (error.reason, error.line, error.column) == (reason, line, column)
    assert str(error) == f"{reason} at line {line}, column {column}"


def test_bytes_that_are_no_utf8_are_named_by_byte() -> None:
    error = refused(b'{"a": 1,\n "\xc3\xa9": "\xff"}')
    assert (error.reason, error.line, error.column) == ("the byte 0xff, which is no UTF-8", 2, 9)


def test_a_byte_order_mark_is_named() -> None:
    assert str(refused(b"\xef\xbb\xbf{}")) == "a byte order mark at line 1, column 1"


def test_a_key_given_twice_is_not_dropped() -> None:
    assert str(refused(b'[{"a": 1}, {"a": {"b": 1, "c": 2, "b": 3}}]')) == "the key 'b' twice in one object"
    assert parse(b'[{"a": {"a": 1}}, {"a": 1}]') == [{"a": {"a": 1}}, {"a": 1}]


@pytest.mark.parametrize("text", [r'"\ud800"', r'{"\uDC00x": 1}', r'["\ud83d", "\ude00"]'])
def test_half_a_surrogate_pair_cannot_be_written_again(text: str) -> None:
    assert str(refused(text.encode())) == "half a surrogate pair"


def test_a_whole_surrogate_pair_and_its_looks_are_text() -> None:
    assert parse(rb'"\ud83d\ude00"') == "\U0001f600"
    assert parse(rb'"\\ud800"') == r"\ud800"


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_levels_are_counted(opening: str, closing: str) -> None:
    inner = "" if opening == "[" else "{}"
    levels = DEEPEST - len(inner) // 2
    assert parse((opening * levels + inner + closing * levels).encode())
    levels += 1
    assert str(refused((opening * levels + inner + closing * levels).encode())) == "more than 100 levels"


def test_many_lists_beside_each_other_are_not_deep() -> None:
    assert len(parse(b"[" + b"[],{}," * 500 + b"1]")) == 1001


def test_endless_levels_and_digits_are_refused() -> None:
    assert str(refused(b"[" * 100_000)) == "more than 100 levels"
    assert str(refused(b"1" * 5000)) == "an integer of more than 4300 digits"


def test_a_huge_key_or_number_is_cut_in_the_reason() -> None:
    key = b'"' + b"k" * 10_000 + b'": 1'
    assert len(str(refused(b"{" + key + b"," + key + b"}"))) < 200
    assert len(str(refused(b"1" * 10_000 + b".0"))) < 200
