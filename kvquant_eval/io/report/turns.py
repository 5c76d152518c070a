"""The flagged turns side by side: what was asked, the golden reply, and what both arms said."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvquant_eval.core.judge import Judgement
from kvquant_eval.core.records import GoldenSet, GoldenTurn, Measure, Outcome, Prepared, Replay, ScoreDelta
from kvquant_eval.core.text import head, tail
from kvquant_eval.io.report.blocks import Facts, Items, Section, Table, Texts
from kvquant_eval.io.report.confirmations import second_test
from kvquant_eval.io.report.names import NONE, number

MOST_TURNS = 20
PROMPT_CHARS = 800
EXPLANATION_CHARS = 200

Replies = Mapping[str, Replay]
Explanations = Mapping[tuple[str, str], str]
Drops = Mapping[tuple[str, str], ScoreDelta]


@dataclass(frozen=True, kw_only=True)
class _Sides:
    """What both arms left, by turn id and by (turn id, scorer)."""

    drops: Drops
    placebo: Drops
    flagged: Mapping[tuple[str, str], Mapping[str, Any]]
    replies: tuple[Replies, Replies]
    own: tuple[Replies, Replies]
    explanations: tuple[Explanations, Explanations]


def flagged_sections(
    candidate: Mapping[str, Any], name: str, baseline: str, judgement: Judgement, golden: GoldenSet, prepared: Prepared
) -> list[Section]:
    """The candidate's flagged turns, at most ``MOST_TURNS``; how many are left out is said. The worst come first, the
    surest where flags were put to a second test.

    ``name`` is model id and KV dtype, ``baseline`` what stands over the baseline's numbers.
    """
    flags = candidate["flagged_turns"]
    order = list(dict.fromkeys(flag["turn_id"] for flag in flags))
    said = f"{len(order)} turns drop over the threshold in {len(flags)} scores"
    left_out = max(0, len(order) - MOST_TURNS)
    if left_out:
        said += f"; the worst {MOST_TURNS} are shown, {left_out} are left out (deltas.parquet has them all)"
    said += "; replies and explanations are those of the first epoch"
    turns = {turn.turn_id: turn for turn in golden.turns}
    lengths = {turn.turn_id: len(turn.prompt_ids) for turn in prepared.turns}
    sides = _sides(candidate, judgement)
    shown = [_turn(turns[turn_id], lengths.get(turn_id, 0), baseline, sides) for turn_id in order[:MOST_TURNS]]
    summary = Items((said if order else "no turn drops over the threshold",))
    return [Section(2, f"Flagged turns: {name}", (summary,)), *shown]


def _sides(candidate: Mapping[str, Any], judgement: Judgement) -> _Sides:
    name, base = candidate["name"], candidate["baseline"]
    return _Sides(
        drops=_drops(judgement.deltas.get(name, ())),
        placebo=_drops(judgement.deltas.get("placebo", ())),
        flagged={(flag["turn_id"], flag["score"]): flag for flag in candidate["flagged_turns"]},
        replies=(_replies(judgement, base), _replies(judgement, name)),
        own=(_replies(judgement, base, Measure.FREE_RUNNING), _replies(judgement, name, Measure.FREE_RUNNING)),
        explanations=(_explanations(judgement, base), _explanations(judgement, name)),
    )


def _drops(deltas: Sequence[ScoreDelta]) -> Drops:
    return {(delta.turn_id, delta.scorer): delta for delta in deltas}


def _replies(judgement: Judgement, arm: str, measure: Measure = Measure.GENERATED) -> Replies:
    """The reply that the model wrote to each turn, its first epoch."""
    replays = judgement.arms[arm].replays
    return {r.turn_id: r for r in replays if r.measure is measure and r.epoch == 0}


def _explanations(judgement: Judgement, arm: str) -> Explanations:
    return {(s.turn_id, s.scorer): s.explanation for s in judgement.scores.get(arm, ()) if s.epoch == 0}


def _turn(turn: GoldenTurn, prompt_tokens: int, baseline: str, sides: _Sides) -> Section:
    keys = [key for key in sides.drops if key[0] == turn.turn_id]
    rows = [
        (
            key[1],
            second_test(sides.flagged.get(key)) or NONE,
            number(sides.drops[key].baseline, ".2f"),
            number(sides.drops[key].candidate, ".2f"),
            number(sides.drops[key].drop, "+.2f"),
            number(sides.placebo[key].drop if key in sides.placebo else None, "+.2f"),
            *(head(explained.get(key) or NONE, EXPLANATION_CHARS) for explained in sides.explanations),
        )
        for key in keys
    ]
    columns = ("score", "flagged", baseline, "candidate", "drop", "placebo drop", f"{baseline} says", "candidate says")
    left, right = (replies.get(turn.turn_id) for replies in sides.replies)
    place = (
        ("class", turn.workload),
        ("turn", f"{turn.turn_index} of conversation {turn.conversation_id}, prompt of {prompt_tokens:,} tokens"),
        ("generated replies", _divergence(left, right)),
    )
    texts = (
        ("prompt, its end", tail("\n".join(f"{m['role']}: {_said(m)}" for m in turn.messages), PROMPT_CHARS)),
        ("golden reply", _said(turn.reference)),
        (f"{baseline} reply{_outcome(left)}", _text(left)),
        (f"candidate reply{_outcome(right)}", _text(right)),
        *_own_history(turn.turn_id, baseline, sides),
    )
    return Section(3, turn.turn_id, (Facts(place), Table(columns, "llrrrrqq", tuple(rows)), Texts(texts)))


def _own_history(turn_id: str, baseline: str, sides: _Sides) -> Iterator[tuple[str, str]]:
    """What both arms wrote behind their own earlier replies, where they did."""
    for who, replies in zip((baseline, "candidate"), sides.own, strict=True):
        if (replay := replies.get(turn_id)) is not None:
            left = f", {replay.divergence}" if replay.divergence else ""
            yield f"{who} reply behind its own history{_outcome(replay)}{left}", _text(replay)


def _said(message: Mapping[str, Any]) -> str:
    """A message's content, then its tool calls as JSON, one a line."""
    content = message.get("content") or ""
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    calls = [json.dumps(call.get("function", call), ensure_ascii=False) for call in message.get("tool_calls") or ()]
    return "\n".join(part for part in (text, *calls) if part)


def _divergence(left: Replay | None, right: Replay | None) -> str:
    """Where two replies part, as a 0-based token position."""
    if left is None or right is None:
        return "not run in both arms"
    pairs = zip(left.token_ids, right.token_ids, strict=False)
    shorter, longer = sorted((len(left.token_ids), len(right.token_ids)))
    first = next((index for index, (a, b) in enumerate(pairs) if a != b), shorter)
    if first == longer:
        return f"all {longer} tokens are the same"
    return (
        f"first differing token: position {first} (from 0; {len(left.token_ids)} against {len(right.token_ids)} tokens)"
    )


def _outcome(replay: Replay | None) -> str:
    return "" if replay is None or replay.outcome is Outcome.OK else f" ({replay.outcome})"


def _text(replay: Replay | None) -> str:
    if replay is None:
        return "(not run)"
    return replay.text or replay.error or "(empty)"
