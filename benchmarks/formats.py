"""Reference formats: how many values were compared with other implementations, and how fast each format is on this CPU.

``python -m benchmarks.formats [tokens]`` (8192). Speed is that of K or V of so many tokens, 8 heads of 128, BF16 in and
BF16 out as in the engine's hook, beside a copy of the same tensor; both alternate, medians of 7, one thread.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor

from kvquant_eval.worker.formats import FORMATS, Format
from tests.fakes.oracles import ORACLES, differences, inputs

REPEATS = 7


def main(tokens: int = 8192) -> None:
    """Print a line a format."""
    torch.set_num_threads(1)
    made = inputs(4096)
    x = torch.randn(tokens, 8, 128, generator=torch.Generator().manual_seed(0)).bfloat16()
    print(f"{'format':26} {'values compared':>16} {'differ':>7} {'GB/s':>7} {'of a copy':>10}")
    for name, fmt in FORMATS.items():
        compared = _compared(name, fmt, made) if name in ORACLES else None
        ours, copy = _seconds(lambda fmt=fmt: fmt(x).to(x.dtype), x.clone)
        counts = f"{compared['n']:16,} {compared['differ']:7}" if compared else f"{'-':>16} {'-':>7}"
        print(f"{name:26} {counts} {x.nbytes / ours / 1e9:7.2f} {copy / ours:10.1%}")


def _compared(name: str, fmt: Format, made: dict[str, Tensor]) -> Counter[str]:
    counted: Counter[str] = Counter()
    for x in made.values():
        for differing, n in differences(name, x, fmt(x)).values():
            counted.update(n=n, differ=differing)
    return counted


def _seconds(*runs: Callable[[], object]) -> list[float]:
    taken: list[list[float]] = [[] for _ in runs]
    for _ in range(REPEATS):
        for run, seconds in zip(runs, taken, strict=True):
            began = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - began)
    return [statistics.median(seconds) for seconds in taken]


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
