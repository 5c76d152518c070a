"""What was signed beside what is asked for and what runs: each fact matches, is refused, or was not shown."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from kvquant_eval.core.attest import bytes_per_token, effective_dtype, extremes, layers_quantized, quantized_scales
from kvquant_eval.core.engine import EngineFacts
from kvquant_eval.core.signoff import Record, Signature, Terms, faults
from kvquant_eval.core.treatment import SLIDING_WINDOW, Realisation, canonical_dtype

EXTENSION = "kvquant_eval.worker.extension.KVExtension"
ANCHOR = "anchor"
RUNNING = "running KV dtype"
SHORTEST_HASH = 12
"""Digits that may stand for a sha256."""
_TOLERANCE = 1e-3
_HASH = re.compile(rf"[0-9a-f]{{{SHORTEST_HASH},64}}")
_LOCAL = re.compile(r"[/.~]|[A-Za-z]:\\")
"""How a path begins, and the name of no model on a hub."""


class Strength(StrEnum):
    """Of what a server says. ``WEAK``: a label of its front end, which was seen to be wrong; ``MEDIUM``: the label, and
    the bytes a token that follow from the size of the cache; ``STRONG``: read back from its workers, layer by layer.
    """

    WEAK = "weak"
    MEDIUM = "medium"
    STRONG = "strong"


@dataclass(frozen=True, kw_only=True)
class Check:
    """One fact. ``agrees`` is None where nothing shows it; ``strength`` where nobody but the caller does."""

    fact: str
    agrees: bool | None
    text: str
    strength: Strength | None = None

    @property
    def line(self) -> str:
        """``refused: kv dtype: signed fp8_e4m3, asked for fp8_e5m2``."""
        if self.agrees is None:
            return f"unanchored: {self.text}" if self.fact == ANCHOR else f"not shown: {self.fact} {self.text}"
        evidence = f" ({self.strength} evidence)" if self.strength else ""
        return f"{'match' if self.agrees else 'refused'}: {self.fact}: {self.text}{evidence}"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What somebody is about to serve, as they say; None where they do not.

    ``policy`` is a name, which can only refuse, or how a sha256 begins.
    """

    model: str
    revision: str | None = None
    kv_dtype: str
    layers_skipped: tuple[int, ...] | None = None
    engine_version: str | None = None
    backend: str | None = None
    policy: str | None = None


@dataclass(frozen=True, kw_only=True)
class Served:
    """What a running server told. ``models``: id and root of each; ``revision`` and ``labels`` (one mapping an engine)
    are its front end's; ``workers`` read back, None where ``silence`` says why not.
    """

    version: str | None = None
    models: tuple[tuple[str, str], ...] = ()
    revision: str | None = None
    workers: EngineFacts | None = None
    labels: tuple[Mapping[str, str], ...] = ()
    silence: str = ""


def of_record(record: Record, now: datetime) -> Iterator[Check]:
    """Whether the record is whole, and its last signature holds. ``now`` is in UTC."""
    for fault in faults(record):
        yield Check(fact="record", agrees=False, text=fault)
    for signature in record.signatures[-1:]:
        if signature.expired(now):
            yield Check(fact="expiry", agrees=False, text=f"expired at the end of {signature.expires}, UTC")
        else:
            yield Check(fact="expiry", agrees=True, text=f"holds until {signature.expires or 'its terms change'}")


def of_asked(terms: Terms, asked: Asked) -> Iterator[Check]:
    """What the caller says, each beside what was signed."""
    yield _check("model", terms.model, "asked for", asked.model, asked.model == terms.model)
    if asked.revision is not None:
        same = asked.revision == terms.named_revision or _begins(terms.weights_sha256, asked.revision)
        yield _check("revision", _revision(terms), "asked for", asked.revision, same)
    yield _check("kv dtype", _dtype(terms), "asked for", asked.kv_dtype, _stores(terms, asked.kv_dtype))
    skipped = asked.layers_skipped
    if skipped is None and not terms.layers_skipped:
        skipped = ()
    if skipped is not None:
        same = skipped == terms.layers_skipped
        yield _check("layers skipped", _layers(terms.layers_skipped), "asked for", _layers(skipped), same)
    if asked.engine_version is not None:
        yield of_version(terms, "asked for", asked.engine_version)
    if asked.backend is not None:
        same = asked.backend == terms.attention_backend
        yield _check("backend", terms.attention_backend, "asked for", asked.backend, same)
    if asked.policy is not None and asked.policy != terms.policy:
        same = _begins(terms.policy_sha256, asked.policy)
        yield _check("policy", _policy(terms), "asked for", asked.policy, same)


def of_version(terms: Terms, source: str, version: str) -> Check:
    """The engine's version, whoever says it."""
    return _check("engine version", terms.engine_version, source, version, version == terms.engine_version)


def of_server(terms: Terms, served: Served) -> Iterator[Check]:
    """What a running server says, each beside what was signed; the workers where they spoke, else the labels."""
    if served.version is not None:
        yield of_version(terms, "the server says", served.version)
    for name, root in served.models:
        if root and not _LOCAL.match(root):
            yield _check("model", terms.model, "the server loaded", root, root == terms.model, Strength.WEAK)
        elif name == terms.model:
            yield _check("model", terms.model, "the server calls it", name, True, Strength.WEAK)
    if served.revision is not None:
        same = served.revision == terms.revision
        yield _check("revision", _revision(terms), "the server loaded", served.revision, same, Strength.WEAK)
    if served.workers is not None:
        yield from _of_workers(terms, served.workers)
    else:
        for labels in served.labels:
            yield from _of_labels(terms, labels, served.silence)


def settle(terms: Terms, checks: Sequence[Check], served: Served | None, at_least: Strength) -> list[Check]:
    """The checks, and those of facts that nothing shows. ``served`` is None where no server was asked; evidence of what
    it runs counts from ``at_least`` on.
    """
    needed = {
        "revision": (_revision(terms), "give --model ID@REVISION"),
        "layers skipped": (_layers(terms.layers_skipped), "give --skip-layers, or --server in development mode"),
        "engine version": (terms.engine_version, "give --engine-version, or --server"),
        "backend": (terms.attention_backend, "give --backend, or --server in development mode"),
        "policy": (
            _policy(terms),
            "give --policy its sha256, 12 digits or more (its settings may be changed under a name), or --mlflow",
        ),
    }
    if served is not None:
        needed[RUNNING] = (terms.kv_effective, _why_silent(served, checks, at_least))
    shown = {check.fact for check in checks if check.agrees}
    if any(check.fact == RUNNING and _is_weaker(check, at_least) for check in checks):
        shown.discard(RUNNING)
    gaps = [
        Check(fact=fact, agrees=None, text=f"(signed {signed or 'none'}); {remedy}")
        for fact, (signed, remedy) in needed.items()
        if fact not in shown
    ]
    if ANCHOR not in shown:
        remedy = "a file is as good as who could write it; give --sha256, --mlflow, or --signature and --public-key"
        gaps.append(Check(fact=ANCHOR, agrees=None, text=remedy))
    said = {check.fact for check in checks if not check.agrees}
    return [*checks, *(gap for gap in gaps if gap.fact not in said)]


def exit_status(checks: Iterable[Check]) -> int:
    """0: everything matches; 3: something is refused; 4: nothing is, and not everything is shown."""
    found = {check.agrees for check in checks}
    return 3 if False in found else 4 if None in found else 0


def of_sha256(signature: Signature, source: str, sha256: str) -> Check:
    """The hash of the signature that counts, as an anchor outside of the file has it."""
    return _check(ANCHOR, signature.sha256, source, sha256, sha256 == signature.sha256)


def of_registered(signature: Signature, tags: Mapping[str, str]) -> Iterator[Check]:
    """The tags of the registered version that MLflow has of this decision."""
    terms, source = signature.terms, "MLflow has"
    if "signoff_sha256" in tags:
        yield of_sha256(signature, source, tags["signoff_sha256"])
        if later := tags.get("signoff_followed_by"):  # the record was cut, or an older one put in its place
            text = f"the last signature is {signature.sha256}, {source} {later} after it; sign again"
            yield Check(fact=ANCHOR, agrees=False, text=text)
    else:
        yield Check(fact="MLflow", agrees=None, text="(its registered version has no signoff_sha256)")
    policy = tags.get("policy_sha256", "none")
    yield _check("policy", _policy(terms), source, policy, policy == terms.policy_sha256)
    for tag, signed in (
        ("kv_cache_dtype_requested", terms.kv_requested),
        ("kv_cache_dtype_effective", terms.kv_effective),
        ("model_revision", str(terms.revision)),
        ("weights_sha256", terms.weights_sha256),
    ):
        found = tags.get(tag, "none")
        yield _check(f"registered {tag}", signed, source, found, found == signed)


def _of_workers(terms: Terms, facts: EngineFacts) -> Iterator[Check]:
    effective, (quantized, plain) = effective_dtype(facts), layers_quantized(facts)
    skipped = tuple(plain) if quantized else ()
    size, backend = bytes_per_token(facts), "+".join(sorted({each.attention for w in facts.layers for each in w}))
    for fact, signed, verb, found, same in (
        (RUNNING, terms.kv_effective, "run", effective, effective == terms.kv_effective),
        ("layers skipped", _layers(terms.layers_skipped), "skip", _layers(skipped), skipped == terms.layers_skipped),
        ("bytes per token", _bytes(terms), "store", f"{size:,.0f}", _same(size, terms.bytes_per_token)),
        ("backend", terms.attention_backend, "run", backend, backend == terms.attention_backend),
    ):
        yield _check(fact, signed, f"the server's workers {verb}", found, same, Strength.STRONG)
    if apart := _apart(facts):
        text = f"signed the same on every worker, the server's store {apart} in more than one way"
        yield Check(fact=RUNNING, agrees=False, text=text, strength=Strength.STRONG)
    for half, wanted in (("k", terms.k_scales), ("v", terms.v_scales)):
        running = extremes(quantized_scales(facts, half))
        same = len(running) == len(wanted) and all(map(_same, running, wanted))
        texts = _scales(wanted), "the server's workers run", _scales(running)
        yield _check(f"{half} scales", *texts, same, Strength.STRONG)


def _apart(facts: EngineFacts) -> str:
    """The first layer that is stored otherwise on one worker than on another (empty: none is)."""
    ways: dict[str, set[tuple[str, ...]]] = {}
    for layer in (each for worker in facts.layers for each in worker):
        way = layer.kv_dtype, layer.storage, layer.format, layer.attention, f"{layer.bytes_per_token:.6g}"
        ways.setdefault(layer.name, set()).add(way)
    return next((name for name, found in ways.items() if len(found) > 1), "")


def _of_labels(terms: Terms, labels: Mapping[str, str], silence: str) -> Iterator[Check]:
    """``vllm:cache_config_info``. ``auto`` says nothing; the size of the cache still may."""
    name, span = canonical_dtype(labels.get("cache_dtype", "auto")), _span(labels)
    fits = None
    if span is not None and terms.bytes_per_token is not None:
        low, high = span
        fits = low * (1 - _TOLERANCE) <= terms.bytes_per_token <= high * (1 + _TOLERANCE)
        found = f"{low:,.0f} to {high:,.0f}"
        yield _check("bytes per token", _bytes(terms), "the server's cache has", found, fits, Strength.MEDIUM)
    if name == "auto":
        text = f"(signed {terms.kv_effective}); the server's label says auto, which may be anything; {silence}"
        yield Check(fact=RUNNING, agrees=None, text=text)
        return
    strength = Strength.MEDIUM if fits else Strength.WEAK
    yield _check(RUNNING, _dtype(terms), "the server's label says", name, _stores(terms, name), strength)
    listed = labels.get("kv_cache_dtype_skip_layers")
    if listed is not None:
        yield _of_listed(terms, listed, strength)


def _of_listed(terms: Terms, listed: str, strength: Strength) -> Check:
    """The label's list of skipped layers; which of them ``sliding_window`` stands for, only the workers know."""
    skipped = tuple(sorted({int(number) for number in re.findall(r"[0-9]{1,18}", listed)}))
    signed, source, found = _layers(terms.layers_skipped), "the server's label says", _layers(skipped)
    if SLIDING_WINDOW not in listed:
        return _check("layers skipped", signed, source, found, skipped == terms.layers_skipped, strength)
    if more := set(skipped) - set(terms.layers_skipped):
        return _check("layers skipped", signed, source, _layers(sorted(more)), False, strength)
    remedy = "which layers these are the workers say: start the server in development mode"
    return Check(fact="layers skipped", agrees=None, text=f"(signed {signed}); {source} {SLIDING_WINDOW}; {remedy}")


def _span(labels: Mapping[str, str]) -> tuple[float, float] | None:
    """Bytes that K and V of a token take, at least and at most: the cache has as many whole blocks as fit."""
    size, blocks, tokens = (
        int(text) if re.fullmatch(r"[0-9]{1,18}", text := labels.get(key, "")) else 0
        for key in ("kv_cache_memory_bytes", "num_gpu_blocks", "block_size")
    )
    if not (size and blocks and tokens) or labels.get("num_gpu_blocks_override", "None") != "None":
        return None
    return size / (blocks + 1) / tokens, size / blocks / tokens


def _why_silent(served: Served, checks: Iterable[Check], at_least: Strength) -> str:
    weaker = [check.strength for check in checks if check.fact == RUNNING and check.agrees]
    if weaker:
        return f"{weaker[0]} evidence, {at_least} is asked for; {served.silence}"
    return served.silence or "the server does not say"


def _is_weaker(check: Check, at_least: Strength) -> bool:
    order = list(Strength)
    return check.strength is not None and order.index(check.strength) < order.index(at_least)


def _check(
    fact: str, signed: str | None, source: str, found: str, agrees: bool, strength: Strength | None = None
) -> Check:
    agrees = agrees and bool(signed)
    return Check(fact=fact, agrees=agrees, text=f"signed {signed or 'none'}, {source} {found}", strength=strength)


def _stores(terms: Terms, dtype: str) -> bool:
    """Whether an engine with this cache dtype stores what was signed: it stores no reference format."""
    return terms.kv_realisation == Realisation.NATIVE and canonical_dtype(dtype) == terms.kv_requested


def _dtype(terms: Terms) -> str:
    return terms.kv_requested if terms.kv_realisation == Realisation.NATIVE else f"{terms.kv_requested} (reference)"


def _revision(terms: Terms) -> str:
    return terms.named_revision or f"weights {terms.at}"


def _policy(terms: Terms) -> str:
    return f"{terms.policy} {terms.policy_sha256[:SHORTEST_HASH]}"


def _layers(indices: Sequence[int]) -> str:
    return " ".join(map(str, indices)) or "none"


def _bytes(terms: Terms) -> str:
    return "none" if terms.bytes_per_token is None else f"{terms.bytes_per_token:,.0f}"


def _scales(values: Sequence[float]) -> str:
    return " to ".join(f"{value:g}" for value in values) or "none"


def _same(found: float, wanted: float | None) -> bool:
    return wanted is not None and math.isclose(found, wanted, rel_tol=1e-6)


def _begins(sha256: str, prefix: str) -> bool:
    return _HASH.fullmatch(prefix) is not None and sha256.startswith(prefix)
