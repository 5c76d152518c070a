"""Run folders: what is written, and which earlier replays an arm may use again."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from kvquant_eval.core.codec import DataError
from kvquant_eval.core.engine import EngineFacts
from kvquant_eval.core.records import BlockResult, Prepared
from kvquant_eval.io.runfolder import (
    ArmFolder,
    RunFolder,
    code_sha256,
    count,
    earlier_decisions,
    last_speed,
    latest,
    new_run,
    reuse,
    write_json,
)
from tests.fakes.records import facts, layer, rendered_turn, reply

FACTS = facts(layer(0), layer(1, "fp8_e4m3", k_scale=0.1))


def block(index: int, **changes: int) -> BlockResult:
    replays = (reply("x", turn_id=f"t{index}", token_ids=(1, 2, 3), prompt_tokens=10, cached_tokens=4),)
    return BlockResult(**{"index": index, "replays": replays, "preemptions": 0, "seconds": 0.5, **changes})  # type: ignore[arg-type]


def empty(runs: Path, run: str, mark: str, name: str = "baseline") -> ArmFolder:
    folder = RunFolder(runs / run).arm(name)
    folder.write_identity({"fingerprint": mark})
    return folder


def arm(runs: Path, run: str, mark: str, blocks: int, attested: EngineFacts | None = FACTS) -> ArmFolder:
    """An arm of an earlier run with so many finished blocks."""
    folder = empty(runs, run, mark)
    for index in range(blocks):
        folder.journal.commit(block(index))
    if attested is not None:
        folder.write_facts(attested, {"model": "m"})
    return folder


@pytest.fixture
def into(tmp_path: Path) -> ArmFolder:
    return empty(tmp_path, "new", "f")


def test_nothing_to_reuse(tmp_path: Path, into: ArmFolder) -> None:
    assert reuse(tmp_path, into) == 0
    assert into.replays() == ()
    assert into.facts() is None


def test_the_same_fingerprint_is_used_again(tmp_path: Path, into: ArmFolder) -> None:
    old = arm(tmp_path, "old", "f", 3)
    assert reuse(tmp_path, into) == 3
    assert into.replays() == old.replays()
    assert into.facts() == FACTS


def test_another_fingerprint_never(tmp_path: Path, into: ArmFolder) -> None:
    arm(tmp_path, "old", "g", 3)
    assert reuse(tmp_path, into) == 0
    assert into.replays() == ()


def test_the_fullest_journal_is_taken(tmp_path: Path, into: ArmFolder) -> None:
    for run, blocks in (("a", 1), ("b", 3), ("c", 2)):
        arm(tmp_path, run, "f", blocks)
    arm(tmp_path, "d", "other", 9)
    assert reuse(tmp_path, into) == 3
    assert len(into.replays()) == 3


def test_a_partial_journal_is_taken_up_without_its_torn_tail(tmp_path: Path, into: ArmFolder) -> None:
    old = arm(tmp_path, "old", "f", 2)
    with old.journal.path.open("a") as file:
        file.write('{"turn_id": "t2", "mea')
    assert reuse(tmp_path, into) == 2
    into.journal.commit(block(2))
    assert [one.index for one in into.journal.blocks()] == [0, 1, 2]
    assert old.journal.path.read_text().endswith("mea")  # the earlier run is left as it was


def test_an_arm_that_attested_nothing_is_not_used(tmp_path: Path, into: ArmFolder) -> None:
    arm(tmp_path, "old", "f", 3, attested=None)
    assert reuse(tmp_path, into) == 0


def test_an_arm_does_not_copy_itself(tmp_path: Path) -> None:
    own = arm(tmp_path, "own", "f", 3)
    assert reuse(tmp_path, own) == 3
    assert len(own.replays()) == 3


def test_what_an_arm_has_is_kept_where_no_other_has_more(tmp_path: Path) -> None:
    own = arm(tmp_path, "own", "f", 2)
    arm(tmp_path, "a", "f", 2)
    before = own.journal.path.stat().st_ino
    assert reuse(tmp_path, own) == 2
    assert own.journal.path.stat().st_ino == before
    arm(tmp_path, "b", "f", 3)
    assert reuse(tmp_path, own) == 3
    assert len(own.replays()) == 3


def test_nothing_is_looked_for_where_everything_is_to_be_run_anew(tmp_path: Path, into: ArmFolder) -> None:
    arm(tmp_path, "old", "f", 3)
    assert reuse(None, into) == 0
    assert into.replays() == ()


def test_a_journal_of_another_arm_is_recognised(tmp_path: Path, into: ArmFolder) -> None:
    shutil.copy(arm(tmp_path, "old", "g", 2).journal.path, into.journal.path)
    with pytest.raises(DataError, match=r"replays of the arm f, got block 0 of the arm g; put the file back"):
        into.blocks()
    assert reuse(tmp_path, empty(tmp_path, "newer", "f")) == 0


def test_an_arm_of_another_name_may_be_used(tmp_path: Path) -> None:
    """The fingerprint has what matters; a candidate may be named otherwise."""
    arm(tmp_path, "old", "f", 2)
    assert reuse(tmp_path, empty(tmp_path, "new", "f", "renamed")) == 2


@pytest.mark.parametrize("identity", [None, "{", "[]", "null"])
def test_a_damaged_identity_is_no_match_and_no_crash(tmp_path: Path, into: ArmFolder, identity: str | None) -> None:
    old = arm(tmp_path, "old", "f", 2)
    if identity is None:
        (old.path / "arm.json").unlink()
    else:
        (old.path / "arm.json").write_text(identity)
    assert reuse(tmp_path, into) == 0


@pytest.mark.parametrize("content", ["", "{", '{"facts": {}}', "{}"])
def test_damaged_facts_of_an_earlier_run_are_no_crash(tmp_path: Path, into: ArmFolder, content: str) -> None:
    old = arm(tmp_path, "old", "f", 2)
    (old.path / "engine.json").write_text(content)
    assert reuse(tmp_path, into) == 0
    with pytest.raises(DataError, match=r"engine\.json: "):
        old.facts()


def test_a_damaged_run_hides_no_other(tmp_path: Path, into: ArmFolder) -> None:
    arm(tmp_path, "a", "f", 2)
    (arm(tmp_path, "b", "f", 3).path / "engine.json").write_text("{")
    assert reuse(tmp_path, into) == 2


def test_replays_come_in_the_order_of_the_blocks(into: ArmFolder) -> None:
    for index in (2, 0, 1):
        into.journal.commit(block(index))
    assert [replay.turn_id for replay in into.replays()] == ["t0", "t1", "t2"]


def test_counts_are_sums_over_finished_blocks(into: ArmFolder) -> None:
    into.journal.commit(block(0))
    into.journal.commit(block(1, preemptions=2))
    assert count(into.blocks()) == {
        "seconds": 1.0,
        "preemptions": 2,
        "prompt_tokens": 20,
        "cached_tokens": 8,
        "decoded_tokens": 6,
    }
    assert count([])["seconds"] == 0


def test_facts_survive_with_their_identity(into: ArmFolder) -> None:
    into.write_facts(FACTS, {"model": "org/m", "kv_effective": "fp8_e4m3"})
    written = json.loads((into.path / "engine.json").read_text())
    assert (written["model"], written["kv_effective"]) == ("org/m", "fp8_e4m3")
    assert into.facts() == FACTS


def test_the_plan_survives(tmp_path: Path) -> None:
    prepared = Prepared(
        path="/m",
        weights_sha256="w",
        template_sha256="t",
        device="cpu",
        versions={"vllm": "1"},
        kv_cache_scheme=False,
        turns=(rendered_turn("a", spans=((0, 1),)), rendered_turn("b", skip="needs 9000 tokens")),
    )
    run = new_run(tmp_path, "run")
    run.write_plan(prepared)
    assert run.plan() == prepared
    assert len((run.path / "plan.jsonl").read_text().splitlines()) == 2


def test_a_folder_that_is_no_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"config\.yaml: the configuration of a run, .*; name a run folder"):
        RunFolder(tmp_path).config()
    with pytest.raises(DataError, match=r"plan\.jsonl: the plan of a run, .*; name a run folder"):
        RunFolder(tmp_path).plan()


def test_a_bad_line_of_the_plan_is_named(tmp_path: Path) -> None:
    (tmp_path / "plan.jsonl").write_text("{}\n")
    (tmp_path / "prepared.json").write_text("{}")
    with pytest.raises(DataError, match=r"plan\.jsonl:1: "):
        RunFolder(tmp_path).plan()


def test_the_configuration_survives(tmp_path: Path) -> None:
    run = new_run(tmp_path, "run")
    config = {"model": {"id": "é"}, "kv": ["fp8"], "pinned": {"golden_sha256": "g", "policy_sha256": "p"}}
    run.write_config(config)
    assert run.config() == config


@pytest.mark.parametrize("text", ["", "[]", "model: {", "model: m"])
def test_a_configuration_that_is_none_says_so(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(DataError, match=r"config\.yaml: the configuration of a run, got .*; name a run folder"):
        RunFolder(tmp_path).config()


def test_runs_of_one_second_get_names_of_their_own(tmp_path: Path) -> None:
    assert [new_run(tmp_path / "deep", "run").run_id for _ in range(3)] == ["run", "run-2", "run-3"]


def test_attempts_are_counted_in_the_order_in_which_runs_were_made(tmp_path: Path) -> None:
    made = [new_run(tmp_path, "20260101T000000-m-fp8").path for _ in range(11)]
    for folder in reversed(made):
        write_json(folder / "decision.json", {"identity_sha256": "i"})
    assert [earlier_decisions(folder, "i") for folder in made] == list(range(11))
    assert earlier_decisions(new_run(tmp_path, "20260101T000001-m-fp8").path, "i") == 11
    assert earlier_decisions(made[-1], "another") == 0


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}"])
def test_a_damaged_decision_is_no_attempt(tmp_path: Path, text: str) -> None:
    (new_run(tmp_path, "run").path / "decision.json").write_text(text)
    assert earlier_decisions(new_run(tmp_path, "run").path, "i") == 0


def test_json_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "decision.json"
    write_json(path, {"decision": "HOLD"})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"decision": float("nan")})
    assert json.loads(path.read_text()) == {"decision": "HOLD"}

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        write_json(path, {"decision": "PROMOTE"})
    assert json.loads(path.read_text()) == {"decision": "HOLD"}


def test_code_is_named_by_all_its_sources(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("1")
    (tmp_path / "b.py").write_text("2")
    first = code_sha256(tmp_path.glob("*.py"))
    (tmp_path / "notes.txt").write_text("3")
    assert code_sha256(tmp_path.glob("*.py")) == first
    (tmp_path / "b.py").write_text("3")
    changed = code_sha256(tmp_path.glob("*.py"))
    (tmp_path / "b.py").write_text("")
    (tmp_path / "a.py").write_text("12")
    assert len({first, changed, code_sha256(tmp_path.glob("*.py"))}) == 3


def test_one_process_at_a_time(tmp_path: Path) -> None:
    run = new_run(tmp_path, "run")
    with run.locked(), pytest.raises(DataError, match="one process at a time"), run.locked():
        pass
    with run.locked():
        pass


def test_strangers_are_named_and_own_files_are_not(tmp_path: Path) -> None:
    folder = arm(tmp_path, "run", "f", 1)
    run = RunFolder(tmp_path / "run")
    run.write_config({"pinned": {}})
    (run.path / "decision.json.tmp").touch()  # of a write that was broken off
    assert run.strangers(["baseline"]) == []
    (folder.path / "replays (copy).jsonl").touch()
    (run.path / "notes.txt").touch()
    arm(tmp_path, "run", "f", 1).path.rename(run.path / "arms" / "other")
    empty(tmp_path, "run", "f")
    assert run.strangers(["baseline"]) == ["arms/other", "notes.txt"]
    (run.path / "arms" / "baseline" / "x").touch()
    assert run.strangers(["baseline"]) == ["arms/baseline/x", "arms/other", "notes.txt"]


def test_a_run_is_finished_when_its_tracking_is(tmp_path: Path) -> None:
    run = new_run(tmp_path, "run")
    write_json(run.path / "decision.json", {})
    assert not run.finished
    run.finish({"runs": []})
    assert run.finished


def test_the_last_runs_come_first(tmp_path: Path) -> None:
    for name in ("20260101T000000-m-fp8", "20260102T000000-m-fp8", "20260101T000000-m-fp8-2", "20260103T000000-n-fp8"):
        new_run(tmp_path, name)
    assert [run.run_id for run in latest(tmp_path, "-m-fp8")] == [
        "20260102T000000-m-fp8",
        "20260101T000000-m-fp8-2",
        "20260101T000000-m-fp8",
    ]
    assert latest(tmp_path / "nowhere", "-m-fp8") == []


def test_speed_is_that_of_an_arm_of_the_same_model_device_and_versions(tmp_path: Path) -> None:
    like = {"model": ["m"], "weights": "w", "device": "cpu", "versions": {"vllm": "1"}, "role": "baseline"}
    folder = arm(tmp_path, "run", "f", 2)
    folder.write_identity({"fingerprint": "f", "ingredients": {**like, "role": "candidate"}})
    found = last_speed(tmp_path, like)
    assert found is not None
    assert found.seconds_per_token == 1.0 / 18  # 20 prompt tokens, 8 of them from the cache, and 6 decoded, in 1 s
    assert found.cached_share == 0.4
    for key in ("model", "weights", "device", "versions"):
        assert last_speed(tmp_path, {**like, key: "other"}) is None
