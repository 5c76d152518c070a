"""What a candidate saves: bytes, room for sessions, speed, and the flags to serve it with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from statistics import median_low
from typing import Any

from kvquant_eval.core.records import Decision, Prepared
from kvquant_eval.core.signoff import barred, vllm_flags
from kvquant_eval.core.treatment import Realisation
from kvquant_eval.io.report.blocks import Block, Code, Items, Section, Table
from kvquant_eval.io.report.names import number

Data = Mapping[str, Any]
SPEED = "the arms ran in turn or side by side on one machine: a hint, no benchmark"
NOT_TO_SERVE = "what was gated, as flags of vLLM; this decision is none to serve by:"
SESSIONS = (
    "sessions: how many contexts of the golden set's median / longest length fit in at once, nothing shared; "
    "a context is a prompt and the longest reply that it allows"
)


def gains_section(candidate: Data, document: Data, baseline: str, prepared: Prepared) -> Section:
    """One section for a candidate. ``baseline`` is what stands over the baseline's numbers."""
    return Section(3, f"{candidate['name']}: what is gained", tuple(_blocks(candidate, document, baseline, prepared)))


def context_lengths(prepared: Prepared) -> dict[str, tuple[int, int]]:
    """(Median, longest) context in tokens, of all turns that ran and then by class; the lower of two medians."""
    found: dict[str, list[int]] = defaultdict(list)
    for turn in prepared.turns:
        if not turn.skip:
            for group in ("all classes", turn.workload):
                found[group].append(len(turn.prompt_ids) + turn.max_tokens)
    return {group: (median_low(lengths), max(lengths)) for group, lengths in found.items()}


def _blocks(candidate: Data, document: Data, baseline: str, prepared: Prepared) -> Iterator[Block]:
    kv, plain = candidate["kv"], document["arms"][candidate["baseline"]]["attested"]
    if "bytes_per_token" not in kv or plain is None:
        yield Items(("the KV cache was not read back: nothing is known to be gained",))
        return
    sides = [(baseline, plain["bytes_per_token"], plain["capacity_tokens"])]
    if kv["realisation"] == Realisation.REFERENCE:
        sides += _native_store(kv, plain)
        yield Items(tuple(_reference(kv)))
    else:
        sides.append(("candidate", kv["bytes_per_token"], kv["capacity_tokens"]))
    yield Table(("", *(name for name, _, _ in sides)), "l" + "r" * len(sides), tuple(_memory(sides, prepared)))
    base, own = (document["arms"][candidate[key]]["decoded_tokens_per_s"] for key in ("baseline", "name"))
    speeds = f"decoded tokens/s: {number(base, ',.1f')} {baseline}, {number(own, ',.1f')} candidate"
    yield Items((SESSIONS, f"{speeds}; {SPEED}"))
    yield from _flags(candidate, document)


def _native_store(kv: Data, plain: Data) -> Iterator[tuple[str, float, int]]:
    """What the same memory would hold of the format itself."""
    if size := kv.get("nominal_bytes_per_token"):
        yield "a native store would", size, int(plain["capacity_tokens"] * plain["bytes_per_token"] / size)


def _reference(kv: Data) -> Iterator[str]:
    yield "stored as bfloat16: a reference format shows the numerics and saves nothing here"
    yield f"second rounding: {kv['second_rounding_share']:.4%} of K and V values did not fit BF16 exactly"


def _memory(sides: list[tuple[str, float, int]], prepared: Prepared) -> Iterator[tuple[str, ...]]:
    first = sides[0]
    yield ("bytes per token", *(f"{size:,.0f}{_of(size, first[1])}" for _, size, _ in sides))
    yield ("capacity, tokens", *(f"{tokens:,}{_of(tokens, first[2])}" for _, _, tokens in sides))
    for group, lengths in context_lengths(prepared).items():
        said = f"sessions, {group}: {' / '.join(f'{length:,}' for length in lengths)} tokens"
        yield said, *(" / ".join(f"{tokens // length:,}" for length in lengths) for _, _, tokens in sides)


def _of(value: float, base: float) -> str:
    return "" if value == base or not base else f" ({value / base:.2f}×)"


def _flags(candidate: Data, document: Data) -> Iterator[Block]:
    kv = candidate["kv"]
    may_serve = candidate["decision"] == Decision.PROMOTE and not barred(document, candidate)
    if flags := vllm_flags(kv):
        yield Items(("to serve vLLM as it was gated:" if may_serve else NOT_TO_SERVE,))
        yield Code(flags)
        if kv["layers_quantized"] and kv["scales"]["kind"] != "unit":
            yield Items(("no flag has the scales: serve the checkpoint that it was gated with, which has them",))
    else:
        yield Items(("no flags to paste: vLLM stores no K and V in a reference format",))
