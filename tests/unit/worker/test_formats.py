"""Reference formats against other implementations: torch's and ml_dtypes' own float types, and plain numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import Tensor

from kvquant_eval.worker.formats import FORMATS, fp8_e4m3, fp8_e5m2, identity, int8, nvfp4, placebo

FLOAT8 = [
    (fp8_e4m3, torch.float8_e4m3fn, ml_dtypes.float8_e4m3fn, 448.0),
    (fp8_e5m2, torch.float8_e5m2, ml_dtypes.float8_e5m2, 57344.0),
]
E2M1 = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=np.float32)


def noise(*shape: int, scale: float = 1.0, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


def all_bf16() -> Tensor:
    """Every finite BF16 value, [1, n]."""
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    values = bits.view(torch.bfloat16)
    return values[values.isfinite()].unsqueeze(0)


def numpy(x: Tensor) -> Any:
    return x.float().numpy()


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


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "placebo"])
def test_signs_are_symmetric(name: str) -> None:
    x = noise(20, 2, 64, scale=3.0)
    assert torch.equal(FORMATS[name](-x), -FORMATS[name](x))


@pytest.mark.parametrize("name", ["identity", "fp8_e4m3", "fp8_e5m2"])
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


@pytest.mark.parametrize(("fmt", "torch_type", "numpy_type", "largest"), FLOAT8)
def test_float8_keeps_every_code(
    fmt: Callable[[Tensor], Tensor], torch_type: torch.dtype, numpy_type: Any, largest: float
) -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    values = codes.view(torch_type).float()
    theirs = np.arange(256, dtype=np.uint8).view(numpy_type).astype(np.float32)
    np.testing.assert_array_equal(values.numpy(), theirs)
    finite = values[values.isfinite()]
    assert finite.max() == largest
    assert torch.equal(fmt(finite), finite)


@pytest.mark.parametrize(("fmt", "torch_type", "numpy_type", "largest"), FLOAT8)
def test_float8_rounds_like_others_and_saturates(
    fmt: Callable[[Tensor], Tensor], torch_type: torch.dtype, numpy_type: Any, largest: float
) -> None:
    """All BF16 values, and the midpoints between codes with their neighbours; a tie goes to the even code."""
    codes = torch.arange(0, 128, dtype=torch.uint8).view(torch_type).float()
    codes = codes[codes.isfinite()]
    ties = (codes[1:] + codes[:-1]) / 2
    near = torch.cat([ties, torch.nextafter(ties, ties * 0), torch.nextafter(ties, ties * 2)])
    x = torch.cat([all_bf16().flatten().float(), near, -near])
    ours = numpy(fmt(x))
    clipped = numpy(x).clip(-largest, largest)
    np.testing.assert_array_equal(ours, clipped.astype(numpy_type).astype(np.float32))
    np.testing.assert_array_equal(ours, torch.from_numpy(clipped).to(torch_type).float().numpy())
    assert abs(ours).max() == largest


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


def test_e2m1_agrees_with_ml_dtypes_everywhere() -> None:
    """Every code, every tie, each with its float32 neighbours, and a grid."""
    ties = (E2M1[1:] + E2M1[:-1]) / 2
    points = np.concatenate([E2M1, ties, np.nextafter(ties, 0), np.nextafter(ties, 9), np.linspace(0, 6, 601)])
    points = np.concatenate([points, -points]).astype(np.float32)
    expected = points.astype(ml_dtypes.float4_e2m1fn).astype(np.float32)
    for start in range(0, len(points), 15):
        ours = nvfp4(block(*points[start : start + 15].tolist()))[0, 1 : 1 + len(points[start : start + 15])]
        np.testing.assert_array_equal(numpy(ours), expected[start : start + 15])


def numpy_nvfp4(x: Any) -> Any:
    """NVFP4 in numpy: E2M1 of each block of 16 over an E4M3 scale of its largest magnitude / 6."""
    blocks = x.astype(np.float32).reshape(-1, 16)
    largest = abs(blocks).max(axis=1, keepdims=True)
    scale = (largest / np.float32(6)).clip(max=448).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    scale = np.maximum(scale, np.float32(2.0**-9))
    scaled = (blocks / scale).clip(-6, 6)
    return (scaled.astype(ml_dtypes.float4_e2m1fn).astype(np.float32) * scale).reshape(x.shape)


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 0.1, 1.0, 30.0, 5000.0])
def test_nvfp4_agrees_with_numpy(scale: float) -> None:
    x = noise(200, 3, 64, scale=scale)
    np.testing.assert_array_equal(numpy(nvfp4(x)), numpy_nvfp4(x.numpy()))


def test_nvfp4_saturates() -> None:
    """The largest scale is 448 and the largest element 6."""
    assert nvfp4(torch.full((1, 16), 1e6)).tolist() == [[2688.0] * 16]


def test_nvfp4_needs_whole_blocks() -> None:
    with pytest.raises(ValueError, match="multiple of 16, got 24"):
        nvfp4(torch.zeros(2, 24))


def test_nvfp4_blocks_are_apart() -> None:
    """An outlier ruins its own block of 16, not the next."""
    x = noise(1, 1, 32).clamp(-2, 2)
    spiked = x.clone()
    spiked[..., 0] = 1000.0
    assert torch.equal(nvfp4(spiked)[..., 16:], nvfp4(x)[..., 16:])
    assert torch.all(nvfp4(spiked)[..., 1:16] == 0)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_int8_agrees_with_numpy(scale: float) -> None:
    x = noise(300, 3, 64, scale=scale)
    y = x.numpy()
    step = abs(y).max(axis=-1, keepdims=True) / np.float32(127)
    np.testing.assert_array_equal(numpy(int8(x)), np.rint(y / step).clip(-127, 127).astype(np.int8) * step)


def test_int8_values_by_hand() -> None:
    """The largest magnitude is 127, so the step is 1; ties to even."""
    x = torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, 126.4, -127.0]])
    assert int8(x).tolist() == [[127.0, 0.0, 2.0, 2.0, 0.0, -2.0, 126.0, -127.0]]


def test_int8_scales_each_token_and_head_by_itself() -> None:
    x = noise(4, 2, 32)
    scaled = x * torch.tensor([1.0, 64.0]).view(1, 2, 1)
    assert torch.equal(int8(scaled)[:, 1], int8(x)[:, 1] * 64)
    assert torch.equal(int8(scaled)[:, 0], int8(x)[:, 0])


@pytest.mark.parametrize("x", [[0.0, 1e-45], [0.0, 3e38], [1e-38, -1e-38]])
def test_int8_of_extremes_is_finite(x: list[float]) -> None:
    assert int8(torch.tensor([x])).isfinite().all()


def ulps(x: Tensor) -> Tensor:
    """Steps that the placebo moved each BF16 value, in units in the last place; > 0 is away from zero."""
    before = x.bfloat16().view(torch.int16).int()
    after = placebo(x).bfloat16().view(torch.int16).int()
    return after - before


def test_placebo_moves_at_most_one_unit_in_the_last_place() -> None:
    x = all_bf16()
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
    x = all_bf16()[0].float()
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
