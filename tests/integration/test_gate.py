"""The whole job on real vLLM: arms, attestation, decision, artifacts; all of one gate, so in one file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from kvquant_eval.core.compare import identical
from kvquant_eval.core.records import Measure
from kvquant_eval.io.runfolder import RunFolder
from tests.fakes.fp8 import E4M3, E5M2, NATIVE
from tests.integration.conftest import FOUR, Run, needs_native_fp8

pytestmark = pytest.mark.integration

ARTIFACTS = (
    "config.yaml",
    "prepared.json",
    "plan.jsonl",
    "turns.parquet",
    "deltas.parquet",
    "fidelity.parquet",
    "decision.json",
)
REPORTS = ("report.md", "report.html", "summary.md", "junit.xml")
MODEL = "SmolLM2-135M-Instruct"
CANDIDATES = {
    E4M3: ("fp8_e4m3", "fp8_e4m3" if NATIVE else "fp8_e4m3 in bfloat16"),
    E5M2: ("fp8_e5m2", "fp8_e5m2" if NATIVE else "fp8_e5m2 in bfloat16"),
    "int8_ref": ("int8", "int8 in bfloat16"),
    "nvfp4_ref": ("nvfp4", "nvfp4 in bfloat16"),
}


def test_the_exit_status_is_the_decisions(four: Run) -> None:
    assert four.status == four.decision["exit_code"], four.output
    assert four.status in (0, 3, 4)


def test_every_artifact_is_there(four: Run) -> None:
    for name in (*ARTIFACTS, *REPORTS):
        assert (four.folder / name).stat().st_size > 0, name
    for arm in ("baseline", "repeat", "placebo", E4M3, E5M2, "int8_ref", "nvfp4_ref"):
        for name in ("arm.json", "engine.json", "engine.log", "replays.jsonl"):
            assert (four.folder / "arms" / arm / name).stat().st_size > 0, (arm, name)


def test_the_dtype_is_read_back_from_every_layer(four: Run) -> None:
    candidates = {c["name"]: c["kv"] for c in four.decision["candidates"]}
    stored, less = ("", 2) if NATIVE else (" in bfloat16", 1)
    assert candidates[E4M3]["effective"] == "fp8_e4m3" + stored
    assert candidates[E5M2]["effective"] == "fp8_e5m2" + stored
    assert candidates["nvfp4_ref"]["effective"] == "nvfp4 in bfloat16"
    assert {kv["layers_quantized"] for kv in candidates.values()} == {30}
    assert four.decision["engine"]["attention_backend"] in ("CPU_ATTN (amx)", "CPU_ATTN (vec)")
    assert candidates[E4M3]["bytes_ratio"] == 1 / less
    assert candidates[E4M3]["capacity_ratio"] == pytest.approx(less, rel=1e-3)  # whole cache blocks
    assert candidates["int8_ref"]["bytes_ratio"] == 1.0
    assert four.decision["baseline"]["kv"]["bytes_per_token"] == 23040  # 30 layers x 2 x 3 heads x 64 x 2 bytes


def test_second_rounding_is_measured(four: Run) -> None:
    shares = {c["name"]: c["kv"]["second_rounding_share"] for c in four.decision["candidates"]}
    assert shares["nvfp4_ref"] == 0.0
    assert shares["int8_ref"] > 0.0


@needs_native_fp8
def test_what_the_engine_stores_is_read_back(four: Run) -> None:
    """VLLM 0.32's CPU attention truncates: about half of the codes are one step too small, and none is another."""
    found = json.loads((four.folder / "attribution.json").read_text())["arms"]
    assert set(found) == {E4M3, E5M2}
    for one in found.values():
        assert len(one["layers"]) == 30
        for half in (one["k"], one["v"]):
            assert half["values"] > 1_000_000
            assert 0.45 < half["identical"] < 0.65
            assert half["worst"] == 1
            assert half["bias"] == pytest.approx(half["identical"] - 1)
            assert half["shrinkage"] < -0.02 < half["shrinkage_right"] < 0.02
        assert one["sentences"][0].startswith("The engine does not store the correctly rounded codes (K: ")
        assert one["reference"] is None


def test_the_engine_repeats_itself_bit_for_bit(four: Run) -> None:
    run = RunFolder(four.folder)
    assert identical(run.arm("baseline").replays(), run.arm("repeat").replays())
    assert not identical(run.arm("baseline").replays(), run.arm("placebo").replays())


def test_forced_decoding_ranks_the_formats(four: Run) -> None:
    deltas = pd.read_parquet(four.folder / "deltas.parquet")
    reply = deltas[deltas.scorer == "gl_reply"].groupby("arm")["drop"].apply(lambda drops: drops.abs().mean())
    assert reply["repeat"] == 0.0
    assert max(reply["placebo"], reply["int8_ref"]) < reply[E4M3] < reply["nvfp4_ref"]
    assert reply[E4M3] < reply[E5M2]


def test_forced_replies_are_the_golden_ones(four: Run) -> None:
    run = RunFolder(four.folder)
    golden = {turn.turn_id: turn.golden_ids for turn in run.plan().turns}
    for arm in ("baseline", E4M3, "nvfp4_ref"):
        forced = [r for r in run.arm(arm).replays() if r.measure is Measure.FORCED]
        assert len(forced) == len(golden)
        assert all(replay.token_ids == golden[replay.turn_id] for replay in forced)
        assert all(len(step) >= 20 for replay in forced for step in replay.top)


def test_the_prefix_cache_worked_and_nothing_was_preempted(four: Run) -> None:
    for arm, facts in four.decision["arms"].items():
        assert facts["preemptions"] == 0, arm
        assert facts["prefix_cache_share"] > 0.3, arm


# Invariant 11: wherever the model id stands, requested and effective KV dtype stand beside it.


def texts(folder: Path) -> dict[str, str]:
    """Every file of the run folder as text; tables as the JSON of their rows."""
    found = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = str(path.relative_to(folder))
        found[name] = pd.read_parquet(path).to_json(orient="records") if path.suffix == ".parquet" else path.read_text()
    return found


def test_every_file_of_a_run_folder(four: Run) -> None:
    naming = {name: text for name, text in texts(four.folder).items() if MODEL in text}
    naming.pop("model-card.md", None)  # it names what was promoted alone
    assert {"decision.json", "config.yaml", "turns.parquet", *REPORTS} <= set(naming)
    for name, text in naming.items():
        arms = [name.split("/")[1]] if name.startswith("arms/") else list(CANDIDATES)
        for requested, effective in (CANDIDATES[arm] for arm in arms if arm in CANDIDATES):
            if name in REPORTS:
                assert f"KV {requested} (effective {effective}, " in text, name
            else:
                assert requested in text, name
                assert effective in text, name
        if name not in REPORTS:
            assert "requested" in text, name
            assert "effective" in text, name


def test_every_row_of_every_table(four: Run) -> None:
    for name in ("turns.parquet", "deltas.parquet", "fidelity.parquet"):
        frame = pd.read_parquet(four.folder / name)
        assert frame[["model", "kv_requested", "kv_effective", "kv_realisation"]].notna().all().all()
        for arm, (requested, effective) in CANDIDATES.items():
            rows = frame[frame.arm == arm]
            assert set(rows.kv_requested) == {requested}
            assert set(rows.kv_effective) == {effective}


def test_every_mlflow_run_tag_and_table(four: Run, shared_folder: Path) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{shared_folder}/mlflow.db")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    runs = [run for run in client.search_runs(experiments) if run.data.tags["kv.signoff_id"] == four.folder.name]
    assert len(runs) == 1 + len(CANDIDATES)
    seen = set()
    for run in runs:
        requested, effective = run.data.tags["kv.requested"], run.data.tags["kv.effective"]
        seen.add((requested, effective))
        for text in (run.info.run_name, run.data.tags["mlflow.note.content"], json.dumps(run.data.params)):
            assert MODEL in text
            assert requested in text
            assert effective in text
    assert seen == {("bfloat16", "bfloat16"), *CANDIDATES.values()}
    for model in client.search_registered_models():
        for version in client.search_model_versions(f"name='{model.name}'"):
            tags = version.tags
            assert (tags["kv_cache_dtype_requested"], tags["kv_cache_dtype_effective"]) in seen


# Gates that use again what the first one ran.


def test_a_second_gate_reuses_what_is_there(four: Run, gate: Callable[..., Run], shared_folder: Path) -> None:
    again = gate(shared_folder, FOUR)
    assert again.status == four.status, again.output
    ours, theirs = again.decision, four.decision
    for key in ("run_id", "created_at"):
        ours.pop(key), theirs.pop(key)
    ours.pop("attempts", None), theirs.pop("attempts", None)
    assert (theirs.pop("power")["noise"], ours.pop("power")["noise"]) == ("assumed", "measured")  # by the first gate
    assert ours == theirs
    folder = RunFolder(again.folder)
    blocks = len(list(folder.arm("baseline").journal.blocks()))
    assert blocks > 0
    assert all(folder.arm(name).identity()["blocks_reused"] == blocks for name in ("baseline", "repeat", "placebo"))


def test_self_test_promotes_and_moves_no_alias(gate: Callable[..., Run], shared_folder: Path) -> None:
    from mlflow import MlflowClient

    run = gate(shared_folder, "kv=[bfloat16]")
    assert run.status == 0, run.output
    assert run.decision["candidates"][0]["self_test"] is True
    client = MlflowClient(f"sqlite:///{shared_folder}/mlflow.db")
    assert all(not model.aliases for model in client.search_registered_models())


@needs_native_fp8
def test_skip_layers_are_attested(gate: Callable[..., Run], shared_folder: Path, four: Run) -> None:
    run = gate(shared_folder, "kv=[fp8_e5m2]", "kv.fp8_e5m2.skip_layers=['0','1','29']")
    assert run.status in (0, 3, 4), run.output
    kv = run.decision["candidates"][0]["kv"]
    assert kv["layers_skipped"] == [0, 1, 29]
    assert kv["effective"] == "bfloat16+fp8_e5m2"
