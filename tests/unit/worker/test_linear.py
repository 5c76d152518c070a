from __future__ import annotations

import pytest
import torch
from torch.nn.functional import linear

from kvquant_eval.worker.linear import Widened, widen

OUT, IN = 48, 64


@pytest.fixture
def layer() -> torch.nn.Linear:
    torch.manual_seed(0)
    made = torch.nn.Linear(IN, OUT, dtype=torch.bfloat16)
    made.cpu_linear = linear
    return made


def test_the_product_is_the_bf16_one_but_for_the_order_of_its_sums(layer: torch.nn.Linear) -> None:
    x = torch.randn(3, 5, IN).bfloat16()
    got = Widened(layer.weight)(x, layer.weight, layer.bias)
    exact = linear(x.double(), layer.weight.double(), layer.bias.double())
    assert got.dtype is torch.bfloat16
    assert got.shape == (3, 5, OUT)
    torch.testing.assert_close(got.double(), exact, rtol=2**-8, atol=1e-6)  # BF16 rounds to 8 bits
    assert (got != exact.bfloat16()).float().mean() < 0.01


def test_only_on_a_cpu_without_bf16(layer: torch.nn.Linear, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
    assert widen(layer) == 0
    assert layer.cpu_linear is linear


def test_only_layers_left_to_torch(layer: torch.nn.Linear, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    packed, single, free = (torch.nn.Linear(IN, OUT, dtype=torch.bfloat16) for _ in range(3))
    packed.cpu_linear = single.cpu_linear = linear
    packed.weight = torch.nn.Parameter(torch.empty(0, dtype=torch.bfloat16))  # as vLLM's own kernels leave it
    single.float()
    assert widen(torch.nn.ModuleList([layer, packed, single, free])) == 1
    assert isinstance(layer.cpu_linear, Widened)
    assert packed.cpu_linear is linear
    assert single.cpu_linear is linear
    assert not hasattr(free, "cpu_linear")
