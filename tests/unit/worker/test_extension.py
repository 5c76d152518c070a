"""Reference formats hooked into attention layers, under unit scales, one a layer and one a head."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kvquant_eval.core.codec import to_data
from kvquant_eval.core.scales import LayerScales, ScaleSource
from kvquant_eval.core.treatment import KVTreatment, Realisation
from kvquant_eval.worker import extension
from kvquant_eval.worker.extension import KVExtension
from kvquant_eval.worker.formats import fp8_e4m3

HEADS, SIZE = 4, 32


class Attention(nn.Module):
    """What vLLM's attention layers have, and nothing else."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.num_kv_heads, self.head_size, self.kv_cache_dtype, self.attn_backend = heads, SIZE, "auto", None
        self.layer_name = "layers.0.attn"

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        return key, value


class Worker(KVExtension):
    def __init__(self, heads: int = HEADS) -> None:
        self.layer = Attention(heads)
        self.model_runner: Any = SimpleNamespace(model=nn.ModuleList([self.layer]), device=torch.device("cpu"))


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """One worker, without vLLM's process groups."""
    monkeypatch.setattr(extension, "get_tensor_model_parallel_rank", lambda: 0)
    monkeypatch.setattr(extension, "get_tensor_model_parallel_world_size", lambda: 1)


def treatment(*scales: tuple[float, ...], **changes: Any) -> KVTreatment:
    made = (LayerScales(index=0, k=scales[0], v=scales[1]),) if scales else ()
    source = ScaleSource.CALIBRATED if scales else ScaleSource.CHECKPOINT
    given = {"name": "arm", "dtype": "fp8_e4m3", "realisation": Realisation.REFERENCE, "scales": source}
    return KVTreatment(**{**given, "layer_scales": made, **changes})


def rounded(wanted: KVTreatment, x: Tensor, heads: int = HEADS) -> tuple[Worker, Tensor, Tensor]:
    worker = Worker(heads)
    assert worker.kv_install(to_data(wanted)) == 1
    return worker, *worker.layer(x, x, x)


def values() -> Tensor:
    """Beyond E4M3's largest value in head 2, and of a size that needs no scale in the others."""
    x = torch.randn(8, HEADS, SIZE, generator=torch.Generator().manual_seed(0))
    x[:, 2] *= 2**9
    return x.bfloat16().reshape(8, -1)


def test_unit_scales_are_none() -> None:
    x = values()
    worker, k, v = rounded(treatment(), x)
    assert torch.equal(k, fp8_e4m3(x).bfloat16())
    assert torch.equal(k, v)
    assert (extension._scales(worker.layer, "k"), extension._scales(worker.layer, "v")) == ([1.0], [1.0])


def test_one_scale_a_layer() -> None:
    x = values()
    worker, k, v = rounded(treatment((8.0,), (0.5,)), x)
    assert torch.equal(k, (fp8_e4m3(x.float() / 8) * 8).bfloat16())
    assert torch.equal(v, (fp8_e4m3(x.float() * 2) / 2).bfloat16())
    assert (extension._scales(worker.layer, "k"), extension._scales(worker.layer, "v")) == ([8.0], [0.5])
    assert worker.kv_second_rounding() == (0, 2 * x.numel()), "a power of two fits BF16"
    assert k.float().abs().max() > 1000 > v.float().abs().max() == 224, "only V is clipped"


def test_one_scale_a_head() -> None:
    x, heads = values(), (0.5, 1.0, 8.0, 2.0)
    worker, k, v = rounded(treatment(heads, (1.0,)), x)
    by_head = x.float().view(8, HEADS, SIZE)
    right = torch.stack([fp8_e4m3(by_head[:, i] / heads[i]) * heads[i] for i in range(HEADS)], 1)
    assert torch.equal(k, right.bfloat16().view(8, -1))
    assert torch.equal(v, fp8_e4m3(x).bfloat16())
    assert extension._scales(worker.layer, "k") == list(heads)


@pytest.mark.parametrize(
    ("world", "heads", "rank", "mine"),
    [(2, 2, 0, (1.0, 2.0)), (2, 2, 1, (4.0, 8.0)), (8, 1, 0, (1.0,)), (8, 1, 5, (4.0,)), (8, 1, 7, (8.0,))],
)
def test_a_worker_of_several_takes_the_scales_of_its_heads(
    monkeypatch: pytest.MonkeyPatch, world: int, heads: int, rank: int, mine: tuple[float, ...]
) -> None:
    monkeypatch.setattr(extension, "get_tensor_model_parallel_rank", lambda: rank)
    monkeypatch.setattr(extension, "get_tensor_model_parallel_world_size", lambda: world)
    worker = Worker(heads)
    worker.kv_install(to_data(treatment((1.0, 2.0, 4.0, 8.0), (1.0,))))
    assert tuple(extension._scales(worker.layer, "k")) == mine


def test_scales_that_do_not_fit_the_layer() -> None:
    with pytest.raises(ValueError, match=r"^layers\.0\.attn: one scale, or one a KV head, got 3 for 4$"):
        Worker().kv_install(to_data(treatment((1.0, 2.0, 4.0), (1.0,))))
    other = treatment((1.0,), (1.0,), layer_scales=(LayerScales(index=1, k=(1.0,), v=(1.0,)),))
    with pytest.raises(ValueError, match=r"^0: scales of every layer that is rounded, got none of layer 0$"):
        Worker().kv_install(to_data(other))


def test_a_half_that_stays_as_it_is() -> None:
    x = values()
    _, k, v = rounded(treatment((8.0,), (8.0,), skip_layers=("0.v",)), x)
    assert torch.equal(v, x)
    assert not torch.equal(k, x)
