"""What a native KV cache costs because of its format, and what because of how the engine stores it.

A reference arm has the format's correct rounding and nothing else of the engine's. So the native arm's distance from
the baseline is set beside the reference arm's: what is left over is the engine's. Diagnostic: nothing decides by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kvquant_eval.core.arms import Arm, ArmRecord
from kvquant_eval.core.codec import to_data
from kvquant_eval.core.fidelity import TurnFidelity, summarise
from kvquant_eval.core.records import Role
from kvquant_eval.core.results import CandidateResult
from kvquant_eval.core.stored import StoredCodes, StoredLayer, total
from kvquant_eval.core.treatment import UNQUANTIZED, Realisation

Pair = tuple[str, str]
"""Two arms by name, the one that the other is compared with first."""


class Source(StrEnum):
    """Where most of a native arm's distance from its baseline comes from."""

    FORMAT = "format"
    ENGINE = "engine"
    COMPENSATION = "compensation"
    """The native arm is nearer to the baseline than correct rounding: errors that cancel, not a better format."""
    NOISE = "noise"
    """Neither is farther away than the placebo."""


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Of the values of K, or of V, that were read back (0..1 but for the last three; None where none were).

    ``identical``: the stored code is the correctly rounded one. ``saturated`` and ``flushed``: as in ``StoredCodes``,
    with what correct rounding would give. ``ulps``: mean distance from the right code, in steps of the format;
    ``bias``: that of the magnitude, < 0 where values are stored too small; ``worst``: the largest distance.
    ``shrinkage`` and ``shrinkage_right``: mean magnitude stored, by that of the values, minus 1.
    """

    values: int
    identical: float | None = None
    saturated: float | None = None
    saturated_right: float | None = None
    flushed: float | None = None
    flushed_right: float | None = None
    shrinkage: float | None = None
    shrinkage_right: float | None = None
    ulps: float | None = None
    bias: float | None = None
    worst: int | None = None


@dataclass(frozen=True, kw_only=True)
class Distances:
    """Mean KL in nats a token, >= 0: of the native and of the reference arm from their baseline, of the native from the
    reference arm, and of the placebo (the floor); None where one of the two did not run.
    """

    native: float | None
    reference: float | None
    between: float | None
    floor: float | None


@dataclass(frozen=True, kw_only=True)
class Attribution:
    """One native candidate. ``gl`` holds mean drops in points by class and score, [native, reference], > 0 is worse.
    Without a ``reference`` arm only the codes are known.
    """

    reference: str | None
    k: Shares
    v: Shares
    layers: tuple[tuple[int, Shares, Shares], ...]
    kl: Distances
    gl: Mapping[str, Mapping[str, tuple[float | None, float | None]]]
    source: Source | None
    sentences: tuple[str, ...]


def pairs(arms: Sequence[Arm]) -> tuple[Pair, ...]:
    """(reference arm, native arm) of the same formats, layers and baseline."""
    return tuple(
        (other.name, native.name)
        for native in arms
        if is_native(native)
        for other in _references(native, arms)
        if other.baseline == native.baseline
    )


def _references(native: Arm, arms: Sequence[Arm]) -> list[Arm]:
    """The candidates that round K and V to what ``native`` stores, in the same layers, under the same scales."""
    asked = native.treatment.formats, native.treatment.skip_layers, native.treatment.layer_scales
    return [
        arm
        for arm in arms
        if arm.role is Role.CANDIDATE
        and arm.treatment.realisation is Realisation.REFERENCE
        and (arm.treatment.formats, arm.treatment.skip_layers, arm.treatment.layer_scales) == asked
    ]


def is_native(arm: Arm) -> bool:
    """A candidate whose cache the engine itself quantizes."""
    return (
        arm.role is Role.CANDIDATE
        and arm.treatment.realisation is Realisation.NATIVE
        and not {*arm.treatment.formats} <= {*UNQUANTIZED}
    )


def attribute(
    arms: Mapping[str, ArmRecord],
    results: Mapping[str, CandidateResult],
    near: Mapping[Pair, Sequence[TurnFidelity]],
) -> dict[str, Attribution]:
    """Every native candidate by name. ``near`` has each arm beside its baseline, and the ``pairs``."""
    all_arms = [record.arm for record in arms.values()]
    found = {native: reference for reference, native in pairs(all_arms)}
    placebos = [r.arm for r in arms.values() if r.arm.name == "placebo"]
    floor = next((_kl(near, placebo.baseline, placebo.name) for placebo in placebos), None)
    return {
        name: _one(record, found.get(name), _references(record.arm, all_arms), results, near, floor)
        for name, record in arms.items()
        if is_native(record.arm)
    }


def as_data(found: Mapping[str, Attribution]) -> dict[str, Any]:
    """By candidate, as ``decision.json`` and ``attribution.json`` have it; a layer is {layer, k, v}."""
    data = {name: to_data(one) for name, one in found.items()}
    for one in data.values():
        one["layers"] = [{"layer": index, "k": k, "v": v} for index, k, v in one["layers"]]
    return data


def _one(
    record: ArmRecord,
    reference: str | None,
    elsewhere: Sequence[Arm],
    results: Mapping[str, CandidateResult],
    near: Mapping[Pair, Sequence[TurnFidelity]],
    floor: float | None,
) -> Attribution:
    name, base = record.arm.name, record.arm.baseline
    k, v = (shares(getattr(layer, half) for layer in record.stored) for half in ("k", "v"))
    kl = Distances(
        native=_kl(near, base, name),
        reference=_kl(near, base, reference) if reference else None,
        between=_kl(near, reference, name) if reference else None,
        floor=floor,
    )
    return Attribution(
        reference=reference,
        k=k,
        v=v,
        layers=tuple(_layer(layer) for layer in record.stored),
        kl=kl,
        gl=_drops(results.get(name), results.get(reference)) if reference else {},
        source=_source(kl),
        sentences=(
            _codes_sentence(k, v),
            _source_sentence(name, kl, reference) if reference else _alone_sentence(record.arm, elsewhere),
        ),
    )


def shares(counts: Iterable[StoredCodes]) -> Shares:
    """Counts to shares and means."""
    all_ = total(counts)
    if not all_.values:
        return Shares(values=0)
    n = all_.values
    return Shares(
        values=n,
        identical=all_.identical / n,
        saturated=all_.saturated / n,
        saturated_right=all_.saturated_right / n,
        flushed=all_.flushed / n,
        flushed_right=all_.flushed_right / n,
        shrinkage=all_.magnitude_stored / all_.magnitude - 1 if all_.magnitude else None,
        shrinkage_right=all_.magnitude_right / all_.magnitude - 1 if all_.magnitude else None,
        ulps=all_.ulps / n,
        bias=all_.bias / n,
        worst=all_.worst,
    )


def _layer(layer: StoredLayer) -> tuple[int, Shares, Shares]:
    return layer.index, shares([layer.k]), shares([layer.v])


def _kl(near: Mapping[Pair, Sequence[TurnFidelity]], left: str, right: str) -> float | None:
    return summarise(near[left, right]).means.kl if (left, right) in near else None


def _drops(
    native: CandidateResult | None, reference: CandidateResult | None
) -> dict[str, dict[str, tuple[float | None, float | None]]]:
    if native is None or reference is None:
        return {}
    return {
        workload: {
            score: (result.mean_drop, other.mean_drop)
            for score, result in judged.scores.items()
            if score.startswith("gl_") and (other := reference.classes[workload].scores.get(score)) is not None
        }
        for workload, judged in native.classes.items()
        if workload in reference.classes
    }


def _source(kl: Distances) -> Source | None:
    """The engine's part is what the native arm is farther away than correct rounding."""
    if kl.native is None or kl.reference is None:
        return None
    if max(kl.native, kl.reference) <= (kl.floor or 0.0):
        return Source.NOISE
    if kl.native < kl.reference:
        return Source.COMPENSATION
    return Source.ENGINE if kl.native - kl.reference > kl.reference else Source.FORMAT


def _codes_sentence(k: Shares, v: Shares) -> str:
    read = [(name, half) for name, half in (("K", k), ("V", v)) if half.identical is not None]
    if not read:
        return "What the engine stored was not read back."
    if all(half.identical == 1 for _, half in read):
        return "Every stored code that was read back is the correctly rounded one."
    said = "; ".join(
        f"{name}: {half.identical:.1%} of the codes, off by {half.bias:+.2f} steps on average, magnitudes "
        f"{half.shrinkage or 0:+.2%} where correct rounding gives {half.shrinkage_right or 0:+.2%}"
        for name, half in read
    )
    return f"The engine does not store the correctly rounded codes ({said})."


def _alone_sentence(native: Arm, elsewhere: Sequence[Arm]) -> str:
    """Why there is nothing to tell the format's part by."""
    dtype = native.treatment.requested
    if elsewhere:
        other = elsewhere[0]
        return (
            f"{other.name} ran against {other.baseline}, this arm against {native.baseline}: to set them side by side, "
            "run both eager (engine.args.enforce_eager=true)."
        )
    return f"No reference arm of {dtype} ran beside it, so what the format costs by itself is not known."


def _source_sentence(name: str, kl: Distances, reference: str) -> str:
    """Which of the two dominates, in words, with the numbers in it."""
    source = _source(kl)
    if source is None or kl.native is None or kl.reference is None:
        return f"{name if kl.native is None else reference} left nothing to compare with."
    between = "" if kl.between is None else f", between both {kl.between:.4f}"
    numbers = f"(KL to the baseline {kl.native:.4f} nats a token, of correct rounding {kl.reference:.4f}{between})"
    explained = f"{kl.reference / kl.native:.0%} of the distance {numbers}" if kl.native else numbers
    return {
        Source.FORMAT: f"The format dominates: correct rounding alone explains {explained}.",
        Source.ENGINE: f"The engine dominates: correct rounding explains only {explained}.",
        Source.COMPENSATION: f"Nearer to the baseline than correct rounding: compensation, not a gain {numbers}.",
        Source.NOISE: f"Neither format nor engine moves more than the placebo {numbers}.",
    }[source]
