"""An outlier planted into the embedded model: does the range profile name it, does the gate see it, what rescues it?

``python -m benchmarks.planted_outlier [power] [layer] [head]`` (6, 18, 2). In a copy of the model that head of K is
multiplied by 2 ** power and the queries that read it are divided by it: attention in BF16 stays as it was, bit for bit,
but K no longer fits FP8 E4M3 at unit scale. Both models are gated on the class faq, the copy also with that layer kept
in BF16.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from kvquant_eval.cli.config import home
from kvquant_eval.core.compare import identical
from kvquant_eval.io.runfolder import RunFolder
from kvquant_eval.worker.embedded import materialise

SKIPPING = "+kv.skipping={dtype: fp8_e4m3, realisation: reference, skip_layers: ['%d']}"


def main(power: int = 6, layer: int = 18, head: int = 2) -> None:
    """Print what both gates found."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        original = materialise(home() / ".cache").path
        planted = plant(original, folder / "planted", power, layer, head)
        plain, spiked = gate(folder, original, layer), gate(folder, planted, layer)
        same = identical(plain.arm("baseline").replays(), spiked.arm("baseline").replays())
        print(f"K of layer {layer}, head {head} times 2 ** {power}; BF16 replays and logprobs bit-equal: {same}")
        for title, run in (("as it was", plain), ("planted", spiked)):
            found: dict[str, Any] = json.loads((run.path / "decision.json").read_text())
            print(f"\n{title}:", *found["ranges"]["sentences"], sep="\n  ")
            for candidate in found["candidates"]:
                print(f"  {candidate['name']}: {told(candidate, found['fidelity'][candidate['name']]['all'])}")


def plant(source: Path, target: Path, power: int, layer: int, head: int) -> Path:
    """A copy of a model folder with one head of K scaled up and its queries scaled down."""
    shutil.copytree(source, target)
    config = json.loads((source / "config.json").read_text())
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    group = config["num_attention_heads"] // config["num_key_value_heads"]
    weights = load_file(source / "model.safetensors")
    prefix = f"model.layers.{layer}.self_attn"
    scale = torch.tensor(2.0**power)
    weights[f"{prefix}.k_proj.weight"][head * size : (head + 1) * size] *= scale
    weights[f"{prefix}.q_proj.weight"][head * group * size : (head + 1) * group * size] /= scale
    save_file(weights, target / "model.safetensors", {"format": "pt"})
    return target


def gate(folder: Path, model: Path, layer: int) -> RunFolder:
    """A gate on one class, with the range profile."""
    runs = folder / f"runs-{model.name}"
    template = home() / "conf/model/smollm2_tools.jinja"
    subprocess.run(
        [
            sys.executable, "-m", "kvquant_eval.cli.main", "gate", "model=folder", "model.id=test/planted",
            f"model.path={model}", f"model.chat_template={template}", "tracking=none", "workload=[faq]",
            "gate.hardest=faq", "gate.min_turns=40", "kv=[fp8_e4m3_ref]", SKIPPING % layer,
            "report.range_profile=true", f"runs_dir={runs}",
        ],
        check=False, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    (run,) = runs.iterdir()
    return RunFolder(run)


def told(candidate: dict[str, Any], near: dict[str, Any]) -> str:
    """A candidate in one line."""
    scores = candidate["classes"]["faq"]["scores"]
    drops = ", ".join(f"{name} {scores[name]['mean_drop']:+.2f}" for name in ("gl_reply", "gl_span"))
    return f"{candidate['decision']}; KL {near['kl']:.4f} nats a token; mean drops: {drops}"


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
