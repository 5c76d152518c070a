"""An outlier planted into the embedded model: does the range profile name it, does the gate see it, what rescues it?

``python -m benchmarks.planted_outlier [power] [layer] [head]`` (6, 18, 2). In a copy of the model that head of K is
multiplied by 2 ** power and the queries that read it are divided by it: attention in BF16 stays as it was, bit for bit,
but K no longer fits FP8 E4M3 at unit scale. Both models are gated on the class faq but for fold 0; the copy also with
that layer kept in BF16, and with scales that were calibrated on fold 0: as reference, and, where this machine stores
FP8, out of the checkpoint that was exported.
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
from kvquant_eval.io.calibrations import read
from kvquant_eval.io.runfolder import RunFolder
from kvquant_eval.worker.embedded import materialise
from tests.fakes.fp8 import NATIVE

SKIPPING = "+kv.skipping={dtype: fp8_e4m3, realisation: reference, skip_layers: ['%d']}"
CALIBRATED = "+kv.calibrated={dtype: fp8_e4m3, realisation: reference, scales: calibrated, scales_from: %s/scales.json}"
UNIT = "kv=[fp8_e4m3_ref,fp8_e4m3]" if NATIVE else "kv=[fp8_e4m3_ref]"
OTHERS = "golden.folds=[1,2,3,4,5,6,7]"


def main(power: int = 6, layer: int = 18, head: int = 2) -> None:
    """Print what all gates found."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        original = materialise(home() / ".cache").path
        planted = plant(original, folder / "planted", power, layer, head)
        made = run("calibrate", folder / "calibration", planted, "golden.folds=[0]", "kv=[fp8_e4m3_ref]")
        half = next(each for each in read(made.path / "scales.json").layers if each.index == layer).k
        print(f"calibrated on fold 0: |K| of layer {layer} reaches {half.largest} by head, its scale is {half.scales}")
        skipping, profile = SKIPPING % layer, "report.range_profile=true"
        plain = run("gate", folder / "plain", original, OTHERS, UNIT, skipping, profile)
        spiked = run("gate", folder / "spiked", planted, OTHERS, UNIT, skipping, profile, CALIBRATED % made.path)
        same = identical(plain.arm("baseline").replays(), spiked.arm("baseline").replays())
        print(f"K of layer {layer}, head {head} times 2 ** {power}; BF16 replays and logprobs bit-equal: {same}")
        told("as it was", plain)
        told("planted", spiked)
        if NATIVE:
            told(
                "planted, exported", run("gate", folder / "exported", made.path / "checkpoint", OTHERS, "kv=[fp8_e4m3]")
            )


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


def run(verb: str, runs: Path, model: Path, *overrides: str) -> RunFolder:
    """A gate, or a calibration, on one class."""
    template = home() / "conf/model/smollm2_tools.jinja"
    subprocess.run(
        [
            sys.executable, "-m", "kvquant_eval.cli.main", verb, "model=folder", "model.id=test/planted",
            f"model.path={model}", f"model.chat_template={template}", "tracking=none", "workload=[faq]",
            "gate.hardest=faq", "gate.min_turns=30", "gate.allow_underpowered=true", *overrides, f"runs_dir={runs}",
        ],
        check=False, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    (made,) = runs.iterdir()
    return RunFolder(made)


def told(title: str, run: RunFolder) -> None:
    """What the range profile says, if there is one, and each candidate in one line."""
    found: dict[str, Any] = json.loads((run.path / "decision.json").read_text())
    print(f"\n{title}:", *found.get("ranges", {}).get("sentences", []), sep="\n  ", flush=True)
    for candidate in found["candidates"]:
        scores, near = candidate["classes"]["faq"]["scores"], found["fidelity"][candidate["name"]]["all"]
        drops = ", ".join(f"{name} {scores[name]['mean_drop']:+.2f}" for name in ("gl_reply", "gl_span"))
        scales = f"{candidate['kv']['scales']['kind']}, K {candidate['kv']['scales']['k']}"
        print(f"  {candidate['name']} (scales {scales}): {candidate['decision']}; KL {near['kl']:.4f}; drops: {drops}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
