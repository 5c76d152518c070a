"""Linear layers on a CPU without BF16 instructions.

PyTorch multiplies BF16 matrices there value by value: 9 GFLOP/s a core against 60 in FP32 (EPYC 7003, torch 2.13). The
product of two BF16 values is exact in FP32, so FP32 copies of the weights give what the BF16 layer gives, but for the
order in which it is summed up, which every kernel chooses for itself. The copies take twice the weights' memory.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear


class Widened:
    """vLLM's ``cpu_linear`` by an FP32 copy of the weight [out, in]."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight.detach().float()

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x: [..., in], bias: [out] -> [..., out] in the dtype of x; ``weight`` is what the copy was made of."""
        return linear(x.float(), self.weight, None if bias is None else bias.float()).to(x.dtype)


def widen(model: torch.nn.Module) -> int:
    """Let FP32 do the BF16 products that vLLM left to PyTorch on a CPU that has none; return the number of layers.

    Layers that vLLM gave a kernel of its own keep it: their weight has moved into it.
    """
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return 0
    layers: list[Any] = [layer for layer in model.modules() if hasattr(layer, "cpu_linear")]
    slow = [layer for layer in layers if layer.weight.dtype is torch.bfloat16 and layer.weight.numel()]
    for layer in slow:
        layer.cpu_linear = Widened(layer.weight)
    return len(slow)
