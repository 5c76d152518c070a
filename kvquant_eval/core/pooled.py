"""The direction of all conversations together: a warning where no single class shows anything, never a reason."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from kvquant_eval.core.records import ScoreDelta
from kvquant_eval.core.stats import Clusters, sign_flip


@dataclass(frozen=True, kw_only=True)
class Pooled:
    """Conversations by the mean drop of their gating scores: ``worse`` lose, ``better`` gain, the others are equal.

    ``p`` is the chance (one-sided, 0..1) of so many more that lose than gain were both arms the same.
    """

    n_conversations: int = 0
    worse: int = 0
    better: int = 0
    p: float = 1.0


def pooled(gating: Iterable[ScoreDelta]) -> Pooled:
    """Count the conversations of ``gating``, the pairs of gating scores with headroom, whatever their class.

    Only the sign of a conversation's mean drop counts, so that no class outweighs another by its points. ``p`` is that
    of the sign test.
    """
    drops: dict[str, list[float]] = defaultdict(list)
    for delta in gating:
        if delta.drop is not None:
            drops[delta.conversation_id].append(delta.drop)
    signs = np.sign([float(np.mean(each)) for each in drops.values()]) if drops else np.zeros(0)
    return Pooled(
        n_conversations=len(signs),
        worse=int((signs > 0).sum()),
        better=int((signs < 0).sum()),
        p=sign_flip(Clusters(signs, np.ones(len(signs)))),
    )
