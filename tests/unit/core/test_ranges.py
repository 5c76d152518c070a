"""How large K and V are: counts that add up, and what they say."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from kvquant_eval.core.arms import Arm, ArmRecord
from kvquant_eval.core.range_profile import OUTLIER, RangeProfile, as_data, profile, sqnr_db
from kvquant_eval.core.ranges import FormatCounts, HalfRanges, HeadCounts, LayerRanges, joined, merged, total
from kvquant_eval.core.records import Role
from kvquant_eval.core.treatment import KVTreatment

BASELINE = Arm(
    name="baseline",
    role=Role.BASELINE,
    treatment=KVTreatment(name="bfloat16", dtype="bfloat16"),
    args={},
    baseline="baseline",
    profile=("fp8_e4m3", "int8"),
)


def head(largest: float = 10.0, *, beyond: int = 0, noise: float = 1.0, int8: float = 0.0) -> HeadCounts:
    """100 values with a sum of squares of 1000."""
    formats = {"fp8_e4m3": FormatCounts(beyond=beyond, noise=noise), "int8": FormatCounts(noise=int8)}
    return HeadCounts(values=100, largest=largest, signal=1000.0, formats=formats)


def half(*heads: HeadCounts, limit: float = 448.0, scale: float = 1.0) -> HalfRanges:
    return HalfRanges(scale=scale, limits={"fp8_e4m3": limit}, heads=heads)


def layer(index: int, k: HalfRanges | None = None, v: HalfRanges | None = None) -> LayerRanges:
    return LayerRanges(index=index, k=k or half(head(), head()), v=v or half(head(), head()))


def found(*layers: LayerRanges) -> RangeProfile:
    return profile(ArmRecord(arm=BASELINE, facts=None, replays=(), counts={}, ranges=layers))


def test_a_total_sums_counts_and_keeps_the_largest() -> None:
    assert total([head(10, beyond=1, noise=0.5), head(500, beyond=3, noise=0.25), head(2)]) == HeadCounts(
        values=300,
        largest=500,
        signal=3000.0,
        formats={"fp8_e4m3": FormatCounts(beyond=4, noise=1.75), "int8": FormatCounts(noise=0.0)},
    )
    assert total([]) == HeadCounts()


def test_blocks_add_up_head_by_head() -> None:
    first = (layer(0, k=half(head(1), head(2))), layer(1))
    second = (layer(0, k=half(head(3), head(1))), layer(1))
    both = merged([first, second])
    assert [each.index for each in both] == [0, 1]
    assert [(h.largest, h.values, h.signal) for h in both[0].k.heads] == [(3, 200, 2000.0), (2, 200, 2000.0)]
    assert (both[0].k.scale, both[0].k.limits) == (1.0, {"fp8_e4m3": 448.0})
    assert merged([first]) == first
    assert merged([(), ()]) == ()


def test_workers_have_other_heads_of_a_layer_or_other_layers() -> None:
    """Two ranks with two heads each of layers 0 and 1; a third, as in a pipeline, with layer 2."""
    left, right = (layer(i, k=half(head(i), head(i + 10))) for i in (0, 1)), [layer(0, k=half(head(7), head(8)))]
    whole = joined([*left, *right, layer(1, k=half(head(9), head(5))), layer(2)])
    assert [each.index for each in whole] == [0, 1, 2]
    assert [h.largest for h in whole[0].k.heads] == [0, 10, 7, 8]
    assert [h.largest for h in whole[1].k.heads] == [1, 11, 9, 5]
    assert len(whole[0].v.heads) == 4
    assert len(whole[2].k.heads) == 2


def test_other_heads_in_another_block_are_a_mistake() -> None:
    with pytest.raises(ValueError, match=r"zip\(\)"):
        merged([(layer(0),), (layer(0, k=half(head())),)])


def test_sqnr_by_hand() -> None:
    """A uniform error of a thousandth of the power is 30 dB."""
    assert sqnr_db(1000.0, 1.0) == pytest.approx(30.0)
    assert sqnr_db(1.0, 4.0) == pytest.approx(-6.0206, abs=1e-4)
    assert (sqnr_db(1.0, 0.0), sqnr_db(0.0, 0.0), sqnr_db(0.0, 1.0)) == (None, None, None)


def test_data_by_layer_and_over_all() -> None:
    loud = half(head(20, noise=10.0), head(500, beyond=2, noise=30.0))
    data = as_data(found(layer(0), layer(1, k=loud)))
    assert (data["arm"], data["formats"]) == ("baseline", ["fp8_e4m3", "int8"])
    assert data["k"] == {
        "largest": 500,
        "layer": 1,
        "head": 1,
        "values": 400,
        "formats": {
            "fp8_e4m3": {"limit": 448.0, "beyond": 0.005, "sqnr_db": pytest.approx(10 * math.log10(4000 / 42))},
            "int8": {"limit": None, "beyond": None, "sqnr_db": None},
        },
    }
    assert [each["layer"] for each in data["layers"]] == [0, 1]
    assert data["layers"][1]["k"]["formats"]["fp8_e4m3"]["sqnr_db"] == pytest.approx(10 * math.log10(2000 / 40))
    assert data["layers"][1]["k"]["formats"]["fp8_e4m3"]["beyond"] == 0.01
    assert (data["layers"][0]["v"]["largest"], data["layers"][0]["v"]["head"]) == (10, 0)
    json.dumps(data, allow_nan=False)


def test_scales_of_their_own_have_no_one_limit_over_all() -> None:
    data = as_data(found(layer(0), layer(1, k=half(head(500, beyond=1), limit=896.0, scale=2.0))))
    assert data["k"]["formats"]["fp8_e4m3"]["limit"] is None
    assert data["k"]["formats"]["fp8_e4m3"]["beyond"] == 1 / 300
    assert data["layers"][1]["k"]["formats"]["fp8_e4m3"]["limit"] == 896.0


V_IS_QUIET = (
    "No head or layer stands out in |V|: the largest is 3 (layer 0, head 1), 1.2 times what the median head reaches; "
    "an outlier has 8 times that."
)


def quiet(layers: int = 4) -> list[LayerRanges]:
    return [layer(i, k=half(head(10), head(12)), v=half(head(2), head(3))) for i in range(layers)]


def planted(layers: list[LayerRanges]) -> list[LayerRanges]:
    """One head's K times 2 ** 10."""
    first, second = layers[2].k.heads
    loud = replace(
        second, largest=second.largest * 2**10, formats={**second.formats, "fp8_e4m3": FormatCounts(beyond=9)}
    )
    return [*layers[:2], replace(layers[2], k=half(first, loud)), *layers[3:]]


def test_a_planted_outlier_is_named_by_layer_and_head_and_clips() -> None:
    clips, follow, *out = found(*planted(quiet())).sentences
    assert clips == (
        "fp8_e4m3 clips at unit scales: |K| of layer 2, head 1 reaches 12,288, 27.43 times its largest value, 448. It "
        "clips in 1 of 16 heads (K and V), 0.562% of the values that were sampled."
    )
    assert follow == "Their scales follow the values, so there is no fixed range to pass: int8."
    assert out[:2] == [
        "Outlier head: |K| of layer 2, head 1 reaches 12,288 (1,117 times), where the median head reaches 11.",
        "Outlier layer: |K| of layer 2, head 1 reaches 12,288 (1,024 times), where the median layer reaches 12.",
    ]
    assert out[2:] == [V_IS_QUIET]


def test_that_nothing_clips_is_said() -> None:
    clips, _, *out = found(*quiet()).sentences
    assert clips == (
        "fp8_e4m3 clips nothing at unit scales: |K| of layer 0, head 1 reaches 12, the most, and 448 is its largest "
        "value."
    )
    assert out[0].startswith("No head or layer stands out in |K|: the largest is 12 (layer 0, head 1), 1.091 times")
    assert out[1:] == [V_IS_QUIET]


def test_at_the_limit_nothing_clips_and_a_scale_moves_it() -> None:
    edge = [layer(0, k=half(head(448.0)))]
    assert "clips nothing at unit scales" in found(*edge).sentences[0]
    assert "clips at unit scales" in found(layer(0, k=half(head(450.0)))).sentences[0]
    moved = found(layer(0, k=half(head(450.0), limit=896.0, scale=2.0))).sentences[0]
    assert "clips nothing at the scales in use: |K| of layer 0, head 0 reaches 450" in moved


@pytest.mark.parametrize(("times", "stands_out"), [(OUTLIER - 0.1, False), (OUTLIER, True)])
def test_where_an_outlier_begins(times: float, stands_out: bool) -> None:
    layers = [layer(i, k=half(*[head(10)] * 5)) for i in range(3)]
    layers[1] = layer(1, k=half(*[head(10)] * 4, head(10 * times)))
    assert (
        any(line.startswith("Outlier head: |K| of layer 1, head 4") for line in found(*layers).sentences) is stands_out
    )


def test_many_outliers_are_counted_and_the_largest_named_first() -> None:
    layers = [layer(i, k=half(*[head(1)] * 9, head(100 + i))) for i in range(5)]
    said = next(line for line in found(*layers).sentences if line.startswith("Outlier heads"))
    assert said.startswith("Outlier heads: |K| of layer 4, head 9 reaches 104 (104 times); |K| of layer 3, head 9")
    assert "; and 2 more, where the median head reaches 1." in said


def test_nothing_seen_is_said_and_no_number_is_made_up() -> None:
    for layers in ((), (LayerRanges(index=0, k=half(HeadCounts()), v=half(HeadCounts())),)):
        data = as_data(found(*layers))
        assert data["sentences"] == ["No K and V were seen."]
        assert (data["k"]["largest"], data["k"]["head"], data["k"]["values"]) == (None, None, 0)
        json.dumps(data, allow_nan=False)


def test_zeros_are_no_outliers() -> None:
    zero: Any = replace(head(0), signal=0.0)
    said = found(layer(0, k=half(zero, zero), v=half(zero, head(5)))).sentences
    assert any("stands out in |K|: the largest is 0" in line for line in said)
    assert "Outlier head: |V| of layer 0, head 1 reaches 5" not in said, "5 is twice the median of 0 and 5"
