"""JSON of a schema, whatever the schema and the reply."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvquant_eval.core import schema
from kvquant_eval.core.score import Score
from kvquant_eval.core.scorers.json_schema import JsonSchema
from tests.fakes.records import golden_turn, rendered_turn, reply

ORDER = {
    "type": "object",
    "properties": {"id": {"type": "string", "pattern": "^A-[0-9]+$"}, "lines": {"$ref": "#/$defs/lines"}},
    "required": ["id"],
    "additionalProperties": False,
    "$defs": {"lines": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}},
}
TREE = {"type": "array", "items": {"anyOf": [{"$ref": "#"}, {"$ref": "#", "maxItems": 5}]}}


def score(text: str, wanted: Any = ORDER) -> Score:
    found = JsonSchema()(reply(text), golden_turn(expected={"json_schema": wanted}), rendered_turn())
    assert found is not None
    return found


@pytest.mark.parametrize(
    "text",
    [
        '{"id": "A-1"}',
        ' {"id": "A-1", "lines": [1, 2]}\n',
        'Here it is:\n```json\n{"id": "A-1"}\n```\nDone.',
        '```\n{"id": "A-1"}\n```',
        '```JSON  \n{"id": "A-1"}',
    ],
)
def test_of_the_schema(text: str) -> None:
    assert score(text) == Score(100.0, "of the schema")


@pytest.mark.parametrize(
    ("text", "explanation"),
    [
        ("{}", "not of the schema: it: required \"['id']\", got '{}'"),
        ('{"id": "B-1"}', "not of the schema: ['id']: pattern '^A-[0-9]+$', got 'B-1'"),
        ('{"id": 1}', "not of the schema: ['id']: type 'string', got '1'"),
        ('{"id": "A-1", "x": 1}', "not of the schema: it: additionalProperties 'False', got "),
        ('{"id": "A-1", "lines": [1, "a"]}', "not of the schema: ['lines'][1]: type 'integer', got 'a'"),
        ('{"id": "A-1", "lines": [1, 1.0]}', "not of the schema: ['lines']: uniqueItems 'True', got '[1, 1.0]'"),
        ("[]", "not of the schema: it: type 'object', got '[]'"),
    ],
)
def test_not_of_the_schema(text: str, explanation: str) -> None:
    found = score(text)
    assert (found.points, found.parseable) == (0.0, True)
    assert found.explanation.startswith(explanation)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I cannot.",
        '{"id": "A-1"',
        'It is {"id": "A-1"}',
        '{"id": NaN}',
        '{"id": 1, "id": 2}',
        "[" * 101 + "]" * 101,
    ],
)
def test_no_json_cannot_be_read(text: str) -> None:
    found = score(text)
    assert (found.points, found.parseable) == (0.0, False)
    assert found.explanation.startswith("no JSON: ")


@pytest.mark.parametrize(
    ("items", "unique"),
    [
        ("[1, true]", True),
        ("[0, false]", True),
        ("[1, 1.0]", False),
        ('[{"a": 1, "b": [2]}, {"b": [2.0], "a": 1}]', False),
        ('[{"a": 1}, {"a": 2}, [1], "a", null]', True),
    ],
)
def test_unique_items(items: str, unique: bool) -> None:
    assert score(items, {"uniqueItems": True}).points == (100 if unique else 0)
    assert score(items, {"uniqueItems": False}).points == 100


def test_alternatives_that_double_with_every_level_are_given_up() -> None:
    assert schema.problem(TREE) is None
    assert score("[[]]", TREE).points == 100
    found = score("[" * 30 + "1" + "]" * 30, TREE)
    assert (found.points, found.parseable) == (0.0, True)
    assert found.explanation.startswith("not to be checked: ")
    assert score("[" * 99 + "]" * 99, TREE).points in (0, 100)


def test_a_number_beyond_all_bounds_is_none_of_the_schema() -> None:
    assert score("1" * 400, {"multipleOf": 0.1}).points in (0, 100)


def test_nothing_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socket", None)
    assert schema.problem({"$ref": "https://example.org/schema.json"}) is not None
    assert schema.problem({"$schema": schema.DRAFT, "type": "object"}) is None
    assert score("{}", {"$schema": schema.DRAFT, "type": "object"}).points == 100


def test_a_schema_nested_too_deeply_is_named() -> None:
    deep: dict[str, Any] = {}
    for _ in range(2000):
        deep = {"not": deep}
    assert schema.problem(deep) == "one nested too deeply"


def test_a_turn_without_a_schema_is_not_scored() -> None:
    assert JsonSchema()(reply("{}"), golden_turn(), rendered_turn()) is None


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda v: st.lists(v) | st.dictionaries(st.text(), v)
)


@given(VALUES, st.sampled_from([ORDER, TREE, {"uniqueItems": True}, {"minProperties": 1, "minItems": 1}]))
def test_any_json_gets_0_or_100_points(value: Any, wanted: Any) -> None:
    assert score(json.dumps(value), wanted).points in (0.0, 100.0)


@given(st.text())
def test_any_text_gets_0_or_100_points(text: str) -> None:
    for candidate in (text, f"```json\n{text}"):
        assert score(candidate).points in (0.0, 100.0)
