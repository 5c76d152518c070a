"""Scales: made of magnitudes, checked before they are used, and kept from the turns that made them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from kvquant_eval.core.codec import DataError, to_json
from kvquant_eval.core.ranges import HalfRanges, HeadCounts, LayerRanges
from kvquant_eval.core.scales import (
    LARGEST,
    Calibration,
    LayerScales,
    Per,
    calibrated,
    check_scales,
    hashes,
    parse,
    power_of_two,
    refuse_seen,
)


def half(*largest: float) -> HalfRanges:
    return HalfRanges(heads=tuple(HeadCounts(values=1, largest=each) for each in largest))


RANGES = (
    LayerRanges(index=0, k=half(448.0, 10.0), v=half(0.0, 7.0)),
    LayerRanges(index=3, k=half(3.0, 900.0), v=half(1e-3, 0.0)),
)
MADE = Calibration(
    schema_version=1,
    model="org/model",
    revision=None,
    weights_sha256="w",
    model_dtype="bfloat16",
    golden="set 1",
    golden_sha256="g",
    folds=(0,),
    conversations=hashes(["a", "b"]),
    k_format="fp8_e4m3",
    v_format="fp8_e4m3",
    per=Per.LAYER,
    layers=calibrated(RANGES, ("fp8_e4m3", "fp8_e4m3"), Per.LAYER),
)


@pytest.mark.parametrize(
    ("largest", "scale"),
    [(448.0, 1.0), (448.1, 2.0), (896.0, 2.0), (224.0, 0.5), (224.1, 1.0), (1.0, 2.0**-8), (1.75, 2.0**-8), (0.0, 1.0)],
)
def test_the_least_power_of_two_that_fits(largest: float, scale: float) -> None:
    assert power_of_two(largest, 448.0) == scale
    assert largest == 0 or largest / scale <= 448.0 < 2 * largest / scale


@pytest.mark.parametrize("limit", LARGEST.values())
def test_whatever_bfloat16_holds_gets_a_finite_scale(limit: float) -> None:
    for largest in (1e-38, 3.38e38):
        assert 0 < power_of_two(largest, limit) < math.inf


def test_one_scale_a_layer_is_that_of_its_largest_head() -> None:
    assert MADE.scales == (
        LayerScales(index=0, k=(1.0,), v=(2.0**-6,)),
        LayerScales(index=3, k=(4.0,), v=(2.0**-18,)),
    )
    assert [layer.k.largest for layer in MADE.layers] == [(448.0, 10.0), (3.0, 900.0)]


def test_one_scale_a_head() -> None:
    first, second = calibrated(RANGES, ("fp8_e4m3", "nvfp4"), Per.HEAD)
    assert (first.k.scales, first.v.scales) == ((1.0, 2.0**-5), (1.0, 2.0**-8))
    assert second.k.scales == (2.0**-7, 4.0)


def test_a_file_is_read_back_as_it_was_written() -> None:
    assert parse(to_json(MADE), "scales.json") == MADE


@pytest.mark.parametrize("scale", [0, -1.0, math.nan, math.inf])
def test_what_cannot_be_a_scale_is_refused_with_its_layer(scale: float) -> None:
    data = json.loads(to_json(MADE))
    data["layers"][1]["v"]["scales"] = [scale]
    with pytest.raises(DataError, match=r"^s: scales over 0 and finite, got .* for V of layer 3; calibrate again$"):
        parse(json.dumps(data), "s")


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"schema_version": 2}, "s: schema_version 1, got 2; calibrate again"),
        ({"layers": []}, "s: scales, got none; calibrate again"),
        ({"layers": "x"}, "s: layers: Input should be a valid array, got 'x'"),
        ({"moddel": "x"}, "s: moddel: a known key, got 'x'; did you mean 'model'?"),
        ({"per": "token"}, "s: per: Input should be 'layer' or 'head', got 'token'"),
    ],
)
def test_a_file_of_another_shape_is_one_line(change: dict[str, Any], line: str) -> None:
    with pytest.raises(DataError) as caught:
        parse(json.dumps({**json.loads(to_json(MADE)), **change}), "s")
    assert str(caught.value).replace("got 'moddel'", "got 'x'") == line


def test_no_json_is_one_line() -> None:
    with pytest.raises(DataError, match=r"^s: line: Invalid JSON"):
        parse("{", "s")


def test_layers_come_once_and_heads_are_all_there() -> None:
    twice = (LayerScales(index=1, k=(1.0,), v=(1.0,)),) * 2
    with pytest.raises(DataError, match=r"^s: each layer once, by its index, got layer 1;"):
        check_scales("s", twice)
    some = replace(MADE.layers[0], k=replace(MADE.layers[0].k, largest=(1.0, 1.0, 1.0), scales=(1.0, 2.0)))
    with pytest.raises(DataError, match=r"^s: one scale, or one for each of the 3 heads, got 2 in layer 0;"):
        parse(to_json(replace(MADE, layers=(some,))), "s")


def test_a_conversation_that_was_calibrated_on_decides_nothing() -> None:
    refuse_seen("kv.x.scales_from", MADE.conversations, ["c", "d"])
    with pytest.raises(DataError) as caught:
        refuse_seen("kv.x.scales_from", MADE.conversations, ["c", "b", "d"])
    assert str(caught.value) == (
        "kv.x.scales_from: turns of conversations that its scales were not calibrated on, got 1 of 3 that they were "
        "('b' first); take other folds: golden.folds=[...] (a search: search.*_folds)"
    )
