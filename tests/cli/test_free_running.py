"""A gate whose conversations also run with the arms' own replies as their history, on the fake engine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvquant_eval.core.modes import every_score
from kvquant_eval.core.policy import ModeRoles, ScoreRole
from kvquant_eval.core.records import Decision, Measure, OnDivergence, Outcome, ReplayMode
from kvquant_eval.core.settings import ReplaySettings, Settings
from kvquant_eval.io.golden import MANIFEST, pin
from kvquant_eval.pipeline import GateRun, gate, regate
from kvquant_eval.replay import Stage
from tests.fakes.gate import settings, treatments, write_golden

DEPTH = 4


def conversation(number: int) -> list[dict[str, Any]]:
    """A running number, in turns that go on from each other."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": f"You keep the number of team {number}."}]
    turns, left = [], 100 + 7 * number
    for turn in range(DEPTH):
        operand = 11 + turn
        messages = [*messages, {"role": "user", "content": f"Step {turn}: start with {left}, add {operand}."}]
        reference = {"role": "assistant", "content": f"Step {turn}: {left} + {operand} = {left + operand}"}
        turns.append(
            {
                "turn_id": f"math_chain-{number:02}/{turn}",
                "workload": "math_chain",
                "conversation_id": f"math_chain-{number:02}",
                "turn_index": turn,
                "messages": messages,
                "reference": reference,
                "decisive": [{"text": f"= {left + operand}"}],
                "expected": {
                    "steps": [{"left": left, "operator": "+", "operand": operand, "result": left + operand}],
                    "final": left + operand,
                },
                "max_tokens": 60,
            }
        )
        messages, left = [*messages, reference], left + operand
    return turns


def made(folder: Path, *candidates: str, roles: ModeRoles | None = None, **changes: Any) -> Settings:
    """A gate in both modes; turns of the class ``faq`` do not go on from each other, so they are in one mode only."""
    write_golden(folder / "golden")
    lines = [json.dumps(turn) for number in range(12) for turn in conversation(number)]
    (folder / "golden" / "math_chain" / "turns.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "golden" / MANIFEST).write_text(json.dumps(pin(folder / "golden", "fake", "v1", {})))
    one = settings(folder, treatments(*candidates), **changes)
    asked = replace(one.policy, modes=roles or ModeRoles(), allow_underpowered=True)
    both, scorers = every_score(asked, one.scorers, ReplayMode.FREE_RUNNING)
    return replace(
        one,
        policy=both,
        scorers=scorers,
        replay=ReplaySettings(mode=ReplayMode.FREE_RUNNING, on_divergence=OnDivergence.STOP),
    )


def free_scores(run: GateRun, arm: str) -> dict[str, Any]:
    found = run.document["free_running"][arm]
    assert set(found) == {"math_chain"}
    scores: dict[str, Any] = found["math_chain"]["math_steps"]
    return scores


def test_both_modes_stand_side_by_side(tmp_path: Path) -> None:
    run = gate(made(tmp_path, "fp8"))
    assert run.document["decision"] == Decision.PROMOTE
    assert run.document["replay"] == {"mode": "free_running", "on_divergence": "stop"}
    scores = run.document["candidates"][0]["classes"]["math_chain"]["scores"]
    assert scores["math_steps.free_running"]["role"] == "bound"
    assert scores["math_steps.free_running"]["n_turns"] == 12 * DEPTH
    assert "match.free_running" not in run.document["candidates"][0]["classes"]["faq"]["scores"]
    curve = free_scores(run, "fp8")["curve"]
    assert [(point["depth"], point["n"]) for point in curve] == [(depth, 12) for depth in range(DEPTH)]
    page = (run.folder.path / "report.html").read_text()
    assert "Free running: org/fake-model@r1 KV fp8_e4m3" in page
    assert "first failing step" in (run.folder.path / "report.md").read_text()


def test_a_candidate_that_only_fails_behind_its_own_replies_is_held(tmp_path: Path) -> None:
    run = gate(made(tmp_path, "forgets"))
    assert run.document["decision"] == Decision.HOLD
    (reason,) = run.document["reasons"]
    assert reason.startswith("forgets: math_chain: math_steps.free_running: mean drop ")
    found = free_scores(run, "forgets")
    assert {point["free_running"] for point in found["curve"]} == {0.0}
    assert min(point["golden_prefix"] for point in found["curve"]) > 80
    assert (found["first_failing"], found["recovered"]) == ({"0": 12}, 0)
    assert free_scores(run, "baseline")["never_failing"] > 6


def test_turns_behind_a_divergence_stay_paired_and_earn_nothing(tmp_path: Path) -> None:
    run = gate(made(tmp_path, "wanders", args={"max_model_len": 400}))
    scores = [s for s in run.judgement.scores["wanders"] if s.scorer == "math_steps.free_running"]
    ended = [s for s in scores if s.outcome is Outcome.DIVERGED]
    assert len(scores) == 12 * DEPTH
    assert len(ended) == 24
    assert {(s.points, s.explanation[:33]) for s in ended} == {(0.0, "the conversation ended: it needs ")}
    assert run.document["candidates"][0]["classes"]["math_chain"]["n_missing"] == 0


def test_the_policy_can_let_free_running_only_report(tmp_path: Path) -> None:
    run = gate(made(tmp_path, "forgets", roles=ModeRoles(free_running=ScoreRole.REPORT)))
    assert run.document["decision"] == Decision.PROMOTE


def test_a_missing_free_running_reply_is_no_promotion_where_it_gates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay = Stage.replay

    def without_free(self: Stage) -> Any:
        return [
            replace(r, replays=tuple(x for x in r.replays if x.measure is not Measure.FREE_RUNNING))
            for r in replay(self)
        ]

    monkeypatch.setattr(Stage, "replay", without_free)
    run = gate(made(tmp_path, "fp8", roles=ModeRoles(free_running=ScoreRole.GATE)))
    assert run.document["decision"] != Decision.PROMOTE
    assert run.document["candidates"][0]["classes"]["math_chain"]["n_missing"] == 12 * DEPTH


def test_it_is_decided_again_byte_for_byte(tmp_path: Path) -> None:
    asked = made(tmp_path, "forgets")
    run = gate(asked)
    before = json.loads((run.folder.path / "decision.json").read_text())
    again = json.loads((regate(run.folder, asked).folder.path / "decision.json").read_text())
    assert {**before, "created_at": ""} == {**again, "created_at": ""}


def test_golden_prefix_blocks_are_the_same_with_and_without(tmp_path: Path) -> None:
    asked = made(tmp_path, "fp8")
    one = gate(replace(asked, replay=ReplaySettings(), runs_dir=str(tmp_path / "one")))
    both = gate(asked)
    for arm in ("baseline", "fp8"):
        replays = [r for r in both.folder.arm(arm).replays() if r.measure is not Measure.FREE_RUNNING]
        assert replays == list(one.folder.arm(arm).replays())
