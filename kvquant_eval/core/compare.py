"""Two arms' scores to one drop per turn and scorer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from kvquant_eval.core.records import RenderedTurn, Replay, ScoreDelta, TurnScore
from kvquant_eval.core.text import one_line

Key = tuple[str, str]
"""(turn id, scorer)"""


def compare(
    turns: Sequence[RenderedTurn],
    baseline: Iterable[TurnScore],
    candidate: Iterable[TurnScore],
    expected: Iterable[Key] = (),
) -> tuple[ScoreDelta, ...]:
    """Pair every (turn, scorer) of the baseline with the candidate's, epochs averaged first; > 0 is worse.

    A pair with an unscored side, or with epochs missing on one side, keeps ``drop`` None and says why; so does a pair
    of ``expected`` that neither side has.
    """
    place = {turn.turn_id: turn for turn in turns}
    left, right = _by_key(baseline), _by_key(candidate)
    deltas = []
    for key in sorted({*left, *right, *expected}):
        turn = place[key[0]]
        a, why_a = _mean(left.get(key, []))
        b, why_b = _mean(right.get(key, []))
        missing = "; ".join(f"{side}: {why}" for side, why in (("baseline", why_a), ("candidate", why_b)) if why)
        if key not in left and key not in right:
            missing = "no arm scored it"
        elif not missing and len(left[key]) != len(right[key]):
            missing = f"{len(left[key])} epochs against {len(right[key])}"
        deltas.append(
            ScoreDelta(
                turn_id=turn.turn_id,
                workload=turn.workload,
                conversation_id=turn.conversation_id,
                turn_index=turn.turn_index,
                scorer=key[1],
                baseline=a,
                candidate=b,
                drop=None if missing or a is None or b is None else a - b,
                missing=missing,
            )
        )
    return tuple(deltas)


def identical(left: Iterable[Replay], right: Iterable[Replay]) -> bool:
    """Whether two arms gave the same tokens with the same log probabilities, bit for bit, in every replay."""

    def content(replays: Iterable[Replay]) -> dict[tuple[str, str, int], object]:
        return {(r.turn_id, r.measure, r.epoch): (r.token_ids, r.logprobs) for r in replays}

    return content(left) == content(right)


def _by_key(scores: Iterable[TurnScore]) -> dict[Key, list[TurnScore]]:
    grouped: dict[Key, list[TurnScore]] = defaultdict(list)
    for score in scores:
        grouped[score.turn_id, score.scorer].append(score)
    return grouped


def _mean(scores: Sequence[TurnScore]) -> tuple[float | None, str]:
    """The mean over epochs, or why there is none."""
    if not scores:
        return None, "not run"
    points = [score.points for score in scores if score.points is not None]
    if len(points) < len(scores):
        first = next(score for score in scores if score.points is None)
        return None, ", ".join(filter(None, [str(first.outcome), one_line(first.explanation)]))
    return sum(points) / len(points), ""
