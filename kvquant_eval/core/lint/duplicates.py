"""Turns that measure the same thing twice. Near-duplicates by MinHash (Broder, 1997) over shingles of words."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from kvquant_eval.core.codec import digest
from kvquant_eval.core.lint.fault import Fault, Placed, warning
from kvquant_eval.core.scorers.text import words

NEAR = 0.9
"""Share of shingles in common (Jaccard) from which two turns are near-duplicates."""
_SHINGLE, _BANDS, _ROWS = 3, 16, 8
"""Words a shingle; pairs of similarity 0.9 share one of 16 bands of 8 hashes with a probability of 0.9999."""


def check_duplicates(turns: Sequence[Placed]) -> Iterator[Fault]:
    """Turns with the same messages and reference as an earlier one, and those of another conversation that ask and
    answer nearly the same.
    """
    first: dict[str, Placed] = {}
    rest = []
    for at in turns:
        same = first.setdefault(digest([at.turn.messages, at.turn.reference, at.turn.tools]), at)
        if same is at:
            rest.append(at)
        else:
            yield warning("duplicate", at, f"a turn of its own, got {same.turn.turn_id} again; remove one")
    sets = [_shingles(at) for at in rest]
    for earlier, later in _candidates(sets):
        a, b = rest[earlier], rest[later]
        share = len(sets[earlier] & sets[later]) / len(sets[earlier] | sets[later])
        if share >= NEAR and a.turn.conversation_id != b.turn.conversation_id:
            text = f"a turn of its own, got {share:.0%} of the words of {a.turn.turn_id}; reword or remove one"
            yield warning("near-duplicate", b, text)


def _shingles(at: Placed) -> frozenset[int]:
    """Of what is asked last and what is answered: the history is shared within a conversation by design."""
    asked = at.turn.messages[-1].get("content") or ""
    calls = [str(call["function"]) for call in at.turn.reference.get("tool_calls") or ()]
    said = words(" ".join([asked, at.turn.reference.get("content") or "", *calls]))
    parts = (" ".join(said[i : i + _SHINGLE]) for i in range(max(1, len(said) - _SHINGLE + 1)))
    return frozenset(int.from_bytes(hashlib.blake2b(part.encode(), digest_size=4).digest()) for part in parts)


def _candidates(sets: Sequence[frozenset[int]]) -> Iterator[tuple[int, int]]:
    """Pairs (earlier, later) that are worth comparing, each later turn once, with the first that it resembles."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(1, 1 << 63, _BANDS * _ROWS, dtype=np.uint64) * 2 + 1 for _ in range(2))
    bands: dict[bytes, int] = {}
    seen: defaultdict[int, set[int]] = defaultdict(set)
    for index, shingles in enumerate(sets):
        values = np.fromiter(shingles, dtype=np.uint64)
        least = ((values[:, None] * a + b) >> np.uint64(32)).min(axis=0)  # multiply-shift hashing, modulo 2**64
        for band in range(_BANDS):
            key = bytes([band]) + least[band * _ROWS : (band + 1) * _ROWS].tobytes()
            earlier = bands.setdefault(key, index)
            if earlier != index and earlier not in seen[index]:
                seen[index].add(earlier)
                yield earlier, index
