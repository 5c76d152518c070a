"""What `regate` and `rescore` take behind the folder, and what they refuse in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvquant_eval.cli.config import build
from kvquant_eval.cli.restate import restated
from kvquant_eval.core.codec import DataError
from kvquant_eval.core.document import policy_sha256
from kvquant_eval.core.policy import Rule, Tier

POLICY, BOTH = "a key of the policy", "a key of the policy or of a score"


@pytest.fixture
def stored(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a run under a policy that was changed by hand."""
    gate = {**config["gate"], "min_turns": 30, "hardest": "faq", "critical_turns": ["faq-a/t00"], "max_minutes": 9.0}
    return {**config, "gate": gate, "pinned": {"plan_sha256": "p"}, "attested": {"baseline": "${oc.env:HOME}"}}


def changed(before: Any, after: Any, where: str = "") -> dict[str, Any]:
    """The leaves of ``after`` that are others than in ``before``, by their keys."""
    if isinstance(before, dict) and isinstance(after, dict):
        assert set(after) >= set(before), where
        parts = [changed(before.get(key), after[key], f"{where}.{key}" if where else key) for key in after]
        return {key: value for part in parts for key, value in part.items()}
    return {} if before == after else {where: after}


def test_a_policy_by_name_brings_its_limits_and_leaves_what_is_about_the_run(
    stored: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    made = restated(stored, ["gate=strict"], None, scoring=False)
    assert changed(stored, made) == {"gate.name": "strict", "gate.rule": "strict", "gate.min_turns": 200}
    said = "gate.hardest stays 'faq', as the run has it, where gate=strict has 'math_chain'; set it to change that"
    assert said in caplog.messages
    assert len(caplog.messages) == 2, "and one for critical_turns"
    policy = build(made).policy
    assert (policy.rule, policy.hardest) == (Rule.STRICT, "faq")


def test_what_is_named_beside_a_policy_counts(stored: dict[str, Any]) -> None:
    made = restated(stored, ["gate.hardest=math_chain", "gate=zero_flags", "gate.min_turns=40"], None, scoring=False)
    found = {"gate.name": "zero_flags", "gate.rule": "zero_flags", "gate.min_turns": 40, "gate.hardest": "math_chain"}
    assert changed(stored, made) == found


def test_roles_limits_and_tiers_of_the_scores_are_policy(stored: dict[str, Any]) -> None:
    keys = ("tier=supporting", "scores.gl_reply.flag_over=3", "scores.match.role=report", "scores.match.margin=7.5")
    made = restated(stored, [f"workloads.coding.{keys[0]}", *(f"workloads.faq.{k}" for k in keys[1:])], None, False)
    policy = build(made).policy
    assert policy.tier("coding") is Tier.SUPPORTING
    assert (policy.scores["faq"]["match"].role, policy.scores["faq"]["match"].margin) == ("report", 7.5)
    assert policy.scores["faq"]["gl_reply"].flag_over == 3
    assert policy_sha256(policy) != policy_sha256(build(stored).policy)


def test_the_policy_of_the_run_said_again_is_the_same(stored: dict[str, Any]) -> None:
    made = restated(stored, ["gate=default", "gate.min_turns=30"], None, scoring=False)
    assert policy_sha256(build(made).policy) == policy_sha256(build(stored).policy)
    assert made == stored


def test_texts_of_a_run_folder_stand_for_nothing_else(stored: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """OmegaConf would put a variable of the environment in their place."""
    monkeypatch.setenv("SECRET", "sk-1")
    texts = ["${oc.env:SECRET}", r"\${oc.env:SECRET}", r"a\\${oc.env:SECRET}\\", "$x", "\\", "???x"]
    gate = {**stored["gate"], "critical_turns": texts}
    made = restated({**stored, "gate": gate}, ["gate.min_turns=3"], None, scoring=False)
    assert made["gate"]["critical_turns"] == texts
    assert made["attested"] == stored["attested"]


def test_a_policy_of_ones_own(stored: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "gate").mkdir()
    (tmp_path / "gate" / "mine.yaml").write_text("name: mine\nrule: default\nhold_level: 0.05\n")
    made = restated(stored, ["gate=mine"], str(tmp_path), scoring=False)
    assert changed(stored, made) == {"gate.name": "mine", "gate.hold_level": 0.05}


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("gate=strct", "gate: one of the files in conf/gate, got 'strct'; did you mean 'strict'?"),
        ("gate.min_turn=3", "gate.min_turn: a known key, got 'min_turn'; did you mean 'min_turns'?"),
        ("gaet.min_turns=3", "gaet.min_turns: a known key, got 'gaet'; did you mean 'gate'?"),
        ("gate={name: x}", 'gate: the name of one of the files in conf/gate, got {"name": "x"}; or set gate.KEY=...'),
        ("gate.placebo=batch_limit", f"gate.placebo: {POLICY}, got one of how a run is made; leave it out, or gate wi"),
        ("gate.confirm_epochs=9", f"gate.confirm_epochs: {POLICY}, got one of how a run is made; leave it out, or gat"),
        ("~gate.min_turns", "gate.min_turns: a value, got ~, which leaves it out; set it"),
        ("model=hub", f"model: {POLICY}, got one that needs new replays; gate with it"),
        ("kv=[fp8_e5m2]", f"kv: {POLICY}, got one that needs new replays; gate with it"),
        ("+engine.args.seed=1", f"engine.args.seed: {POLICY}, got one that needs new replays; gate with it"),
        ("sampling.temperature=1", f"sampling.temperature: {POLICY}, got one that needs new replays; gate with it"),
        ("golden.path=/x", f"golden.path: {POLICY}, got one that needs new replays; gate with it"),
        ("block_requests=3", f"block_requests: {POLICY}, got one that needs new replays; gate with it"),
        ("tracking=none", f"tracking: {POLICY}, got one that decides nothing; leave it out"),
        ("scorer.judge.url=http://x", f"scorer.judge.url: {POLICY}, got one of what scores; use rescore"),
        ("workload=[faq]", f"workload: {POLICY}, got one of what scores; use rescore"),
        ("workloads.fax.tier=advisory", "workloads.fax.tier: a known key, got 'fax'; did you mean 'faq'?"),
        ("workloads.faq.scores.mach.margin=3", "workloads.faq.scores.mach.margin: a score of the run, got 'mach'; di"),
        ("workloads.faq.scores.match.scorer.x=3", "workloads.faq.scores.match.scorer.x: a key of the policy, got one "),
        ("workloads.faq.x=3", f"workloads.faq.x: {POLICY}, got one that needs new replays; gate with it"),
        ("nonsense", "'nonsense': key=value, got no '='; write nonsense=VALUE"),
        ("gate.min_turns=many", "gate.min_turns: a whole number, got 'many'; write it in digits"),
        ("gate.hardest=fax", "gate.hardest: one of the workload classes (coding, faq, long_context, math_chain, tool"),
    ],
)
def test_what_a_stored_run_cannot_answer_is_refused(override: str, line: str, stored: dict[str, Any]) -> None:
    with pytest.raises(DataError) as refused:
        build(restated(stored, [override], None, scoring=False))
    assert str(refused.value).startswith(line)


def test_scores_of_the_run_can_be_others(stored: dict[str, Any]) -> None:
    """A score more, another one less, and arguments of a third."""
    overrides = [
        "+scorer@workloads.faq.scores.judge.scorer=judge",
        "+workloads.faq.scores.judge={role: report, margin: 5.0}",
        "scorer.judge.model=judge-1",
        "~workloads.faq.scores.token_f1",
        "workloads.math_chain.scores.gl_reply.margin=3",
    ]
    made = restated(stored, overrides, None, scoring=True)
    assert set(made["workloads"]["faq"]["scores"]) == {"gl_reply", "gl_span", "match", "judge"}
    assert made["workloads"]["faq"]["scores"]["judge"]["scorer"]["model"] == "judge-1"
    assert build(made).scorers["faq"]["judge"].model == "judge-1"  # type: ignore[attr-defined]
    with pytest.raises(DataError, match=r"^workloads\.faq\.scores: keys and values, got 3"):
        restated(made, ["scorer.judge.model=judge-2", "workloads.faq.scores=3"], None, scoring=True)
    again = restated(made, ["scorer.judge.model=judge-2"], None, scoring=True)
    assert build(again).scorers["faq"]["judge"].model == "judge-2"  # type: ignore[attr-defined]


def test_the_files_of_the_classes_as_they_are_now(stored: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "workload").mkdir()
    (tmp_path / "workload" / "faq.yaml").write_text(
        "# @package workloads.faq\ndefaults:\n  - /scorer@scores.gl_reply.scorer: gl_reply\n  - _self_\n"
        "scores:\n  gl_reply: {role: gate, margin: 9.0}\n"
    )
    everything = "workload=[faq,coding,tool_calling,long_context,math_chain]"
    made = restated(stored, [everything], str(tmp_path), scoring=True)
    assert list(made["workloads"]["faq"]["scores"]) == ["gl_reply"]
    assert {**made["workloads"], "faq": None} == {**stored["workloads"], "faq": None}
    rule = r"^workload: the run's own classes \(coding, faq, .*\), got \[\"faq\"\]; others need new replays: gate with"
    with pytest.raises(DataError, match=rule):
        restated(stored, ["workload=[faq]"], None, scoring=True)


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("sampling.seed=1", f"sampling.seed: {BOTH}, got one that needs new replays; gate with it"),
        ("scorer.cod.seconds=1", f"scorer.cod.seconds: {BOTH}, got one of what scores; correct it"),
        ("workloads.faq.scores.new.margin=1", "workloads.faq.scores.new.role: a value, got none; set it"),
        ("workloads.faq.scores.match.scorer.x=1", "workloads.faq.scores.match.scorer: arguments that Match takes, g"),
        ("workloads.faq.scores=3", "workloads.faq.scores: keys and values, got 3; set workloads.faq.scores.KEY=..."),
        ("~workloads.faq", "workloads.faq: a value, got ~, which leaves it out; set it"),
        ("scorer@workloads.faq.scores.j.scorer=juge", "scorer: one of the files in conf/scorer, got 'juge'; did you"),
    ],
)
def test_nor_what_needs_new_replays(override: str, line: str, stored: dict[str, Any]) -> None:
    with pytest.raises(DataError) as refused:
        build(restated(stored, [override], None, scoring=True))
    assert str(refused.value).startswith(line)
