"""What a prefix cache can reuse of a set, and what breaks the prefixes that its prompts were meant to share."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from kvquant_eval.core.codec import quoted, to_data
from kvquant_eval.core.lint.fault import Placed
from kvquant_eval.core.plan import make_blocks
from kvquant_eval.core.records import GoldenTurn, RenderedTurn, Sampling

_VOLATILE = (
    ("a clock", r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?: ?Z|[+-]\d\d:?\d\d)?)?"),
    ("a clock", r"\b\d\d?:\d\d(?::\d\d(?:\.\d+)?)?(?: ?[ap]m)?\b"),
    ("a UUID", r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"),
    ("a clock", r"\b1[4-9]\d{8}(?:\d{3})?(?:\.\d+)?\b"),
    ("a random id", r"\b(?=[a-zA-Z_-]*\d)(?=\d*[a-zA-Z_-])[0-9a-zA-Z_-]{8,}\b"),
    ("a counter", r"\b\d+\b"),
)
"""What changes from request to request, the likeliest first. Ten or thirteen digits from 14 to 19 are epoch seconds or
milliseconds of 2014 to 2033.
"""
_PATTERN = re.compile("|".join(f"({pattern})" for _, pattern in _VOLATILE))
_ALWAYS = ("a clock", "a UUID")
"""Poison wherever it changes; a number or a name may be what a prompt is about."""
_MARK = "\ue000"
"""Stands for what changes; a private character, which no prompt has."""


@dataclass(frozen=True, kw_only=True)
class Reuse:
    """Prompt tokens of a whole replay (forced and generated), and how many of them the prefix cache gives."""

    prompt_tokens: int
    cached_tokens: int

    @property
    def share(self) -> float:
        """0..1."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


@dataclass(frozen=True, kw_only=True)
class Poison:
    """Prompts that would share a prefix but for something that changes in it.

    ``kind`` and ``sample`` say what, ``turns`` lists the turns; ``healed`` are those turns with one value for all.
    """

    kind: str
    sample: str
    turns: tuple[Placed, ...]
    healed: tuple[GoldenTurn, ...]


def reuse(turns: Sequence[RenderedTurn], block_requests: int, cache_block: int) -> Reuse:
    """What vLLM's prefix cache gives, which keeps whole blocks of ``cache_block`` tokens and computes at least the last
    token of a prompt; it is reset between the plan's blocks, and large enough.
    """
    prompt_tokens = cached = 0
    for block in make_blocks(turns, Sampling(), block_requests):
        seen: set[int] = set()
        for wave in block.waves:
            for request in wave:
                keys = _block_keys(request.prompt_ids, cache_block)
                hits = sum(1 for _ in takewhile(seen.__contains__, keys)) * cache_block
                cached += min(hits, (len(request.prompt_ids) - 1) // cache_block * cache_block)
                prompt_tokens += len(request.prompt_ids)
                seen.update(keys)
            for request in wave:  # what was decoded is there for the next wave
                seen.update(_block_keys(request.prompt_ids + request.forced_ids, cache_block))
    return Reuse(prompt_tokens=prompt_tokens, cached_tokens=cached)


def _block_keys(ids: Sequence[int], size: int) -> list[int]:
    """A key for each whole block, of all tokens up to its end."""
    keys, key = [], 0
    for start in range(0, len(ids) - size + 1, size):
        key = hash((key, tuple(ids[start : start + size])))
        keys.append(key)
    return keys


def reordered(turns: Sequence[GoldenTurn]) -> list[GoldenTurn]:
    """Conversations of a class with the same beginning side by side, in the order in which each is met first."""
    first: dict[Hashable, int] = {}
    places: dict[str, tuple[int, int]] = {}
    classes = {name: number for number, name in enumerate(dict.fromkeys(turn.workload for turn in turns))}
    for number, turn in enumerate(turns):
        start = first.setdefault((turn.workload, _beginning(turn)), number)
        places.setdefault(turn.conversation_id, (start, number))
    return sorted(turns, key=lambda turn: (classes[turn.workload], places[turn.conversation_id]))


def find_poison(turns: Sequence[Placed]) -> Iterator[Poison]:
    """Turns of a class whose prompts begin alike but for clocks, ids or a counter.

    Numbers and ids that differ in more than one place, or seldom, are what the prompts are about.
    """
    groups: defaultdict[Hashable, list[Placed]] = defaultdict(list)
    for at in turns:
        groups[at.turn.workload, _PATTERN.sub(_MARK, _beginning(at.turn))].append(at)
    for group in groups.values():
        rows = [[match.group() for match in _PATTERN.finditer(_beginning(at.turn))] for at in group]
        changing = [slot for slot, values in enumerate(zip(*rows, strict=True)) if len(set(values)) > 1]
        kinds = {slot: _kind(rows[0][slot]) for slot in changing}
        slots = [slot for slot in changing if kinds[slot] in _ALWAYS or _is_new_each_time(slot, changing, rows)]
        if slots:
            worst = slots[0]
            yield Poison(
                kind=kinds[worst],
                sample=rows[0][worst],
                turns=tuple(group),
                healed=tuple(
                    _healed(at.turn, {row[s]: rows[0][s] for s in slots}) for at, row in zip(group, rows, strict=True)
                ),
            )


def first_difference(turns: Sequence[RenderedTurn]) -> int:
    """The first token, from 0, that is not the same in all prompts."""
    columns = zip(*(turn.prompt_ids for turn in turns), strict=False)
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))


def describe(poison: Poison, token: int, lost: int, prompt_tokens: int) -> str:
    """``token`` is where the prompts part, ``lost`` what the prefix cache would give of ``prompt_tokens`` without."""
    share = f"{lost:,} cached tokens lost in a replay ({lost / max(prompt_tokens, 1):.0%} of its prompt tokens)"
    what = f"{poison.kind} ({quoted(poison.sample)}) at token {token} of {len(poison.turns)} turns: {share}"
    return f"a prefix that turns share, got {what}; move it behind what is shared, or take it out"


def _beginning(turn: GoldenTurn) -> str:
    """What turns are meant to share: the tools and the system's messages; the first message where there are none."""
    said = [m.get("content") or "" for m in takewhile(lambda m: m["role"] in ("system", "developer"), turn.messages)]
    return "\n".join([json.dumps(to_data(turn.tools)), *(said or [turn.messages[0].get("content") or ""])])


def _kind(value: str) -> str:
    match = _PATTERN.fullmatch(value)
    return _VOLATILE[(match.lastindex or 1) - 1][0] if match else "a counter"


def _is_new_each_time(slot: int, changing: Sequence[int], rows: Sequence[Sequence[str]]) -> bool:
    values = {row[slot] for row in rows}
    return len(changing) == 1 and len(values) >= max(3, 0.8 * len(rows))


def _healed(turn: GoldenTurn, values: Mapping[str, str]) -> GoldenTurn:
    """The turn with each changing value of its beginning replaced, in its beginning only."""
    count = max(1, sum(1 for _ in takewhile(lambda m: m["role"] in ("system", "developer"), turn.messages)))
    pattern = re.compile("|".join(re.escape(value) for value in sorted(values, key=len, reverse=True)))
    text = json.dumps([to_data(turn.tools), to_data(turn.messages[:count])], ensure_ascii=False)
    tools, messages = json.loads(pattern.sub(lambda match: values[match.group()], text))
    return replace(turn, tools=tuple(tools), messages=(*messages, *turn.messages[count:]))
