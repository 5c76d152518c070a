"""Structured replies: is it JSON, and of the schema that was asked for?"""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvquant_eval.core import schema
from kvquant_eval.core.records import GoldenTurn, Measure, RenderedTurn, Replay
from kvquant_eval.core.score import Score
from kvquant_eval.core.strict_json import BadJson, parse

_FENCE = re.compile(r"```(?:json)?[^\S\n]*+\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True)
class JsonSchema:
    """100 when the JSON of the reply (in its first fence, else the whole reply) is of ``expected.json_schema``, else 0.
    ``core.schema`` says what a schema may hold.
    """

    measure: Measure = Measure.GENERATED

    def __call__(self, replay: Replay, turn: GoldenTurn, rendered: RenderedTurn) -> Score | None:
        wanted = turn.expected.get("json_schema")
        if not wanted:
            return None
        fence = _FENCE.search(replay.text)
        try:
            value = parse((fence[1] if fence else replay.text).strip().encode("utf-8", "surrogatepass"))
        except BadJson as error:
            return Score(0.0, f"no JSON: {error}", parseable=False)
        try:
            wrong = schema.mismatch(wanted, value)
        except schema.Unbounded as error:
            return Score(0.0, f"not to be checked: {error}")
        return Score(0.0, f"not of the schema: {wrong}") if wrong else Score(100.0, "of the schema")
