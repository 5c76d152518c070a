"""What the probe counts of K and V, and that it changes neither."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kvquant_eval.core.arms import Arm, ArmRecord
from kvquant_eval.core.codec import from_data, to_data
from kvquant_eval.core.range_profile import profile
from kvquant_eval.core.ranges import HeadCounts, LayerRanges, joined
from kvquant_eval.core.records import Role
from kvquant_eval.core.scales import LARGEST, LayerScales
from kvquant_eval.core.treatment import KVTreatment
from kvquant_eval.worker.extension import KVExtension
from kvquant_eval.worker.formats import FORMATS
from kvquant_eval.worker.ranges import RangeProbe
from kvquant_eval.worker.stored import EVERY, TOKENS

HEADS, SIZE = 2, 4
CPU = torch.device("cpu")


def probe(*formats: str, scales: tuple[float, float] = (1.0, 1.0), heads: int = HEADS) -> RangeProbe:
    return RangeProbe(SimpleNamespace(num_kv_heads=heads), formats, CPU, scales)


def seen(made: RangeProbe, k: Tensor, v: Tensor) -> LayerRanges:
    """After one step with these, [tokens, heads, head_size]."""
    assert made(None, (None, k.flatten(1), v.flatten(1))) is None
    return made.found(0)


def rows(*heads: list[float]) -> Tensor:
    """One token."""
    return torch.tensor([heads])


def test_counts_by_hand() -> None:
    """1.1 is stored as 1.125; 500 and 448 as 448; 0.3 as 0.3125."""
    k = rows([1.1, -500.0, 448.0, 0.0], [0.3, 1.0, -2.0, 0.5])
    found = seen(probe("fp8_e4m3"), k, -k)
    first, second = found.k.heads
    assert (first.values, first.largest, first.formats["fp8_e4m3"].beyond) == (4, 500.0, 1)
    assert first.signal == pytest.approx(1.1**2 + 500**2 + 448**2)
    assert first.formats["fp8_e4m3"].noise == pytest.approx(0.025**2 + 52**2)
    assert (second.largest, second.formats["fp8_e4m3"].beyond) == (2.0, 0)
    assert second.formats["fp8_e4m3"].noise == pytest.approx(0.0125**2, rel=1e-5)
    assert found.v == found.k
    assert (found.k.scale, found.k.limits) == (1.0, {"fp8_e4m3": 448.0})


def test_a_scale_moves_the_range_and_the_steps() -> None:
    k = rows([500.0, 1.0, 1.0, 1.0], [1.1, 0.0, 0.0, 0.0])
    found = seen(probe("fp8_e4m3", scales=(2.0, 1.0)), k, k)
    assert (found.k.scale, found.k.limits["fp8_e4m3"], found.v.limits["fp8_e4m3"]) == (2.0, 896.0, 448.0)
    assert found.k.heads[0].formats["fp8_e4m3"].beyond == 0
    assert found.k.heads[0].formats["fp8_e4m3"].noise == pytest.approx(12.0**2), "500 / 2 = 250 is stored as 256"
    assert found.v.heads[0].formats["fp8_e4m3"].beyond == 1


def test_maxima_are_of_every_token_and_the_rest_of_a_sample() -> None:
    made = probe("int8")
    k = torch.ones(TOKENS + 5, HEADS, SIZE)
    k[-1, 1, 0] = 30.0
    found = seen(made, k, k)
    assert [(head.largest, head.values, head.signal) for head in found.k.heads] == [
        (1.0, TOKENS * SIZE, TOKENS * SIZE),
        (30.0, TOKENS * SIZE, TOKENS * SIZE),
    ]
    for _ in range(EVERY - 1):
        found = seen(made, 2 * k[:1], k[:1])
    assert (found.k.heads[0].largest, found.k.heads[0].values) == (2.0, TOKENS * SIZE)
    assert seen(made, k[:1], k[:1]).k.heads[0].values == (TOKENS + 1) * SIZE


def test_a_block_begins_with_nothing_seen() -> None:
    made, k = probe("fp8_e5m2"), torch.randn(3, HEADS, SIZE)
    first = seen(made, k, k)
    made.reset()
    assert made.found(0).k.heads[0].largest == 0
    assert seen(made, k, k) == first


def test_what_is_not_finite_is_counted_as_the_largest_number() -> None:
    k = torch.ones(2, HEADS, SIZE, dtype=torch.bfloat16)
    k[0, 0, 0], k[1, 1, 0] = float("nan"), float("-inf")
    found = seen(probe(*(name for name in FORMATS)), k, k)
    for head in found.k.heads:
        assert head.largest == torch.finfo(torch.bfloat16).max
        assert head.formats["fp8_e4m3"].beyond == 1
        assert all(map(math.isfinite, (head.signal, *(each.noise for each in head.formats.values()))))


@pytest.mark.parametrize(("name", "largest"), LARGEST.items())
def test_a_range_ends_where_the_format_saturates(name: str, largest: float) -> None:
    x = torch.full((1, 1, 16), largest)
    assert torch.equal(FORMATS[name](x), x)
    assert torch.equal(FORMATS[name](2 * x), x)


class Attention(nn.Module):
    """What vLLM's attention layers have, and nothing else."""

    def __init__(self, heads: int = HEADS) -> None:
        super().__init__()
        self.num_kv_heads, self.head_size, self.kv_cache_dtype, self.attn_backend = heads, SIZE, "auto", None

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return query, key, value


class Worker(KVExtension):
    def __init__(self, layers: int = 3) -> None:
        self.model = nn.ModuleList(Attention() for _ in range(layers))
        self.model_runner: Any = SimpleNamespace(model=self.model, device=CPU)


def test_a_worker_passes_k_and_v_on_bit_for_bit_and_reports_once() -> None:
    worker = Worker()
    assert worker.kv_ranges() == []
    assert worker.kv_profile(["turboquant_4bit_nc", "fp8_e4m3", "bfloat16"]) == 3
    q, k, v = (torch.randn(5, HEADS * SIZE).bfloat16() for _ in range(3))
    for layer in worker.model:
        passed = layer(q, k, v)
        assert all(one is other for one, other in zip(passed, (q, k, v), strict=True))
    found = worker.kv_ranges()
    assert [layer["index"] for layer in found] == [0, 1, 2]
    assert found[0]["k"]["heads"][0]["largest"] == k[:, :SIZE].abs().max().item()
    assert list(found[0]["k"]["heads"][0]["formats"]) == ["fp8_e4m3"]
    assert [head["largest"] for layer in worker.kv_ranges() for head in layer["k"]["heads"]] == [0.0] * 6


def test_what_a_format_clips_at_the_scales_in_use() -> None:
    worker, x = Worker(), torch.full((2, HEADS * SIZE), 900.0).bfloat16()
    scales = [to_data(LayerScales(index=i, k=(2.0 ** (i + 1),), v=(1.0,))) for i in (0, 1)]
    worker.kv_profile(["fp8_e4m3"], scales)
    for layer in worker.model:
        layer(x, x, x)
    found = [from_data(LayerRanges, each, "") for each in worker.kv_ranges()]
    assert [layer.k.scale for layer in found] == [2.0, 4.0, 1.0]
    assert [layer.k.limits["fp8_e4m3"] for layer in found] == [896.0, 1792.0, 448.0]
    assert [layer.k.heads[0].formats["fp8_e4m3"].beyond > 0 for layer in found] == [True, False, True]
    assert all(layer.v.scale == 1.0 for layer in found)


def test_layers_without_k_and_v_of_their_own_are_left_alone() -> None:
    worker = Worker()
    worker.model[1].kv_lora_rank = 64
    assert worker.kv_profile(["fp8_e4m3"]) == 2
    assert [layer["index"] for layer in worker.kv_ranges()] == [0, 2]


def test_tensor_parallel_workers_see_what_one_sees() -> None:
    """The same step, its heads on one worker and on two; a planted head is named by its place in the model."""
    k, v = torch.randn(6, 4, SIZE), torch.randn(6, 4, SIZE)
    k[:, 3] *= 2**10
    whole = seen(probe("fp8_e4m3", "nvfp4", heads=4), k, v)
    parts = [seen(probe("fp8_e4m3", "nvfp4"), k[:, at], v[:, at]) for at in (slice(0, 2), slice(2, 4))]
    (together,) = joined(parts)
    for one, other in zip(together.k.heads + together.v.heads, whole.k.heads + whole.v.heads, strict=True):
        assert_near(one, other)
    arm = Arm(name="baseline", role=Role.BASELINE, treatment=KVTreatment(name="b"), args={}, baseline="baseline")
    said = profile(ArmRecord(arm=arm, facts=None, replays=(), counts={}, ranges=(together,))).sentences
    assert said[0].startswith("fp8_e4m3 clips at unit scales: |K| of layer 0, head 3 reaches ")
    assert any(line.startswith("Outlier head: |K| of layer 0, head 3") for line in said)


def assert_near(one: HeadCounts, other: HeadCounts) -> None:
    assert (one.values, one.largest) == (other.values, other.largest)
    assert one.signal == pytest.approx(other.signal)
    assert {n: f.beyond for n, f in one.formats.items()} == {n: f.beyond for n, f in other.formats.items()}


def test_a_layer_that_cannot_be_looked_at_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """VLLM lets a layer have no K of its own: one line in the log a block, and the run goes on."""
    made, layer = probe("int8"), SimpleNamespace(layer_name="model.layers.0.attn")
    for _ in range(2):
        made(layer, (torch.zeros(1), None, None))
    assert not made.readable
    assert [record.message.split(": ")[:2] for record in caplog.records] == [
        ["model.layers.0.attn", "K and V are not looked at"]
    ]
    made.reset()
    assert made.readable
