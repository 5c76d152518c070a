"""Whole gates on the fake engine: the invariants of the design, each with a fault that would break it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from kvquant_eval.core.codec import DataError
from kvquant_eval.core.policy import Rule
from kvquant_eval.core.records import Sampling
from kvquant_eval.core.treatment import KVTreatment
from kvquant_eval.decision import recompute, without_head
from kvquant_eval.io import report
from kvquant_eval.io.golden import MANIFEST, pin
from kvquant_eval.io.runfolder import RunFolder
from kvquant_eval.pipeline import GateRun, gate, regate
from tests.fakes.engine import LAYERS
from tests.fakes.gate import policy, reference, settings, treatments, write_golden

FAULTS = (
    "does_not_start", "dies_in_block_1", "raises_in_block_1", "infra_errors", "fewer_replies", "ignores_dtype",
    "skips_a_layer", "no_layers", "zero_scales", "negative_scales", "nan_scales", "half_applied_scales", "preempts",
    "not_applied", "other_backend", "prefix_caching_off", "drops_math_chain", "drops_faq", "drops_three_turns",
    "empty_replies", "loops", "stutters", "dies_on_close", "killed_for_memory",
)  # fmt: skip
WRITE = report.write
SELF_TEST = {"self_test": KVTreatment(name="self_test", dtype="bfloat16")}
SKIPPING = {"skipping": KVTreatment(name="skipping", dtype="fp8_e4m3", skip_layers=("0",))}


@pytest.fixture(scope="module", autouse=True)
def _decisions_only() -> Iterator[None]:
    """Reports are tested where they are made; drawing them takes longer than all the rest here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "write", lambda *_: None)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of this module go here, so that baseline and controls are run once."""
    made = tmp_path_factory.mktemp("gates")
    write_golden(made / "golden")
    return made


@pytest.fixture(scope="module")
def everything(folder: Path) -> GateRun:
    """One gate with a good candidate, a reference format, a self-test and every fault that is the candidate's own."""
    return gate(settings(folder, CANDIDATES))


CANDIDATES = {**treatments("good", *FAULTS), **SELF_TEST, **SKIPPING, **reference("reference")}


def candidate(run: GateRun, name: str) -> dict[str, Any]:
    return next(found for found in run.document["candidates"] if found["name"] == name)


def decision(run: GateRun, name: str) -> str:
    return str(candidate(run, name)["decision"])


def document(run: GateRun) -> dict[str, Any]:
    return stored(run.folder.path)


def stored(path: Path) -> dict[str, Any]:
    """``decision.json`` without what is the run's own."""
    data: dict[str, Any] = json.loads((path / "decision.json").read_text())
    return {key: value for key, value in data.items() if key not in ("run_id", "created_at", "attempts")}


# 1. Fail closed, and 2. the dtype that ran is read back.


@pytest.mark.parametrize("name", ["good", "self_test", "skipping", "reference", "dies_on_close"])
def test_what_is_sound_is_promoted(everything: GateRun, name: str) -> None:
    assert decision(everything, name) == "PROMOTE"
    assert candidate(everything, name)["self_test"] is (name == "self_test")


@pytest.mark.parametrize(
    ("name", "expected", "reason"),
    [
        ("does_not_start", "INVALID", "no memory for the KV cache"),
        ("dies_in_block_1", "INVALID", "during run: its process ended"),
        ("raises_in_block_1", "INVALID", "RuntimeError: EngineDeadError"),
        ("infra_errors", "INCONCLUSIVE", "8 turns without a pair of scores"),
        ("fewer_replies", "INVALID", "block 0: 16 replies asked for, got 14"),
        ("killed_for_memory", "INVALID", "its process ended (SIGKILL, by hand or for want of memory)"),
        ("ignores_dtype", "INVALID", f"requested fp8_e4m3, but {LAYERS} of {LAYERS} layers run bfloat16"),
        ("skips_a_layer", "INVALID", f"1 of {LAYERS} layers run bfloat16 (first: layer {LAYERS - 1})"),
        ("no_layers", "INVALID", "no attention layer could be read back"),
        ("zero_scales", "INVALID", "layer 0: k_scale is 0.0"),
        ("negative_scales", "INVALID", "layer 0: v_scale is -1.0"),
        ("nan_scales", "INVALID", "layer 0: k_scale is nan"),
        ("half_applied_scales", "INVALID", "k_scale is 1.0 in one place and 0.5 in another"),
        ("preempts", "INVALID", "1 preemptions, which change answers"),
        ("not_applied", "INVALID", "not applied: every token and logprob equals the baseline's"),
        ("other_backend", "INVALID", "attention_backend differs from the baseline"),
        ("prefix_caching_off", "INVALID", "cache_config.enable_prefix_caching differs from the baseline"),
        ("drops_math_chain", "HOLD", "math_chain: gl_reply: 20 turns drop over 2 points against 0"),
        ("drops_faq", "HOLD", "faq: gl_reply: mean drop 8.0"),
        ("empty_replies", "HOLD", "math_steps: mean drop "),
        ("loops", "HOLD", "math_steps: mean drop "),
        ("stutters", "HOLD", "degenerate replies: 20 of 40 against the baseline's 0 (p = "),
    ],
)
def test_each_fault_has_its_decision_and_reason(everything: GateRun, name: str, expected: str, reason: str) -> None:
    found = candidate(everything, name)
    assert found["decision"] == expected
    assert reason in " | ".join(found["reasons"])


def test_the_worst_candidate_decides(everything: GateRun) -> None:
    assert (everything.document["decision"], everything.document["exit_code"]) == ("INVALID", 5)
    assert stored(everything.folder.path) == document(everything)


FEW = {
    name: CANDIDATES[name]
    for name in (
        "good", "reference", "drops_faq", "drops_math_chain", "drops_three_turns", "infra_errors", "preempts",
        "stutters",
    )
}  # fmt: skip


@pytest.fixture(scope="module")
def few(folder: Path, everything: GateRun) -> GateRun:
    """Some of the same arms, used again."""
    return gate(settings(folder, FEW))


@pytest.fixture
def copied(few: GateRun, tmp_path: Path) -> RunFolder:
    """A finished run, for tests that decide it again."""
    shutil.copytree(few.folder.path, tmp_path / few.folder.run_id)
    return RunFolder(tmp_path / few.folder.run_id)


@pytest.mark.parametrize(
    ("require", "expected", "status"),
    [
        (("good", "reference"), "PROMOTE", 0),
        (("good", "drops_faq", "infra_errors"), "HOLD", 3),
        (("infra_errors", "good"), "INCONCLUSIVE", 4),
        (("drops_faq", "preempts"), "INVALID", 5),
    ],
)
def test_exit_codes_follow_the_required_candidates(
    folder: Path, copied: RunFolder, require: tuple[str, ...], expected: str, status: int
) -> None:
    run = regate(copied, settings(folder, FEW, policy=policy(require=require)))
    assert (run.document["decision"], run.document["exit_code"]) == (expected, status)
    assert run.judgement.decision.exit_code == status
    assert all(reason.split(":")[0] in require for reason in run.document["reasons"])


def test_a_wrong_dtype_is_not_replayed(everything: GateRun) -> None:
    for name in ("ignores_dtype", "zero_scales", "no_layers"):
        assert everything.document["arms"][name]["replays"] == 0
    assert everything.document["arms"]["good"]["replays"] == 80


def test_facts_are_in_the_document(everything: GateRun) -> None:
    kv = candidate(everything, "good")["kv"]
    assert (kv["requested"], kv["effective"], kv["realisation"]) == ("fp8_e4m3", "fp8_e4m3", "native")
    assert (kv["layers_quantized"], kv["layers_skipped"]) == (LAYERS, [])
    assert (kv["bytes_per_token"], kv["bytes_ratio"], kv["capacity_ratio"]) == (128.0, 0.5, 2.0)
    assert candidate(everything, "ignores_dtype")["kv"]["effective"] == "bfloat16"
    assert candidate(everything, "skips_a_layer")["kv"]["layers_skipped"] == [LAYERS - 1]
    assert candidate(everything, "does_not_start")["kv"]["effective"] == "not read back"
    skipping = candidate(everything, "skipping")["kv"]
    assert (skipping["layers_quantized"], skipping["layers_skipped"]) == (3, [0])
    assert candidate(everything, "reference")["kv"]["effective"] == "int8 in bfloat16"
    assert candidate(everything, "reference")["kv"]["bytes_ratio"] == 1.0


def test_an_impossible_dtype_is_refused_before_any_engine_starts(folder: Path, tmp_path: Path) -> None:
    made = settings(folder, treatments("good", dtype="fp9"), runs_dir=str(tmp_path / "runs"))
    with pytest.raises(DataError, match=r"^kv\.good\.dtype: .*got 'fp9'"):
        gate(made)
    assert not (tmp_path / "runs").exists()


def test_a_golden_set_that_changed_is_refused_before_any_engine_starts(tmp_path: Path) -> None:
    golden = write_golden(tmp_path / "golden")
    with (golden / "faq" / "turns.jsonl").open("a") as file:
        file.write("\n")
    with pytest.raises(DataError, match="golden turns are immutable"):
        gate(settings(tmp_path, treatments("good")))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("dies_in_block_1", "its process ended"),
        ("no_layers", "no attention layer could be read back"),
    ],
)
def test_a_baseline_that_is_none_makes_the_gate_invalid(tmp_path: Path, fault: str, reason: str) -> None:
    """The fault is in the baseline (and its repeat); the candidate is sound."""
    write_golden(tmp_path / "golden")
    run = gate(settings(tmp_path, treatments("good"), args={"faults": {"baseline": fault}}))
    assert run.document["decision"] == "INVALID"
    assert reason in " | ".join(run.document["reasons"])


def test_a_quantized_baseline_is_none(tmp_path: Path) -> None:
    write_golden(tmp_path / "golden")
    made = settings(tmp_path, treatments("good"), baseline=KVTreatment(name="baseline", dtype="fp8_e4m3"))
    try:
        run = gate(made)
    except DataError:
        return
    assert run.document["decision"] == "INVALID"


def test_logprobs_that_are_no_numbers_do_not_end_the_gate(folder: Path) -> None:
    run = gate(settings(folder, treatments("nan_logprobs")))
    assert run.document["decision"] in ("INVALID", "INCONCLUSIVE")


def test_a_turn_that_no_arm_ran_is_missed(tmp_path: Path) -> None:
    write_golden(tmp_path / "golden")
    made = settings(tmp_path, treatments("good"))
    run = gate(made)
    for arm in ("baseline", "repeat", "placebo", "good"):
        path = run.folder.arm(arm).journal.path
        path.write_text("".join(line for line in path.open() if not line.startswith('{"commit": 0')))
    again = regate(run.folder, made)
    assert again.document["decision"] == "INCONCLUSIVE"
    assert "4 of 5 blocks are replayed" in " | ".join(again.document["reasons"])


def test_a_hanging_engine_is_invalid_within_its_timeout(folder: Path, everything: GateRun) -> None:
    started = time.monotonic()
    run = gate(settings(folder, treatments("hangs"), stall_s=3.0))
    assert run.document["decision"] == "INVALID"
    assert "no token for 3 s" in run.document["reasons"][0]
    assert time.monotonic() - started < 30


def test_an_engine_that_died_is_started_again_and_goes_on(folder: Path, tmp_path: Path, everything: GateRun) -> None:
    args = {"marker": str(tmp_path / "marker")}
    (tmp_path / "golden").symlink_to(folder / "golden")
    run = gate(settings(tmp_path, treatments("dies_once"), args=args, retries=1))
    assert run.document["decision"] == "PROMOTE"
    assert run.document["arms"]["dies_once"]["error"] == ""
    assert run.document["arms"]["dies_once"]["replays"] == 80


# 3. Only the treatment differs.


def test_an_accepted_difference_is_named_and_no_obstacle(folder: Path, everything: GateRun) -> None:
    accepted = policy(accept_differences=("attention_backend",))
    run = gate(settings(folder, treatments("other_backend"), policy=accepted))
    assert run.document["decision"] == "PROMOTE"
    assert any("(accepted)" in finding["what"] for finding in candidate(run, "other_backend")["findings"])


# 4. Same tokens in; what does not fit is skipped in all arms and counted.


def test_skipped_turns_forbid_promote_in_the_hardest_class(tmp_path: Path) -> None:
    write_golden(tmp_path / "golden")
    allowed = policy(allow_underpowered=True)
    run = gate(settings(tmp_path, treatments("good"), args={"max_model_len": 150}, policy=allowed))  # half needs more
    skipped = [turn for turn in run.prepared.turns if turn.skip]
    assert {turn.workload for turn in skipped} == {"math_chain"}
    assert 0 < len(skipped) < 20
    assert run.document["golden"]["n_skipped"] == len(skipped)
    assert run.document["decision"] == "INCONCLUSIVE"
    assert f"{len(skipped)} turns skipped in the hardest class" in " | ".join(run.document["reasons"])
    ids = {turn.turn_id for turn in skipped}
    for name in ("baseline", "repeat", "placebo", "good"):
        replays = run.folder.arm(name).replays()
        assert len(replays) == 2 * (40 - len(skipped))
        assert not ids & {replay.turn_id for replay in replays}


def test_all_arms_got_the_same_tokens(everything: GateRun) -> None:
    plan = {turn.turn_id: turn for turn in everything.folder.plan().turns}
    for name in ("baseline", "repeat", "placebo", "good", "reference"):
        for replay in everything.folder.arm(name).replays():
            assert replay.prompt_tokens == len(plan[replay.turn_id].prompt_ids)
            if replay.top:
                assert replay.token_ids == plan[replay.turn_id].golden_ids


# 5. Outcomes stay apart.


def test_outcomes_are_counted_apart_and_stay_paired(everything: GateRun) -> None:
    arms = everything.document["arms"]
    assert arms["empty_replies"]["outcomes"] == {"empty": 40, "ok": 40}
    assert arms["loops"]["outcomes"] == {"degenerate": 40, "ok": 40}
    assert arms["infra_errors"]["outcomes"]["infra_error"] == 16
    steps = candidate(everything, "empty_replies")["classes"]["math_chain"]["scores"]["math_steps"]
    assert (steps["n_turns"], steps["candidate_mean"]) == (20, 0.0)
    assert candidate(everything, "infra_errors")["classes"]["math_chain"]["n_missing"] == 8


def test_a_rise_of_degenerate_replies_holds_what_every_score_lets_through(everything: GateRun) -> None:
    held = candidate(everything, "stutters")
    assert {judged["verdict"] for judged in held["classes"].values()} == {"PASS"}
    (reason,) = held["reasons"]
    assert "(p = 9.5e-07), the controls rise by at most 0; loop 20 (p = 8.6e-06 among 9 reasons to hold)" in reason
    counted = held["degeneration"]
    assert (counted["n"], counted["arm"], counted["baseline"], counted["rise"]) == (40, 20, 0, 20)
    assert counted["p"] < 0.001
    assert counted["signs"]["loop"] == {"arm": 20, "baseline": 0}
    assert counted["classes"]["faq"] == {"n": 20, "arm": 10, "baseline": 0}
    assert everything.document["controls"]["placebo"]["degeneration"]["rise"] == 0
    assert candidate(everything, "infra_errors")["degeneration"]["n"] == 32
    assert candidate(everything, "empty_replies")["degeneration"]["signs"]["empty"]["arm"] == 40


def test_a_rise_that_the_placebo_shows_too_is_no_reason(tmp_path: Path) -> None:
    write_golden(tmp_path / "golden")
    run = gate(settings(tmp_path, treatments("stutters"), args={"faults": {"placebo": "stutters"}}))
    assert run.document["controls"]["placebo"]["degeneration"]["rise"] == 20
    assert run.document["decision"] == "PROMOTE"


def test_a_rise_holds_under_zero_flags_too(folder: Path) -> None:
    run = gate(settings(folder, treatments("stutters"), policy=policy(Rule.ZERO_FLAGS, allow_underpowered=True)))
    assert run.document["decision"] == "HOLD"
    assert "degenerate replies: 20 of 40" in run.document["reasons"][0]


# 6. Nothing is lost, and a resumed run decides the same.


def kill_after(folder: Path, arm: str, blocks: int) -> Path:
    """Start a slow gate as a program and shoot it when ``arm`` has so many finished blocks; return its run folder."""
    program = [sys.executable, "-m", "tests.fakes.gate", str(folder), SLOW, "good"]
    process = subprocess.Popen(program, stderr=subprocess.DEVNULL)

    def finished() -> int:
        journals = list((folder / "runs").glob(f"*/arms/{arm}/replays.jsonl"))
        return sum(journal.read_bytes().count(b'\n{"commit"') for journal in journals)

    deadline = time.monotonic() + 60
    while finished() < blocks and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert process.poll() is None, "the gate ended before it could be killed"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    (run,) = (folder / "runs").iterdir()
    return run


def tear(path: Path) -> None:
    """Half a line more, as a write that was cut off leaves it."""
    with path.open("ab") as file:
        file.write(b'{"turn_id":"math_chain-09/0","measure":"fo')


SLOW = "0.05"


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> GateRun:
    whole = tmp_path_factory.mktemp("whole")
    write_golden(whole / "golden")
    return gate(settings(whole, treatments("good"), args={"slow": SLOW}))


@pytest.mark.parametrize("arm", ["baseline", "good"])
def test_a_killed_gate_decides_the_same_when_it_is_run_again(tmp_path: Path, unbroken: GateRun, arm: str) -> None:
    write_golden(tmp_path / "golden")
    dead = kill_after(tmp_path, arm, 2)
    assert not (dead / "decision.json").exists()
    tear(dead / "arms" / arm / "replays.jsonl")
    assert len(RunFolder(dead).arm(arm).replays()) >= 2 * 16
    resumed = gate(settings(tmp_path, treatments("good"), args={"slow": SLOW}))
    assert document(resumed) == document(unbroken)
    assert json.loads((resumed.folder.path / "arms" / arm / "arm.json").read_text())["blocks_reused"] >= 2
    assert document(resumed)["decision"] == "PROMOTE"


def test_the_second_rounding_of_a_resumed_arm_is_that_of_the_whole_arm(
    folder: Path, tmp_path: Path, everything: GateRun
) -> None:
    """Half of the arm's blocks are there already, as from a killed run."""
    (tmp_path / "golden").symlink_to(folder / "golden")
    run_id = everything.folder.run_id
    shutil.copytree(everything.folder.path, tmp_path / "runs" / run_id)
    (tmp_path / "runs" / run_id / "decision.json").unlink()
    journal = RunFolder(tmp_path / "runs" / run_id).arm("reference").journal
    lines = journal.path.read_text().splitlines(keepends=True)
    commits = [i for i, line in enumerate(lines) if line.startswith('{"commit"')]
    journal.path.write_text("".join(lines[: commits[1] + 1]))
    resumed = gate(settings(tmp_path, reference("reference")))
    assert resumed.folder.arm("reference").replays() == everything.folder.arm("reference").replays()
    first, again = everything.folder.arm("reference").facts(), resumed.folder.arm("reference").facts()
    assert first is not None
    assert again is not None
    assert again.second_rounding == first.second_rounding


def test_baseline_controls_and_candidates_are_used_again(folder: Path, everything: GateRun) -> None:
    run = gate(settings(folder, {**treatments("good"), **reference("reference")}))
    arms = run.folder.path / "arms"
    for name in ("baseline", "repeat", "placebo", "good", "reference"):
        assert json.loads((arms / name / "arm.json").read_text())["blocks_reused"] == 5
        assert run.folder.arm(name).replays() == everything.folder.arm(name).replays()
    assert candidate(run, "good") == candidate(everything, "good")


def test_other_turns_are_never_taken_for_these(folder: Path, everything: GateRun) -> None:
    run = gate(settings(folder, treatments("good"), sampling=Sampling(seed=5)))
    for name in ("baseline", "repeat", "placebo", "good"):
        assert json.loads((run.folder.path / "arms" / name / "arm.json").read_text())["blocks_reused"] == 0


# 7. Controls first.


def test_a_gate_that_holds_the_placebo_proves_nothing(tmp_path: Path) -> None:
    write_golden(tmp_path / "golden")
    run = gate(settings(tmp_path, treatments("good"), args={"faults": {"placebo": "drops_math_chain"}}))
    assert run.document["decision"] == "INVALID"
    assert run.document["controls"]["placebo"]["decision"] == "HOLD"
    assert "control placebo: HOLD: " in run.document["reasons"][0]


def test_an_engine_that_remembers_earlier_blocks_is_caught_by_the_repeat(tmp_path: Path) -> None:
    """State carried from block to block: the repeat, which runs them in another order, tells."""
    write_golden(tmp_path / "golden")
    run = gate(settings(tmp_path, treatments("good"), args={"faults": {"baseline": "keeps_state"}}))
    assert run.document["controls"]["repeat"]["decision"] != "PROMOTE"
    assert run.document["decision"] == "INVALID"


def test_the_repeat_ran_in_another_order_and_gave_the_same(everything: GateRun) -> None:
    order = [block.index for block in everything.folder.arm("repeat").journal.blocks()]
    assert sorted(order) == list(range(5))
    assert order != sorted(order)
    assert everything.folder.arm("repeat").replays() == everything.folder.arm("baseline").replays()
    scores = everything.document["controls"]["repeat"]["classes"]["math_chain"]["scores"]
    assert scores["gl_reply"]["mean_drop"] == 0.0


def test_the_placebo_moved_something(everything: GateRun) -> None:
    scores = everything.document["controls"]["placebo"]["classes"]["math_chain"]["scores"]
    assert scores["gl_reply"]["mean_drop"] != 0.0
    assert everything.document["controls"]["placebo"]["decision"] == "PROMOTE"
    beside = candidate(everything, "good")["classes"]["math_chain"]["scores"]["gl_reply"]
    assert beside["placebo"]["mean_drop"] == scores["gl_reply"]["mean_drop"]
    assert beside["repeat"]["mean_drop"] == 0.0


# Rules.


def test_zero_flags_holds_what_default_lets_through(folder: Path, copied: RunFolder, everything: GateRun) -> None:
    """Three late turns of ten conversations drop 3 to 5 points: no class mean moves beyond 2, three flags stand."""
    assert decision(everything, "drops_three_turns") == "PROMOTE"
    run = regate(copied, settings(folder, FEW, policy=policy(Rule.ZERO_FLAGS)))
    held = candidate(run, "drops_three_turns")
    assert held["decision"] == "HOLD"
    flagged = [flag for flag in held["flagged_turns"] if flag["score"] == "gl_reply"]
    assert sorted(flag["turn_id"] for flag in flagged) == ["math_chain-03/1", "math_chain-05/1", "math_chain-07/1"]
    assert all(2.5 <= flag["drop"] <= 5.5 and flag["turn_index"] == 1 for flag in flagged)
    assert [flag["drop"] for flag in held["flagged_turns"]] == sorted(
        (flag["drop"] for flag in held["flagged_turns"]), reverse=True
    )


def test_zero_flags_looks_at_the_hardest_class_only(folder: Path, copied: RunFolder) -> None:
    run = regate(copied, settings(folder, FEW, policy=policy(Rule.ZERO_FLAGS)))
    assert decision(run, "drops_faq") == "PROMOTE"
    assert decision(run, "drops_math_chain") == "HOLD"
    assert decision(run, "good") == "PROMOTE"
    assert decision(run, "infra_errors") == "INCONCLUSIVE"


def test_too_few_turns_are_inconclusive(folder: Path, copied: RunFolder) -> None:
    run = regate(copied, settings(folder, FEW, policy=policy(min_turns=41, require=("good",))))
    assert run.document["decision"] == "INCONCLUSIVE"
    assert "at least 41 turns compared, got 40" in run.document["reasons"][0]


# 8. The decision can be recomputed.


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a run folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_decision_is_recomputed_byte_for_byte(
    folder: Path, copied: RunFolder, few: GateRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All artifacts, with a folder of its own for what the run beside it counted."""
    monkeypatch.setattr(report, "write", WRITE)
    regate(copied, settings(folder, FEW))
    before = contents(copied.path)
    assert {name: before[name] for name in contents(few.folder.path)} == contents(few.folder.path)
    written = {*before} - {*contents(few.folder.path)}
    assert written == {"report.md", "report.html", "summary.md", "junit.xml", "model-card.md"}
    monkeypatch.setattr("kvquant_eval.decision.datetime", None)  # the same decision has its time already
    regate(copied, settings(folder, FEW))
    assert contents(copied.path) == before
    assert recompute(copied, settings(folder, FEW)).document == without_head(few.document)


def test_what_is_decided_otherwise_is_decided_now(folder: Path, copied: RunFolder, few: GateRun) -> None:
    """A decision that was changed by hand, or by damage, is no decision to keep the time of."""
    said = json.loads((copied.path / "decision.json").read_text())
    (copied.path / "decision.json").write_text(json.dumps({**said, "decision": "PROMOTE", "attempts": 7}))
    again = regate(copied, settings(folder, FEW))
    assert again.document["decision"] == few.document["decision"] != "PROMOTE"
    assert again.document["attempts"] == 1


def test_fidelity_is_written_for_every_arm_and_turn(few: GateRun) -> None:
    frame = pd.read_parquet(few.folder.path / "fidelity.parquet")
    assert set(frame["arm"]) == set(few.document["fidelity"]) == {"repeat", "placebo", *FEW}
    assert set(frame["baseline_arm"]) == {"baseline"}
    assert frame.groupby("arm")["turn_id"].nunique().to_dict() == dict.fromkeys(few.document["fidelity"], 40)
    repeat, hit = (frame[frame["arm"] == name] for name in ("repeat", "drops_faq"))
    assert (repeat["kl"] == 0.0).all()
    assert repeat["first_divergence"].isna().all()
    assert (hit[hit["workload"] == "faq"]["golden_drop"] > 1).all()
    left_out = frame[frame["missing"] != ""]
    assert set(left_out["arm"]) == {"infra_errors"}
    assert left_out["missing"].str.startswith("arm: infra_error").all()
    assert left_out["kl"].isna().all()
    assert (left_out["n_tokens"] == 0).all()
    counted = few.document["fidelity"]["infra_errors"]["all"]
    assert (counted["n_turns"], counted["n_left_out"]) == (40 - len(left_out), len(left_out))
    means = frame.groupby("arm")[["kl", "n_tokens"]].apply(lambda t: (t.kl * t.n_tokens).sum() / t.n_tokens.sum())
    assert means["placebo"] == pytest.approx(few.document["fidelity"]["placebo"]["all"]["kl"])


def test_another_policy_afterwards_is_marked(folder: Path, copied: RunFolder, few: GateRun) -> None:
    """It stands beside the run's own decision, of which no byte is touched."""
    before = contents(copied.path)
    other = settings(folder, FEW, policy=policy(min_turns=20))
    run = regate(copied, other)
    assert (few.document["post_hoc"], run.document["post_hoc"]) == (False, True)
    assert run.document["run_id"] == copied.run_id
    assert run.document["power"] is None
    sha256 = run.document["policy"]["sha256"]
    assert run.folder.path == copied.path / "post_hoc" / f"default-{sha256[:8]}"
    after = contents(copied.path)
    assert {name: after[name] for name in before} == before
    written = {"attribution.json", "config.yaml", "decision.json"}
    written |= {"turns.parquet", "deltas.parquet", "fidelity.parquet"}
    assert {path.name for path in run.folder.path.iterdir()} == written
    assert not list(copied.strangers(record for record in run.judgement.arms))
    regate(copied, other)
    assert contents(copied.path) == after
    assert regate(copied, settings(folder, FEW)).document["post_hoc"] is False


def test_deciding_again_counts_attempts(folder: Path, few: GateRun) -> None:
    made = settings(folder, treatments("good", "drops_faq"))
    assert [gate(made).document["attempts"] for _ in range(2)] == [1, 2]


def test_a_killed_run_decides_nothing_in_its_favour(folder: Path, copied: RunFolder) -> None:
    """A candidate of which only two blocks were finished."""
    journal = copied.arm("good").journal
    lines = journal.path.read_text().splitlines(keepends=True)
    commits = [i for i, line in enumerate(lines) if line.startswith('{"commit"')]
    journal.path.write_text("".join(lines[: commits[1] + 1]))
    run = regate(copied, settings(folder, FEW, policy=policy(require=("good",))))
    assert run.document["decision"] in ("INCONCLUSIVE", "INVALID")


def test_other_golden_turns_decide_no_stored_run(tmp_path: Path, folder: Path, copied: RunFolder) -> None:
    other = write_golden(tmp_path / "other")
    lines = (other / "faq" / "turns.jsonl").read_text().replace("euros", "crowns")
    (other / "faq" / "turns.jsonl").write_text(lines)
    (other / MANIFEST).write_text(json.dumps(pin(other, "fake", "v2", {})))
    with pytest.raises(DataError, match="restore that version"):
        regate(copied, settings(folder, FEW, golden_path=str(other)))


# 11. Model id and KV dtype stand together.


def texts(path: Path) -> dict[str, str]:
    """Every text file of a run that names the model."""
    found = {}
    for file in sorted(path.rglob("*")):
        if file.is_file() and file.suffix not in (".parquet", ".log"):
            text = file.read_text(encoding="utf-8", errors="replace")
            if "org/fake-model" in text:
                found[str(file.relative_to(path))] = text
    return found


def test_requested_and_effective_dtype_stand_beside_the_model_in_every_file(everything: GateRun) -> None:
    found = texts(everything.folder.path)
    assert {"config.yaml", "decision.json", "arms/good/arm.json", "arms/good/engine.json"} <= set(found)
    for name, text in found.items():
        arm = name.split("/")[1] if name.startswith("arms/") else ""
        assert "requested" in text.lower(), name
        assert "effective" in text.lower(), name
        assert "realisation" in text.lower() or "native" in text.lower(), name
        if arm == "ignores_dtype":
            assert json.loads(text)["kv_requested"] == "fp8_e4m3"
            assert json.loads(text)["kv_effective"] == "bfloat16"


def test_every_arm_is_named_with_its_dtype(everything: GateRun) -> None:
    kv = everything.document["model"]["kv"]
    assert kv["good"] == {"requested": "fp8_e4m3", "effective": "fp8_e4m3", "realisation": "native"}
    assert kv["reference"] == {"requested": "int8", "effective": "int8 in bfloat16", "realisation": "reference"}
    assert kv["placebo"] == {"requested": "placebo", "effective": "placebo in bfloat16", "realisation": "reference"}
    assert set(kv) == set(everything.document["arms"])


@pytest.mark.parametrize("name", ["turns.parquet", "deltas.parquet", "fidelity.parquet"])
def test_every_row_of_a_table_has_model_and_dtype(everything: GateRun, name: str) -> None:
    frame = pd.read_parquet(everything.folder.path / name)
    assert set(frame["model"]) == {"org/fake-model"}
    columns = ["kv_requested", "kv_effective", "kv_realisation"]
    assert frame[columns].notna().all().all()
    good = frame[frame["arm"] == "good"]
    assert len(good) > 0
    assert set(good["kv_effective"]) == {"fp8_e4m3"}


def test_the_journal_says_whose_replays_it_has(everything: GateRun) -> None:
    first = json.loads((everything.folder.path / "arms" / "good" / "replays.jsonl").read_text().splitlines()[0])
    assert first["model"] == "org/fake-model"
    assert (first["kv_requested"], first["kv_effective"], first["kv_realisation"]) == ("fp8_e4m3", "fp8_e4m3", "native")


def test_the_model_name_is_no_path(tmp_path: Path) -> None:
    write_golden(tmp_path / "golden")
    made = settings(tmp_path, treatments("good"))
    hostile = replace(made, model=replace(made.model, id="../../../evil/..;rm -rf"))
    run = gate(hostile)
    assert run.folder.path.parent == tmp_path / "runs"
    assert {path.name for path in tmp_path.iterdir()} <= {"golden", "runs", "cache"}
