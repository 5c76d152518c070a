"""What scales do to KL: unit, powers of two and largest/limit, a layer or a head, as reference and as vLLM stores them.

``python -m benchmarks.scales [key=value ...]`` calibrates on fold 0 of the golden set, then decodes the golden replies
of the others (or of what the overrides name, such as ``golden.path=...``) by force, one arm at a time. For every arm:
mean KL to BF16 in nats a token, mean drop of the golden token's probability in points, and the share of K and V that
did not fit BF16 after the format had rounded them.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from kvquant_eval.calibrate import calibrate
from kvquant_eval.cli.config import build, compose
from kvquant_eval.core.arms import ArmRecord
from kvquant_eval.core.fidelity import summarise
from kvquant_eval.core.records import Role
from kvquant_eval.core.scales import LARGEST, CalibratedHalf, Calibration, Per, ScaleSource, power_of_two
from kvquant_eval.core.settings import Settings
from kvquant_eval.core.treatment import KVTreatment, Realisation
from kvquant_eval.io import fidelity
from kvquant_eval.io.export import export
from kvquant_eval.io.runfolder import RunFolder, new_run
from kvquant_eval.pipeline import make_ready
from kvquant_eval.replay import Stage, places

Rule = Callable[[float, float], float]
FORMAT = "fp8_e4m3"
RULES: Mapping[str, Rule] = {
    "power of two": power_of_two,
    "power of two x 2": lambda largest, limit: 2 * power_of_two(largest, limit),
    "largest / limit": lambda largest, limit: largest / limit if largest else 1.0,
}
ONE_SLOT = "engine.slots=[{OMP_NUM_THREADS: '1'}]"


def main(overrides: Sequence[str]) -> None:
    """Print a line an arm."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        common = [f"runs_dir={folder}/runs", "tracking=none", ONE_SLOT, f"kv=[{FORMAT}]"]
        found = calibrate(build(compose([*common, "golden.folds=[0]"])))
        prepared, made = found.folder.plan(), found.calibration
        decide = build(compose([*common, *(overrides or ["golden.folds=[1,2,3,4,5,6,7]"])]))
        references = {"unit": reference()} | {
            f"{rule}, a {per}": reference(again(made, RULES[rule], per)) for rule in RULES for per in Per
        }
        show("reference", decide, references, folder)
        show("native, unit", decide, {"unit": KVTreatment(name="unit", dtype=FORMAT)}, folder)
        for rule in RULES:
            target = folder / rule.replace(" ", "_").replace("/", "by")
            export(again(made, RULES[rule], Per.LAYER), prepared, target)
            model = replace(decide.model, source="folder", path=str(target))
            show(f"native, {rule}", replace(decide, model=model), {"x": KVTreatment(name="x", dtype=FORMAT)}, folder)


def again(made: Calibration, rule: Rule, per: Per) -> Calibration:
    """The same calibration under another rule."""

    def half(seen: CalibratedHalf) -> CalibratedHalf:
        groups = seen.largest if per is Per.HEAD else (max(seen.largest),)
        return replace(seen, scales=tuple(rule(each, LARGEST[FORMAT]) for each in groups))

    layers = tuple(replace(layer, k=half(layer.k), v=half(layer.v)) for layer in made.layers)
    return replace(made, layers=layers, per=per)


def reference(made: Calibration | None = None) -> KVTreatment:
    """The format as reference, under these scales or unit ones."""
    scales = {"scales": ScaleSource.CALIBRATED, "layer_scales": made.scales} if made else {}
    return KVTreatment(name="arm", dtype=FORMAT, realisation=Realisation.REFERENCE, **scales)  # type: ignore[arg-type]


def show(title: str, settings: Settings, treatments: Mapping[str, KVTreatment], folder: Path) -> None:
    """Run the baseline and the treatments by forced decoding alone, and print how near they stay."""
    names = {f"arm{number}": what for number, what in enumerate(treatments)}
    candidates = {name: replace(treatments[what], name=name) for name, what in names.items()}
    ready = make_ready(replace(settings, candidates=candidates, policy=replace(settings.policy, require=())))
    blocks = [replace(block, waves=block.waves[:1]) for block in ready.plan.blocks]
    arms = [arm for arm in ready.plan.arms if arm.role is not Role.CONTROL]
    run = new_run(folder / "runs", title.replace(" ", "_").replace("/", "by"))
    with places(settings) as engines:
        records = Stage(settings, replace(ready.plan, blocks=blocks, arms=arms), run, engines).replay()
    near = fidelity.read(run, arms, ready.plan.prepared.turns)
    for record in records:
        told(title, names, record, run)
        if record.arm.role is Role.CANDIDATE:
            means = summarise(near[record.arm.baseline, record.arm.name]).means
            second = record.facts.second_rounding if record.facts else (0, 0)
            print(
                f"{title:28} {names[record.arm.name]:28} KL {means.kl:.5f}  golden drop {means.golden_drop:+.3f}  "
                f"second rounding {second[0] / max(1, second[1]):.2%}  ({means.n_tokens} tokens)",
                flush=True,
            )


def told(title: str, names: Mapping[str, str], record: ArmRecord, run: RunFolder) -> None:
    """An arm that did not come to its end says why."""
    if record.error or record.unfinished:
        print(f"{title} {names.get(record.arm.name, '')}: {record.error or record.unfinished} ({run.path})")


if __name__ == "__main__":
    main(sys.argv[1:])
