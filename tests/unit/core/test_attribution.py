"""Format or engine: which of the two a native candidate's distance comes from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvquant_eval.core.arms import Arm, ArmRecord
from kvquant_eval.core.attribution import Source, as_data, attribute, pairs, shares
from kvquant_eval.core.fidelity import TurnFidelity, measure
from kvquant_eval.core.records import Role
from kvquant_eval.core.stored import StoredCodes, StoredLayer, merged, total
from kvquant_eval.core.treatment import KVTreatment, Realisation
from tests.fakes.records import forced, rendered_turn

TRUNCATED = StoredCodes(
    values=1000, identical=540, ulps=460, bias=-460, worst=1, saturated=2, saturated_right=3, flushed=5,
    flushed_right=2, magnitude=200.0, magnitude_stored=192.0, magnitude_right=199.8,
)  # fmt: skip
RIGHT = replace(TRUNCATED, identical=1000, ulps=0, bias=0, worst=0, magnitude_stored=199.8)


def arm(name: str, role: Role = Role.CANDIDATE, **kv: Any) -> Arm:
    treatment = KVTreatment(name=name, **{"dtype": "bfloat16", **kv})
    return Arm(name=name, role=role, treatment=treatment, args={}, baseline="baseline")


BASELINE = arm("baseline", Role.BASELINE)
PLACEBO = arm("placebo", Role.CONTROL, dtype="placebo", realisation=Realisation.REFERENCE)
NATIVE = arm("native", dtype="fp8")
REFERENCE = arm("reference", dtype="fp8_e4m3", realisation=Realisation.REFERENCE)


def test_a_native_arm_is_paired_with_its_own_rounding() -> None:
    others = [
        arm("other_format", dtype="fp8_e5m2", realisation=Realisation.REFERENCE),
        arm("other_layers", dtype="fp8_e4m3", realisation=Realisation.REFERENCE, skip_layers=("0",)),
        arm("half", dtype="fp8_e4m3", v="int8", realisation=Realisation.REFERENCE),
        replace(REFERENCE, name="eager", baseline="baseline_eager"),
    ]
    assert pairs([BASELINE, PLACEBO, NATIVE, *others]) == ()
    assert pairs([BASELINE, PLACEBO, NATIVE, *others, REFERENCE]) == (("reference", "native"),)
    assert pairs([arm("self_test"), REFERENCE, PLACEBO]) == ()


def turns(kl: float) -> tuple[TurnFidelity, ...]:
    """One token whose probability moves so that KL is about ``kl``."""
    other = forced([-0.6931], top=(((0, -0.6931), (1, -0.6931)),))
    shift = (2 * kl) ** 0.5
    moved = forced([-0.6931], top=(((0, -0.6931 - shift), (1, -0.6931 + shift)),))
    return (measure(rendered_turn("t"), other, moved if kl else other),)


def found(native: float, reference: float, floor: float = 0.001, codes: StoredCodes = TRUNCATED) -> Any:
    stored = (StoredLayer(index=0, k=codes, v=RIGHT), StoredLayer(index=1, k=codes, v=RIGHT))
    records = {
        each.name: ArmRecord(arm=each, facts=None, replays=(), counts={}, stored=stored if each is NATIVE else ())
        for each in (BASELINE, PLACEBO, NATIVE, REFERENCE)
    }
    near = {
        ("baseline", "native"): turns(native),
        ("baseline", "reference"): turns(reference),
        ("reference", "native"): turns(native),
        ("baseline", "placebo"): turns(floor),
    }
    return attribute(records, {}, near)["native"]


@pytest.mark.parametrize(
    ("native", "reference", "source", "said"),
    [
        (0.03, 0.02, Source.FORMAT, "The format dominates: correct rounding alone explains 6"),
        (0.09, 0.02, Source.ENGINE, "The engine dominates: correct rounding explains only 2"),
        (0.01, 0.02, Source.COMPENSATION, "Nearer to the baseline than correct rounding: compensation, not a gain"),
        (0.0005, 0.0002, Source.NOISE, "Neither format nor engine moves more than the placebo"),
        (0.0, 0.0, Source.NOISE, "Neither format nor engine moves more than the placebo"),
    ],
)
def test_what_dominates(native: float, reference: float, source: Source, said: str) -> None:
    one = found(native, reference)
    assert one.source is source
    assert one.sentences[1].startswith(said)
    assert one.kl.native == pytest.approx(native, rel=0.2)


def test_codes_in_words() -> None:
    one = found(0.03, 0.02)
    assert one.sentences[0] == (
        "The engine does not store the correctly rounded codes (K: 54.0% of the codes, off by -0.46 steps on average, "
        "magnitudes -4.00% where correct rounding gives -0.10%; V: 100.0% of the codes, off by +0.00 steps on average, "
        "magnitudes -0.10% where correct rounding gives -0.10%)."
    )
    assert (one.k.values, one.k.identical, one.k.bias, one.k.worst) == (2000, 0.54, -0.46, 1)
    assert found(0.03, 0.02, codes=RIGHT).sentences[0] == (
        "Every stored code that was read back is the correctly rounded one."
    )
    assert found(0.03, 0.02, codes=StoredCodes()).sentences[0].startswith("The engine does not store") is False


def test_without_a_reference_only_the_codes_are_known() -> None:
    record = ArmRecord(arm=NATIVE, facts=None, replays=(), counts={})
    one = attribute({"native": record}, {}, {})["native"]
    assert (one.reference, one.source, one.k.values) == (None, None, 0)
    assert one.sentences == (
        "What the engine stored was not read back.",
        "No reference arm of fp8_e4m3 ran beside it, so what the format costs by itself is not known.",
    )


def test_a_reference_that_ran_against_another_baseline_is_named() -> None:
    """A compiled engine's native arms, whose references are eager."""
    other = replace(REFERENCE, baseline="baseline_eager")
    records = {each.name: ArmRecord(arm=each, facts=None, replays=(), counts={}) for each in (NATIVE, other)}
    assert attribute(records, {}, {})["native"].sentences[1] == (
        "reference ran against baseline_eager, this arm against baseline: to set them side by side, run both eager "
        "(engine.args.enforce_eager=true)."
    )


def test_an_arm_that_left_nothing_is_named() -> None:
    nothing = (measure(rendered_turn("t"), None, None),)
    records = {each.name: ArmRecord(arm=each, facts=None, replays=(), counts={}) for each in (NATIVE, REFERENCE)}
    for dead in ("native", "reference"):
        near = {(("baseline"), name): nothing if name == dead else turns(0.01) for name in ("native", "reference")}
        one = attribute(records, {}, {**near, ("reference", "native"): nothing})["native"]
        assert one.sentences[1] == f"{dead} left nothing to compare with."


def test_only_native_candidates_are_attributed() -> None:
    records = {each.name: ArmRecord(arm=each, facts=None, replays=(), counts={}) for each in (BASELINE, REFERENCE)}
    assert attribute(records, {}, {}) == {}


def test_as_data() -> None:
    data = as_data({"native": found(0.09, 0.02)})["native"]
    assert data["source"] == "engine"
    assert [layer["layer"] for layer in data["layers"]] == [0, 1]
    assert data["layers"][0]["k"]["identical"] == 0.54
    assert data["kl"]["floor"] == pytest.approx(0.001, rel=0.1)


def test_shares_of_nothing() -> None:
    assert shares([]) == shares([StoredCodes()])
    assert shares([]).identical is None


def test_layers_of_workers_and_blocks_are_one() -> None:
    a, b = StoredLayer(index=1, k=TRUNCATED, v=RIGHT), StoredLayer(index=0, k=RIGHT, v=RIGHT)
    one, two = merged([a, b, replace(a, k=replace(TRUNCATED, worst=7))])
    assert (one, two.index) == (b, 1)
    assert (two.k.values, two.k.bias, two.k.worst, two.k.magnitude) == (2000, -920, 7, 400.0)
    assert total([]) == StoredCodes()
