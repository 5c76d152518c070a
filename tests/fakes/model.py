"""Model folders: a random small Llama in BF16 with the embedded model's tokenizer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from kvquant_eval.worker.embedded import materialise

CACHE = Path(__file__).parents[2] / ".cache"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
VOCABULARY = 49152


def write_model(
    folder: Path,
    layers: int = 2,
    hidden: int = 64,
    heads: int = 2,
    context: int = 8192,
    seed: int = 0,
    config: Mapping[str, Any] | None = None,
) -> Path:
    """Write the model and return its folder. As many KV heads as heads, of ``hidden / heads`` values each; ``context``
    in tokens; keys of ``config`` stand in config.json instead of its own, and the weights are of the shapes above.
    """
    folder.mkdir(parents=True)
    tokenizer = materialise(CACHE).path
    for name in TOKENIZER:
        shutil.copyfile(tokenizer / name, folder / name)
    random = torch.Generator().manual_seed(seed)
    tensors = {name: _tensor(random, shape) for name, shape in _shapes(layers, hidden)}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    own = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": hidden // heads,
        "max_position_embeddings": context,
        "rope_theta": 1e6,
        "rms_norm_eps": 1e-5,
        "vocab_size": VOCABULARY,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps({**own, **(config or {})}, indent=2))
    return folder


def _shapes(layers: int, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "model.embed_tokens.weight", (VOCABULARY, hidden)
    for layer in range(layers):
        name = f"model.layers.{layer}"
        for part in "qkvo":
            yield f"{name}.self_attn.{part}_proj.weight", (hidden, hidden)
        for part in ("gate", "up"):
            yield f"{name}.mlp.{part}_proj.weight", (2 * hidden, hidden)
        yield f"{name}.mlp.down_proj.weight", (hidden, 2 * hidden)
        for part in ("input", "post_attention"):
            yield f"{name}.{part}_layernorm.weight", (hidden,)
    yield "model.norm.weight", (hidden,)


def _tensor(random: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """Norms are one. The embedding, which is the output layer too, outweighs the layers: the likeliest next token is
    the one before it, so that golden replies that repeat a token have a likelihood.
    """
    if len(shape) == 1:
        return torch.ones(shape, dtype=torch.bfloat16)
    factor = 2.0 if shape[0] == VOCABULARY else 0.5
    return (torch.randn(shape, generator=random) * factor / shape[-1] ** 0.5).bfloat16()
