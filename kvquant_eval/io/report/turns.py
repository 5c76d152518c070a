"""The flagged turns side by side: what was asked, the golden reply, and what both arms said."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvquant_eval.core.judge import Judgement
from kvquant_eval.core.records import GoldenSet, GoldenTurn, Measure, Outcome, Prepared, Replay, ScoreDelta
from kvquant_eval.core.text import head, tail
from kvquant_eval.io.report.blocks import Block, Facts, Items, Section, Sides, Table, Texts
from kvquant_eval.io.report.confirmations import second_test
from kvquant_eval.io.report.marks import Pieces, differing, excerpt, parting
from kvquant_eval.io.report.names import NONE, number

MOST_TURNS, MOST_LISTED = 20, 50
SURE = {True: 0, None: 1, False: 2}
"""Rank of a flag by its second test, None where it was not put to one."""
ORDER = (
    "To read first: the hardest class and critical turns, then what a second test confirmed, then the largest drops. "
    "Replies and explanations are those of the first epoch; words that differ between both arms are marked."
)
LISTED = ("turn", "class", "scores", "turn index", "context, tokens", "drop", "placebo drop", "flag")
PROMPT_CHARS = 800
EXPLANATION_CHARS = 200

Flag = Mapping[str, Any]
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
    forced: tuple[Replies, Replies]
    explanations: tuple[Explanations, Explanations]


def flagged_sections(
    candidate: Mapping[str, Any],
    name: str,
    baseline: str,
    judgement: Judgement,
    golden: GoldenSet,
    prepared: Prepared,
    policy: Mapping[str, Any],
) -> list[Section]:
    """The candidate's flagged turns, in the order that ``ORDER`` says: a list of at most ``MOST_LISTED``, and at most
    ``MOST_TURNS`` side by side; how many are left out is said.

    ``name`` is model id and KV dtype, ``baseline`` what stands over the baseline's numbers, ``policy`` the document's.
    """

    def later(flag: Flag) -> tuple[bool, int]:
        first = flag["class"] == policy["hardest"] or flag["turn_id"] in critical
        return not first, SURE[flag["confirmed"]]

    critical = {*policy["critical_turns"]}
    flags = sorted(candidate["flagged_turns"], key=later)
    title = f"Flagged turns: {name}"
    if not flags:
        return [Section(2, title, (Items(("no turn drops over the threshold",)),))]
    of: dict[str, list[Flag]] = {}
    for flag in flags:
        of.setdefault(flag["turn_id"], []).append(flag)
    turns = {turn.turn_id: turn for turn in golden.turns}
    lengths = {turn.turn_id: len(turn.prompt_ids) for turn in prepared.turns}
    sides = _sides(candidate, judgement)
    said = [f"{len(of):,} turns drop over the threshold in {len(flags):,} scores{_left_out(len(of))}", ORDER]
    listed = Table(LISTED, "lllrrrrl", tuple(_row(own, lengths, sides) for own in [*of.values()][:MOST_LISTED]))
    shown = [_turn(turns[turn_id], lengths.get(turn_id, 0), baseline, sides) for turn_id in [*of][:MOST_TURNS]]
    return [Section(2, title, (Items(tuple(said)), listed)), *shown]


def _left_out(count: int) -> str:
    said = f"; the first {MOST_TURNS} are shown side by side" if count > MOST_TURNS else ""
    if count > MOST_LISTED:
        rest = f"{count - MOST_LISTED:,} are left out (deltas.parquet has them all)"
        said += f", the first {MOST_LISTED} are listed, {rest}"
    return said


def _row(flags: Sequence[Flag], lengths: Mapping[str, int], sides: _Sides) -> tuple[str, ...]:
    """A line of the list: the turn with its first flag."""
    flag = flags[0]
    placebo = sides.placebo.get((flag["turn_id"], flag["score"]))
    return (
        flag["turn_id"],
        flag["class"],
        ", ".join(each["score"] for each in flags),
        str(flag["turn_index"]),
        f"{lengths.get(flag['turn_id'], 0):,}",
        number(flag["drop"], "+.2f"),
        number(placebo.drop if placebo else None, "+.2f"),
        second_test(flag),
    )


def _sides(candidate: Mapping[str, Any], judgement: Judgement) -> _Sides:
    name, base = candidate["name"], candidate["baseline"]
    return _Sides(
        drops=_drops(judgement.deltas.get(name, ())),
        placebo=_drops(judgement.deltas.get("placebo", ())),
        flagged={(flag["turn_id"], flag["score"]): flag for flag in candidate["flagged_turns"]},
        replies=(_replies(judgement, base), _replies(judgement, name)),
        own=(_replies(judgement, base, Measure.FREE_RUNNING), _replies(judgement, name, Measure.FREE_RUNNING)),
        forced=(_replies(judgement, base, Measure.FORCED), _replies(judgement, name, Measure.FORCED)),
        explanations=(_explanations(judgement, base), _explanations(judgement, name)),
    )


def _drops(deltas: Sequence[ScoreDelta]) -> Drops:
    return {(delta.turn_id, delta.scorer): delta for delta in deltas}


def _replies(judgement: Judgement, arm: str, measure: Measure = Measure.GENERATED) -> Replies:
    """The replay of each turn, its first epoch."""
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
        ("golden reply, forced", _most_lost(*(replies.get(turn.turn_id) for replies in sides.forced))),
        ("generated replies", _divergence(left, right)),
    )
    prompt = tail("\n".join(f"{m['role']}: {_said(m)}" for m in turn.messages), PROMPT_CHARS)
    blocks: list[Block] = [Facts(place), Table(columns, "llrrrrqq", tuple(rows)), *_parting(left, right, baseline)]
    blocks.append(Texts((("prompt, its end", prompt),)))
    golden = (("golden reply", ((excerpt(_said(turn.reference)), False),)),)
    blocks.append(Sides((*golden, *_both((left, right), baseline, "reply"))))
    own = tuple(replies.get(turn.turn_id) for replies in sides.own)
    if any(own):
        blocks.append(Sides(tuple(_both((own[0], own[1]), baseline, "reply behind its own history"))))
    return Section(3, turn.turn_id, tuple(blocks))


def _most_lost(left: Replay | None, right: Replay | None) -> str:
    """The token of the golden reply that loses the most, in nats; > 0 is worse."""
    if left is None or right is None or not left.logprobs or len(left.logprobs) != len(right.logprobs):
        return "not scored in both arms"
    lost = [a - b for a, b in zip(left.logprobs, right.logprobs, strict=True)]
    if not all(map(math.isfinite, lost)):
        return "a token has no probability at all"
    worst = max(range(len(lost)), key=lost.__getitem__)
    share = f"{number(lost[worst], '+.3f')} nats of {number(sum(lost), '+.3f')} over all {len(lost)} tokens"
    return f"position {worst} (from 0) loses the most, {share}"


def _parting(left: Replay | None, right: Replay | None, baseline: str) -> Iterator[Table]:
    """Where the texts part, and how both go on; nothing where they do not."""
    found = parting(left.text, right.text) if left and right else None
    if found:
        cells = tuple(text if text.strip() else "(nothing)" for text in found)
        yield Table(("both begin", f"{baseline} goes on", "candidate goes on"), "qqq", (cells,))


def _both(replies: tuple[Replay | None, Replay | None], baseline: str, what: str) -> Iterator[tuple[str, Pieces]]:
    """Both arms' texts under their labels, with the words marked that differ."""
    texts = differing(*(excerpt(_text(replay)) for replay in replies))
    for who, replay, pieces in zip((baseline, "candidate"), replies, texts, strict=True):
        left = f", {replay.divergence}" if replay and replay.divergence else ""
        yield f"{who} {what}{_outcome(replay)}{left}", pieces


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
