"""Reference formats against other implementations (``tests/fakes/oracles.py``), and values by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kvquant_eval.worker.formats import (
    FORMATS,
    fp8_e4m3,
    fp8_e5m2,
    identity,
    int4,
    int8,
    mxfp4,
    mxfp8,
    nvfp4,
    placebo,
    scaled,
)
from tests.fakes.oracles import ELEMENTS, ORACLES, all_bf16, codes, compressed_nvfp4, differences, inputs, ties

ROUNDING = [name for name in FORMATS if name not in ("identity", "placebo")]
NAN_ELEMENTS = ("fp8_e4m3", "fp8_e5m2", "mxfp8")
"""Formats that store one NaN without losing its neighbours."""
INPUTS = inputs(tokens=256)
FLOAT8 = [("fp8_e4m3", torch.float8_e4m3fn), ("fp8_e5m2", torch.float8_e5m2)]


def noise(*shape: int, scale: float = 1.0, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_shape_is_kept_and_the_result_is_float32(name: str, dtype: torch.dtype) -> None:
    x = noise(5, 2, 32).to(dtype)
    before = x.clone()
    y = FORMATS[name](x)
    assert (y.shape, y.dtype) == (x.shape, torch.float32)
    assert torch.equal(x, before)


@pytest.mark.parametrize("name", FORMATS)
def test_zero_vectors_stay_zero(name: str) -> None:
    assert torch.equal(FORMATS[name](torch.zeros(3, 2, 32)), torch.zeros(3, 2, 32))


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in ("placebo", "int4")])
def test_signs_are_symmetric(name: str) -> None:
    x = noise(20, 2, 64, scale=3.0)
    assert torch.equal(FORMATS[name](-x), -FORMATS[name](x))


@pytest.mark.parametrize("name", ["identity", "fp8_e4m3", "fp8_e5m2", "nvfp4", "mxfp4", "mxfp8"])
def test_rounding_twice_is_rounding_once(name: str) -> None:
    once = FORMATS[name](noise(20, 2, 64, scale=3.0))
    assert torch.equal(FORMATS[name](once), once)


@pytest.mark.parametrize("name", FORMATS)
def test_a_token_does_not_depend_on_its_neighbours(name: str) -> None:
    """The same vector is stored alike in whatever batch, and under whatever head, it comes."""
    x = noise(6, 3, 32)
    assert torch.equal(FORMATS[name](x)[2:4, 1:2], FORMATS[name](x[2:4, 1:2]))


def test_identity_is_bit_exact() -> None:
    x = all_bf16()
    assert torch.equal(identity(x).bfloat16().view(torch.int16), x.view(torch.int16))


@pytest.mark.parametrize("what", INPUTS)
@pytest.mark.parametrize("name", ROUNDING)
def test_every_value_is_rounded_as_others_round_it(name: str, what: str) -> None:
    found = differences(name, INPUTS[what], FORMATS[name](INPUTS[what]))
    assert {by: differing for by, (differing, _) in found.items()} == dict.fromkeys(found, 0)


def test_nothing_is_left_out_of_the_comparison() -> None:
    assert {*ROUNDING} == {*ORACLES}
    compared = {by: n for by, (_, n) in differences("mxfp4", INPUTS["normal"], mxfp4(INPUTS["normal"])).items()}
    assert compared["element types"] == 256 * 3 * 64
    assert compared["whole"] > 0.75 * 256 * 3 * 64


@pytest.mark.parametrize(("name", "torch_type"), FLOAT8)
def test_float8_is_torchs_own(name: str, torch_type: torch.dtype) -> None:
    """All BF16 values, the codes, and the midpoints between them with their neighbours."""
    x = torch.cat([all_bf16().float(), codes(name), ties(name)])
    _, largest = ELEMENTS[name]
    assert torch.equal(FORMATS[name](x), x.clamp(-largest, largest).to(torch_type).float())


@pytest.mark.parametrize("name", ["fp8_e4m3", "fp8_e5m2"])
def test_float8_keeps_every_code(name: str) -> None:
    assert torch.equal(FORMATS[name](codes(name)), codes(name))
    assert len(codes(name)) == {"fp8_e4m3": 253, "fp8_e5m2": 247}[name]  # 256 less NaN, infinities and one zero


@pytest.mark.parametrize(
    ("x", "e4m3", "e5m2"),
    [
        (1.0, 1.0, 1.0),
        (1.0625, 1.0, 1.0),  # a tie of E4M3 to the even mantissa
        (1.1875, 1.25, 1.25),
        (0.3, 0.3125, 0.3125),
        (500.0, 448.0, 512.0),
        (-1e9, -448.0, -57344.0),
        (2.0**-9, 2.0**-9, 2.0**-9),
        (2.0**-10, 0.0, 2.0**-10),  # half of E4M3's smallest value, a tie to zero
        (2.0**-17, 0.0, 0.0),  # half of E5M2's
    ],
)
def test_float8_values_by_hand(x: float, e4m3: float, e5m2: float) -> None:
    assert fp8_e4m3(torch.tensor([x])).item() == e4m3
    assert fp8_e5m2(torch.tensor([x])).item() == e5m2


def block(*values: float) -> Tensor:
    """One block of 16 whose scale is 1: its largest magnitude is 6."""
    return torch.tensor([[6.0, *values, *[0.0] * (15 - len(values))]])


def test_e2m1_ties_go_to_the_even_code() -> None:
    ties = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
    rounded = [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0]
    assert nvfp4(block(*ties))[0, 1:8].tolist() == rounded
    assert nvfp4(block(*[-tie for tie in ties]))[0, 1:8].tolist() == [-value for value in rounded]


def test_nvfp4_saturates() -> None:
    """The largest scale is 448 and the largest element 6."""
    assert nvfp4(torch.full((1, 16), 1e6)).tolist() == [[2688.0] * 16]


def test_nvfp4_blocks_are_apart() -> None:
    """An outlier ruins its own block of 16, not the next."""
    x = noise(1, 1, 32).clamp(-2, 2)
    spiked = x.clone()
    spiked[..., 0] = 1000.0
    assert torch.equal(nvfp4(spiked)[..., 16:], nvfp4(x)[..., 16:])
    assert torch.all(nvfp4(spiked)[..., 1:16] == 0)


def test_int8_values_by_hand() -> None:
    """The largest magnitude is 127, so the step is 1; ties to even."""
    x = torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, 126.4, -127.0]])
    assert int8(x).tolist() == [[127.0, 0.0, 2.0, 2.0, 0.0, -2.0, 126.0, -127.0]]


def test_int8_scales_each_token_and_head_by_itself() -> None:
    x = noise(4, 2, 32)
    scaled = x * torch.tensor([1.0, 64.0]).view(1, 2, 1)
    assert torch.equal(int8(scaled)[:, 1], int8(x)[:, 1] * 64)
    assert torch.equal(int8(scaled)[:, 0], int8(x)[:, 0])


def test_int4_values_by_hand() -> None:
    """From -3 to 12 the step is 1 and zero is the code -5; ties go to the even code, which is an odd value there."""
    x = torch.tensor([[12.0, 0.5, 1.5, 2.5, -0.5, -1.5, 6.4, -3.0, 0.0]])
    assert int4(x).tolist() == [[12.0, 1.0, 1.0, 3.0, -1.0, -1.0, 6.0, -3.0, 0.0]]


@pytest.mark.parametrize("sign", [1, -1])
def test_int4_spends_its_codes_on_one_side_where_the_values_are(sign: int) -> None:
    """0 is kept, so from 5 to 15 the step is 1 as well."""
    x = sign * torch.tensor([[15.0, 5.0, 7.6]])
    assert int4(x).tolist() == (sign * torch.tensor([[15.0, 5.0, 8.0]])).tolist()


def test_mx_scales_are_powers_of_two_by_the_largest_value() -> None:
    """7 lies between 4 and 8: over 4 / 4 it saturates at 6. 8 is stored over 8 / 4 = 2, whose steps are 1, 2, 4, 8."""
    assert mxfp4(torch.tensor([[7.0, 5.0, 0.3]])).tolist() == [[6.0, 4.0, 0.5]]
    assert mxfp4(torch.tensor([[8.0, 5.0, 0.3]])).tolist() == [[8.0, 4.0, 0.0]]
    assert mxfp8(torch.tensor([[480.0, 1.0, 0.3]])).tolist() == [[448.0, 1.0, 0.3125]]


@pytest.mark.parametrize(("name", "block"), [("nvfp4", 16), ("mxfp4", 32), ("mxfp8", 32)])
@pytest.mark.parametrize("size", [1, 15, 16, 17, 24, 31, 33, 48, 80, 192])
def test_the_last_block_may_be_shorter(name: str, block: int, size: int) -> None:
    """As if zeros filled it up, and as if the blocks before it were alone."""
    x, whole = noise(7, 2, size, scale=5.0), size - size % block
    filled = torch.nn.functional.pad(x, (0, -size % block))
    assert torch.equal(FORMATS[name](x), FORMATS[name](filled)[..., :size])
    if whole:
        assert torch.equal(FORMATS[name](x)[..., :whole], FORMATS[name](x[..., :whole]))


@pytest.mark.parametrize("shape", [(64,), (5, 64), (2, 3, 4, 64), (0, 3, 64)])
@pytest.mark.parametrize("name", FORMATS)
def test_any_leading_shape(name: str, shape: tuple[int, ...]) -> None:
    x = noise(*shape)
    flat = FORMATS[name](x.reshape(-1, 64)) if x.numel() else x.reshape(-1, 64)
    assert torch.equal(FORMATS[name](x), flat.reshape(shape))


@pytest.mark.parametrize("name", FORMATS)
def test_a_view_is_as_good_as_a_copy(name: str) -> None:
    x = noise(6, 8, 64).bfloat16().transpose(0, 1)[::2]
    assert torch.equal(FORMATS[name](x), FORMATS[name](x.contiguous()))


@pytest.mark.parametrize("name", ROUNDING)
def test_nan_stays_nan_and_takes_its_scale_with_it(name: str) -> None:
    x = noise(2, 1, 64)
    spoilt = x.clone()
    spoilt[0, 0, 40] = math.nan
    block = {"nvfp4": slice(32, 48), "mxfp4": slice(32, 64)}.get(name, slice(0, 64))
    lost = FORMATS[name](spoilt).isnan()
    expected = torch.zeros(2, 1, 64, dtype=torch.bool)
    expected[0, 0, slice(40, 41) if name in NAN_ELEMENTS else block] = True
    assert torch.equal(lost, expected)
    kept = FORMATS[name](torch.where(spoilt.isnan(), 0.0, spoilt))
    assert torch.equal(FORMATS[name](spoilt)[~expected], kept[~expected])


@pytest.mark.parametrize("name", ROUNDING)
def test_infinity_is_the_largest_value(name: str) -> None:
    """It saturates like 2 ** 127, and leaves nothing infinite."""
    x = noise(2, 1, 64)
    x[..., 3], x[..., 50] = math.inf, -math.inf
    y = FORMATS[name](x)
    assert y.isfinite().all()
    assert torch.equal(y, FORMATS[name](x.clamp(-torch.finfo(torch.bfloat16).max, torch.finfo(torch.bfloat16).max)))
    assert y[..., 3].min() == y.max()
    assert y[..., 50].max() == y.min()
    if name != "int4":
        assert (y[..., 3] == -y[..., 50]).all()


@pytest.mark.parametrize("name", ROUNDING)
@pytest.mark.parametrize("x", [[0.0, 1e-45], [0.0, 3e38], [1e-38, -1e-38], [3.4e38, -3.4e38]])
def test_extremes_are_finite(name: str, x: list[float]) -> None:
    y = FORMATS[name](torch.tensor([x]))
    assert y.isfinite().all()
    assert (y.sign() * torch.tensor([x]).sign() >= 0).all()


def test_smallest_values_of_mx_blocks() -> None:
    """E8M0 ends at 2 ** -127; 2 ** -128 is half of E2M1's 1 there."""
    x = torch.tensor([[2.0**-128, 2.0**-129, 2.0**-130]])
    assert mxfp4(x).tolist() == [[2.0**-128, 0.0, 0.0]]
    assert mxfp8(x).tolist() == x.tolist()


@pytest.mark.parametrize("name", ["fp8_e4m3", "fp8_e5m2", "mxfp8", "mxfp4"])
@pytest.mark.parametrize("power", [-6, -1, 3])
def test_scales_of_powers_of_two_add_no_rounding(name: str, power: int) -> None:
    """In the middle of the range a format is as good one octave higher."""
    x, scale = noise(50, 3, 64).clamp(0.25, 4).bfloat16(), torch.tensor(2.0**power)
    y = scaled(FORMATS[name], scale)(x * scale)
    assert torch.equal(y, FORMATS[name](x) * scale)
    assert torch.equal(y.bfloat16().float(), y)


def test_a_scale_moves_the_range() -> None:
    x = torch.tensor([[[1000.0, -1000.0, 0.001]], [[900.0, 1.0, 0.0]]])
    assert scaled(fp8_e4m3, torch.tensor(4.0))(x)[0].tolist() == [[1024.0, -1024.0, 0.0]]
    assert fp8_e4m3(x)[0, 0, 0] == 448


def test_scales_may_differ_by_head() -> None:
    x, scale = noise(20, 3, 64, scale=100.0), torch.tensor([[1.0], [0.37], [8.0]])
    y = scaled(nvfp4, scale)(x)
    for head in range(3):
        assert torch.equal(y[:, head], scaled(nvfp4, scale[head])(x[:, head]))


@pytest.mark.parametrize("power", [-8, -3, 0, 4])
def test_the_tensor_scale_of_nvfp4_is_compressed_tensors_global_scale(power: int) -> None:
    x, scale = noise(400, 64, scale=3.0), torch.tensor(2.0**power)
    assert torch.equal(scaled(nvfp4, scale)(x), compressed_nvfp4(x / scale) * scale)


def test_scales_that_are_no_powers_of_two_round_once_more() -> None:
    """FP8 over a scale of 0.3 is 12 bits of mantissa: not all of it fits BF16, and the share can be counted."""
    y = scaled(fp8_e4m3, torch.tensor(0.3))(noise(200, 3, 64))
    assert 0.5 < (y.bfloat16().float() != y).float().mean() < 1.0


@pytest.mark.parametrize("name", ["fp8_e4m3", "fp8_e5m2", "mxfp4", "mxfp8", "placebo"])
def test_formats_that_fit_bf16(name: str) -> None:
    y = FORMATS[name](noise(300, 3, 64, scale=10.0).bfloat16())
    assert torch.equal(y.bfloat16().float(), y)


def ulps(x: Tensor) -> Tensor:
    """Steps that the placebo moved each BF16 value, in units in the last place; > 0 is away from zero."""
    before = x.bfloat16().view(torch.int16).int()
    after = placebo(x).bfloat16().view(torch.int16).int()
    return after - before


def test_placebo_moves_at_most_one_unit_in_the_last_place() -> None:
    x = all_bf16().unsqueeze(0)
    steps = ulps(x)
    assert set(steps.unique().tolist()) == {-1, 0, 1}
    moved = placebo(x).bfloat16()
    assert moved.isfinite().all()
    assert torch.equal(moved.sign(), x.sign())


def test_placebo_moves_the_smallest_not_to_zero_and_the_largest_not_to_infinity() -> None:
    for bits in (0x0001, 0x7F7F):
        x = torch.full((1, 256), bits, dtype=torch.int16).view(torch.bfloat16)
        moved = placebo(torch.cat([x, -x])).bfloat16()
        assert moved.isfinite().all()
        assert (moved != 0).all()


def test_placebo_is_exact_in_bf16() -> None:
    y = placebo(noise(50, 2, 64))
    assert torch.equal(y.bfloat16().float(), y)


def test_placebo_keeps_zeros_of_both_signs_infinities_and_nan() -> None:
    x = torch.tensor([[0.0, -0.0, float("inf"), float("-inf"), float("nan")]]).bfloat16()
    kept = placebo(x).bfloat16()
    assert torch.equal(kept.view(torch.int16)[:, :4], x.view(torch.int16)[:, :4])
    assert kept[0, 4].isnan()


def usual_values() -> Tensor:
    """Each BF16 value from 2 ** -12 to 2 ** 4 of both signs once, at all 64 places: [4096, 64]."""
    x = all_bf16().float()
    return x[(x.abs() >= 2**-12) & (x.abs() < 2**4)].bfloat16().unsqueeze(1).expand(-1, 64)


def test_placebo_moves_about_half_both_ways_alike() -> None:
    """A quarter down, a quarter up, of 262,144 places and values; within 4 standard deviations of a fair draw."""
    steps = ulps(usual_values()).float()
    assert steps.numel() == 262_144
    assert (steps != 0).float().mean().item() == pytest.approx(0.5, abs=4 * (0.25 / steps.numel()) ** 0.5)
    assert steps.mean().item() == pytest.approx(0.0, abs=4 * (0.5 / steps.numel()) ** 0.5)


def test_placebo_is_unbiased_at_every_place_of_the_head() -> None:
    steps = ulps(usual_values()).float().mean(0)
    assert steps.abs().max().item() < 4.5 * (0.5 / 4096) ** 0.5


def test_placebo_does_not_move_neighbouring_places_together() -> None:
    steps = ulps(noise(4000, 1, 64)).float()[:, 0]
    together = torch.corrcoef(steps.T).fill_diagonal_(0)
    assert together.abs().max().item() < 0.1


def test_placebo_jitters_a_value_at_its_place_alike_in_any_batch() -> None:
    x = noise(1, 1, 64)
    alone = placebo(x)
    crowd = torch.cat([noise(7, 3, 64, seed=1), x.expand(1, 3, 64), noise(4, 3, 64, seed=2)])
    for head in range(3):
        assert torch.equal(placebo(crowd)[7:8, head : head + 1], alone)
    assert torch.equal(placebo(x), alone)
    assert not torch.equal(placebo(x.flip(-1)).flip(-1), alone)  # the place counts
