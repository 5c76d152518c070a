"""A gate with the range profile: what is written, that it decides nothing, and that it is resumed like all else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from kvquant_eval.core.ranges import merged
from kvquant_eval.core.settings import ReportSettings, Settings
from kvquant_eval.io.runfolder import RunFolder
from kvquant_eval.pipeline import GateRun, gate, regate
from tests.fakes.gate import reference, settings, treatments, write_golden
from tests.fakes.kills import comparable

ASKED = ReportSettings(range_profile=True)
NAME = "org/fake-model@r1 KV bfloat16 (effective bfloat16, native)"


def made(folder: Path, **changes: Any) -> Settings:
    return settings(folder, {**treatments("good"), **reference("ref")}, report=ASKED, **changes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ranges")
    write_golden(path / "golden")
    return path


@pytest.fixture(scope="module")
def run(folder: Path) -> GateRun:
    return gate(made(folder))


def decision(folder: RunFolder) -> Any:
    return json.loads((folder.path / "decision.json").read_text())


def test_the_decision_has_it_beside_all_else(run: GateRun) -> None:
    found = decision(run.folder)["ranges"]
    assert (found["arm"], found["formats"]) == ("baseline", ["fp8_e4m3", "int8"])
    assert (found["k"]["layer"], found["k"]["head"]) == (2, 1)
    assert 5000 <= found["k"]["largest"] <= 10000
    assert found["k"]["values"] == 5 * 4 * 2 * 100, "blocks, layers, heads, values"
    assert [layer["layer"] for layer in found["layers"]] == [0, 1, 2, 3]
    assert found["sentences"][0].startswith("fp8_e4m3 clips at unit scales: |K| of layer 2, head 1 reaches ")
    assert any(line.startswith("Outlier head: |K| of layer 2, head 1") for line in found["sentences"])


def test_nothing_else_of_the_decision_knows_of_it(run: GateRun, tmp_path: Path, folder: Path) -> None:
    shutil.copytree(folder / "golden", tmp_path / "golden")
    without = gate(settings(tmp_path, {**treatments("good"), **reference("ref")}))
    one, other = comparable(decision(run.folder)), comparable(decision(without.folder))
    assert one.pop("ranges")
    assert one == other
    assert not (without.folder.path / "ranges.parquet").exists()


def test_a_row_a_layer_half_head_and_format(run: GateRun) -> None:
    frame = pd.read_parquet(run.folder.path / "ranges.parquet")
    assert len(frame) == 4 * 2 * 2 * 2
    assert frame[["layer", "half", "head", "format"]].drop_duplicates().shape[0] == len(frame)
    assert set(frame["model"]) == {"org/fake-model"}
    assert set(frame["revision"]) == {"r1"}
    for column, value in (("arm", "baseline"), ("kv_requested", "bfloat16"), ("kv_effective", "bfloat16")):
        assert set(frame[column]) == {value}
    loud = frame[(frame["layer"] == 2) & (frame["half"] == "k") & (frame["head"] == 1)].set_index("format")
    assert loud.loc["fp8_e4m3", "limit"] == 448.0
    assert loud.loc["fp8_e4m3", "beyond"] == 1 / 100
    assert loud.loc[["int8"], ["limit", "beyond"]].isna().all().all()
    assert (frame["sqnr_db"] > 0).all()


def test_counts_are_those_of_the_blocks(run: GateRun) -> None:
    blocks = run.folder.arm("baseline").blocks()
    assert all(len(block.ranges) == 4 for block in blocks)
    assert run.judgement.arms["baseline"].ranges == merged(block.ranges for block in blocks)
    assert not any(block.ranges for block in run.folder.arm("repeat").blocks())


def test_the_reports_say_it_with_model_and_dtype(run: GateRun) -> None:
    page = (run.folder.path / "report.html").read_text()
    text = (run.folder.path / "report.md").read_text()
    for written in (page, text):
        assert f"Range of K and V: {NAME}" in written.replace("\\", "")
        assert "clips at unit scales" in written
        assert "Diagnostic, never deciding" in written
    assert f"Largest |K| and |V| of each layer. {NAME}." in page
    assert "fp8_e4m3 448" in page
    assert "| 2 | K |" in text


def test_a_gate_that_was_broken_off_counts_the_same(run: GateRun, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    path = next((tmp_path / "runs").iterdir())
    for name in ("tracking.json", "decision.json", "ranges.parquet"):
        (path / name).unlink()
    journal = path / "arms" / "baseline" / "replays.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    ends = [i for i, line in enumerate(lines) if line.startswith('{"commit"')]
    journal.write_text("".join(lines[: ends[1] + 1]))
    config = (path / "config.yaml").read_text()
    (path / "config.yaml").write_text(config.replace(str(folder), str(tmp_path)))
    again = gate(made(tmp_path))
    assert again.folder.path == path
    assert comparable(decision(again.folder)) == comparable(decision(run.folder))
    frames = (pd.read_parquet(each.folder.path / "ranges.parquet") for each in (again, run))
    pd.testing.assert_frame_equal(*frames)


def test_it_is_decided_again_byte_for_byte(run: GateRun, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(run.folder.path, tmp_path / run.folder.run_id)
    copied = RunFolder(tmp_path / run.folder.run_id)
    regate(copied, made(folder))
    kept = [
        [line for line in (each.path / "decision.json").read_text().splitlines() if '"created_at"' not in line]
        for each in (copied, run.folder)
    ]
    assert kept[0] == kept[1]
    for name in ("report.md", "report.html", "junit.xml"):
        pages = [
            (each.path / name).read_text().replace(decision(each)["created_at"], "") for each in (copied, run.folder)
        ]
        assert pages[0] == pages[1]


def test_an_arm_that_was_not_profiled_is_not_used_again(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "golden", tmp_path / "golden")
    gate(settings(tmp_path, treatments("good")))
    after = gate(settings(tmp_path, treatments("good"), report=ASKED))
    reused = {name: after.folder.arm(name).identity()["blocks_reused"] for name in ("baseline", "repeat", "good")}
    assert reused == {"baseline": 0, "repeat": 5, "good": 5}


def test_a_self_test_has_magnitudes_and_no_format(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "golden", tmp_path / "golden")
    found = gate(settings(tmp_path, treatments("same", dtype="bfloat16"), report=ASKED))
    assert found.document["ranges"]["formats"] == []
    assert found.document["ranges"]["sentences"][0].startswith("Outlier head: |K| of layer 2, head 1")
    frame = pd.read_parquet(found.folder.path / "ranges.parquet")
    assert (set(frame["format"]), len(frame)) == ({""}, 4 * 2 * 2)
    assert frame["largest"].max() == found.document["ranges"]["k"]["largest"]
    assert frame[["limit", "beyond", "sqnr_db"]].isna().all().all()
