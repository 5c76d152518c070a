"""Signs that a generated reply degenerated, and whether an arm shows them more often than its baseline."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kvquant_eval.core.outcome import LOOP_REPEATS, LOOP_TOKENS, borders
from kvquant_eval.core.records import Finding, GoldenTurn, Measure, Outcome, RenderedTurn, Replay, ReplayKey
from kvquant_eval.core.score import Places
from kvquant_eval.core.stats import clustered, sign_flip
from kvquant_eval.core.thinking import said

SAME_TOKENS = 16
"""Equal tokens at a reply's end that are no dashes of a table any more; golden replies have 3 in a row at most."""
RUNAWAY = 2.0
"""Times the golden reply's tokens: 220 of the 242 limits of ``agents-v1`` leave room for it, for 3 times only 88."""
CUT_CHARACTERS = 3
"""U+FFFD that one character cut at the token limit can leave: a tokenizer may write one for each of its bytes."""
_UNREADABLE = "\ufffd"


class Sign(StrEnum):
    """``LOOP``: a phrase over and over; ``SAME_TOKEN``: one token. ``RUNAWAY``: the token limit, at ``RUNAWAY`` times
    the golden reply's length or more. ``EMPTY``: nothing is said outside of think blocks.
    """

    EMPTY = "empty"
    LOOP = "loop"
    SAME_TOKEN = "same_token"
    INVALID_UTF8 = "invalid_utf8"
    UNCLOSED_THINK = "unclosed_think"
    RUNAWAY = "runaway"


Signs = frozenset[Sign]


@dataclass(frozen=True, kw_only=True)
class Degeneration:
    """The ``n`` generated replies that an arm and its baseline both have: how many show a sign, on each side.

    ``signs`` are the arm's replies by sign, one reply may show several; ``classes[workload]`` is (replies, of the arm
    degenerate, of the baseline). ``p`` is one-sided: that the arm has no more of them than the baseline.
    """

    n: int
    degenerate: int
    baseline: int
    signs: Mapping[Sign, int]
    baseline_signs: Mapping[Sign, int]
    classes: Mapping[str, tuple[int, int, int]]
    p: float

    @property
    def rise(self) -> int:
        """Degenerate replies more than the baseline has; < 0 is fewer."""
        return self.degenerate - self.baseline

    @property
    def share(self) -> float:
        """The rise per reply, -1..1."""
        return self.rise / self.n if self.n else 0.0


def signs(replay: Replay, turn: GoldenTurn, rendered: RenderedTurn) -> Signs:
    """The signs that a generated reply shows, from its stored tokens and text; none that the golden reply shows too.

    Time is O(n log n) in the tokens, whatever they are.
    """
    cut = replay.finish_reason == "length"
    ids = replay.token_ids if cut else replay.token_ids[:-1]  # without its end-of-turn token
    text = replay.text
    if cut and len(text) - len(readable := text.rstrip(_UNREADABLE)) <= CUT_CHARACTERS:
        text = readable
    found = _shown(ids, text)
    if found:
        found -= _shown(rendered.golden_ids, str(turn.reference))
    told = said(replay.text)
    if told is not None and not told.strip():
        found |= {Sign.EMPTY}
    if cut and len(ids) >= RUNAWAY * len(rendered.golden_ids):
        found |= {Sign.RUNAWAY}
    return found


def shown(replays: Iterable[Replay], places: Places) -> dict[ReplayKey, Signs]:
    """The signs of every generated reply that is evidence: forced, skipped and failed ones are none, and turns that a
    free-running conversation did not come to.
    """
    return {
        (r.turn_id, r.measure, r.epoch): signs(r, *places[r.turn_id])
        for r in replays
        if r.measure is not Measure.FORCED and r.outcome.scored and r.outcome is not Outcome.DIVERGED
    }


def contrast(baseline: Mapping[ReplayKey, Signs], arm: Mapping[ReplayKey, Signs], places: Places) -> Degeneration:
    """Pair the replies; +1 where only the arm's is degenerate, -1 where only the baseline's, epochs averaged.

    ``p`` flips whole conversations, over all classes together.
    """
    pairs = sorted(baseline.keys() & arm.keys())
    moved: dict[tuple[str, Measure], list[int]] = defaultdict(list)
    classes: dict[str, list[int]] = {}
    for key in pairs:
        before, after = bool(baseline[key]), bool(arm[key])
        moved[key[:2]].append(after - before)
        counts = classes.setdefault(places[key[0]][1].workload, [0, 0, 0])
        counts[:] = counts[0] + 1, counts[1] + after, counts[2] + before
    return Degeneration(
        n=len(pairs),
        degenerate=sum(bool(arm[key]) for key in pairs),
        baseline=sum(bool(baseline[key]) for key in pairs),
        signs=_counted(arm[key] for key in pairs),
        baseline_signs=_counted(baseline[key] for key in pairs),
        classes={w: (n, after, before) for w, (n, after, before) in sorted(classes.items())},
        p=_surplus(moved, places),
    )


def judge_rise(arm: Degeneration, controls: Sequence[Degeneration], level: float) -> list[Finding]:
    """A finding that holds, where the arm's rise is no chance (``p`` under ``level``) and beyond that of every control,
    per reply.

    Simulated at 0.01 on 242 turns in 75 conversations, of which 5% are degenerate in the baseline, 2,000 times: 0.4% of
    arms with 5% of their own are held, 12% of those with 8%, 47% with 11%; where the baseline's stay and others come to
    them, 57% with 8%, 99% with 11%.
    """
    if arm.p >= level or arm.share <= max((control.share for control in controls), default=0.0):
        return []
    by_sign = ", ".join(f"{sign} {count}" for sign, count in arm.signs.items() if count)
    floor = max((control.rise for control in controls if control.rise > 0), default=0)
    counts = f"{arm.degenerate} of {arm.n} against the baseline's {arm.baseline} (p = {arm.p:.2g})"
    what = f"{counts}, the controls rise by at most {floor}; {by_sign}"
    return [Finding(where="degenerate replies", what=what, invalid=False, holds=True, p=arm.p)]


def _surplus(moved: Mapping[tuple[str, Measure], Sequence[int]], places: Places) -> float:
    if not moved:
        return 1.0
    means = [sum(epochs) / len(epochs) for epochs in moved.values()]
    return sign_flip(clustered(means, [places[turn_id][1].conversation_id for turn_id, _ in moved]))


def _counted(replies: Iterable[Signs]) -> dict[Sign, int]:
    counted = Counter(sign for found in replies for sign in found)
    return {sign: counted[sign] for sign in Sign}


def _shown(ids: Sequence[int], text: str) -> Signs:
    there = {Sign.INVALID_UTF8: _UNREADABLE in text, Sign.UNCLOSED_THINK: said(text) is None}
    repeated = _repeats(ids)
    return frozenset([sign for sign, is_there in there.items() if is_there] + ([repeated] if repeated else []))


def _repeats(ids: Sequence[int]) -> Sign | None:
    """Whether a phrase comes ``LOOP_REPEATS`` times over ``LOOP_TOKENS`` tokens, or one token ``SAME_TOKENS`` times, at
    the end. A loop that the reply left again is looked for in windows: never found for less, surely at four times that.
    """
    if ids and ids.count(ids[-1]) >= LOOP_REPEATS:
        for length, border in enumerate(borders(ids[::-1]), 1):
            period = length - border
            if length >= max(LOOP_REPEATS * period, SAME_TOKENS if period == 1 else LOOP_TOKENS):
                return Sign.SAME_TOKEN if period == 1 else Sign.LOOP
    size = LOOP_TOKENS
    while size <= len(ids):
        for end in range(len(ids), size - 1, -size):
            window = ids[end - size : end]
            longest = size // LOOP_REPEATS
            if len(set(window)) <= longest and (period := size - borders(window)[-1]) <= longest:
                return Sign.SAME_TOKEN if period == 1 else Sign.LOOP
        size *= 2
    return None
