"""``decision.json`` as other tools read it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvquant_eval.core import document as documents
from kvquant_eval.core.arms import ArmRecord, plan_arms
from kvquant_eval.core.diagnosis import Diagnosis, diagnose
from kvquant_eval.core.document import document, policy_sha256
from kvquant_eval.core.engine import EngineSpec
from kvquant_eval.core.judge import judge
from kvquant_eval.core.plan import make_blocks
from kvquant_eval.core.policy import Rule
from kvquant_eval.core.records import GoldenSet, Prepared
from kvquant_eval.core.settings import Settings
from kvquant_eval.io.golden import load
from kvquant_eval.io.runfolder import count
from tests.fakes.engine import FakeEngine, prepare
from tests.fakes.gate import policy, reference, settings, treatments, write_golden
from tests.fakes.records import beside

KEYS = {
    "decision", "exit_code", "reasons", "post_hoc", "model", "engine", "golden", "policy", "baseline", "controls",
    "candidates",
}  # fmt: skip
SCORE_KEYS = {
    "role", "baseline_mean", "candidate_mean", "mean_drop", "ci_lower", "ci_upper", "recovery", "drops_over",
    "gains_over", "flagged_raw", "flagged_confirmed", "placebo", "repeat",
}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder = tmp_path_factory.mktemp("document")
    write_golden(folder / "golden")
    return settings(folder, {**treatments("good", "drops_math_chain"), **reference("ref")})


@pytest.fixture(scope="module")
def golden(made: Settings) -> GoldenSet:
    return load(Path(made.golden_path), made.policy.scores)


@pytest.fixture(scope="module")
def prepared(made: Settings, golden: GoldenSet) -> Prepared:
    return prepare(made.model, golden.turns, made.engine.args, Path(), [])


@pytest.fixture(scope="module")
def records(made: Settings, prepared: Prepared) -> list[ArmRecord]:
    blocks = make_blocks(prepared.turns, made.sampling, made.block_requests)
    found = []
    for arm in plan_arms(made):
        engine = FakeEngine(EngineSpec(model="m", revision=None, treatment=arm.treatment, args=arm.args))
        results = [engine.run(block) for block in blocks]
        replays = tuple(replay for result in results for replay in result.replays)
        inexact, seen = (sum(column) for column in zip(*(r.second_rounding for r in results), strict=True))
        facts = replace(engine.facts(), second_rounding=(inexact, seen))
        found.append(ArmRecord(arm=arm, facts=facts, replays=replays, counts=count(results)))
    return found


@pytest.fixture
def written(made: Settings, prepared: Prepared, golden: GoldenSet, records: list[ArmRecord]) -> Any:
    def run(settings: Settings = made, post_hoc: bool = False, **changed: Any) -> dict[str, Any]:
        arms = [replace(r, **changed.get(r.arm.name, {})) for r in records]
        judgement = judge(settings, prepared, golden.turns, arms)
        return document(
            judgement, settings, prepared, golden, post_hoc, diagnose(judgement, beside(arms, prepared.turns))
        )

    return run


def test_the_keys_that_others_read(written: Any) -> None:
    found = written()
    assert set(found) >= KEYS
    assert set(found["model"]) >= {"id", "revision", "weights_sha256", "dtype", "kv"}
    assert set(found["engine"]) >= {"name", "version", "device", "attention_backend", "args"}
    assert set(found["golden"]) >= {"name", "version", "sha256", "n_turns"}
    assert set(found["controls"]) == {"repeat", "placebo"}
    one = found["candidates"][0]
    assert set(one) >= {"name", "decision", "reasons", "self_test", "kv", "classes", "flagged_turns"}
    assert set(one["kv"]) >= {
        "requested", "effective", "realisation", "scales", "layers_quantized", "layers_skipped", "bytes_per_token",
        "capacity_tokens",
    }  # fmt: skip
    assert set(one["classes"]["faq"]) >= {"verdict", "reasons", "n_turns", "n_headroom", "scores"}
    assert set(one["classes"]["faq"]["scores"]["gl_reply"]) >= SCORE_KEYS
    flag = found["candidates"][1]["flagged_turns"][0]
    assert set(flag) >= {"turn_id", "class", "score", "turn_index", "drop", "baseline", "candidate", "confirmed"}
    assert documents.SCHEMA_VERSION >= 1


def test_it_is_strict_json_and_the_same_each_time(written: Any) -> None:
    text = json.dumps(written(), allow_nan=False)
    assert json.loads(text) == written()


def test_fidelity_stands_beside_the_decision_by_arm_and_class(written: Any) -> None:
    found = written()["fidelity"]
    assert list(found) == ["repeat", "placebo", "good", "drops_math_chain", "ref"]
    assert (found["repeat"]["all"]["kl"], found["repeat"]["all"]["never_diverged"]) == (0.0, 1.0)
    assert {arm["baseline"] for arm in found.values()} == {"baseline"}
    hit = found["drops_math_chain"]["classes"]
    assert set(hit) == {"math_chain", "faq"}
    assert hit["math_chain"]["kl"] > 10 * hit["faq"]["kl"] > 0
    assert (hit["math_chain"]["n_turns"], hit["math_chain"]["n_left_out"]) == (20, 0)
    assert sum(at["n_tokens"] for at in hit["faq"]["by_position"]) == hit["faq"]["n_tokens"]


def test_no_decision_reads_fidelity(
    made: Settings, prepared: Prepared, golden: GoldenSet, records: list[ArmRecord]
) -> None:
    """A panel of another arm, as far off as can be, changes nothing but itself."""
    judgement = judge(made, prepared, golden.turns, records)
    panels = diagnose(judgement, beside(records, prepared.turns)), Diagnosis()
    one, other = (document(judgement, made, prepared, golden, False, panel) for panel in panels)
    assert one.pop("fidelity") != other.pop("fidelity") == {}
    assert one.pop("attribution") != other.pop("attribution") == {}
    assert one == other


def test_an_arm_without_replays_has_no_fidelity(written: Any) -> None:
    found = written(good={"replays": ()})["fidelity"]["good"]["all"]
    assert (found["n_turns"], found["n_left_out"], found["kl"], found["by_position"]) == (0, 40, None, [])


def test_decisions_and_exit_codes_agree(written: Any) -> None:
    found = written()
    assert (found["decision"], found["exit_code"]) == ("HOLD", 3)
    assert [one["decision"] for one in found["candidates"]] == ["PROMOTE", "HOLD", "PROMOTE"]
    assert found["candidates"][1]["classes"]["math_chain"]["verdict"] == "FAIL"
    assert found["candidates"][1]["classes"]["faq"]["verdict"] == "PASS"


def test_numbers_of_the_arms(written: Any) -> None:
    arm = written()["arms"]["good"]
    assert (arm["replays"], arm["seconds"], arm["preemptions"]) == (80, 2.5, 0)
    assert arm["prefix_cache_share"] == 0.5
    assert arm["decoded_tokens_per_s"] == arm["decoded_tokens"] / 2.5
    assert arm["outcomes"] == {"ok": 80}


def test_an_arm_that_did_nothing_has_no_rates(written: Any) -> None:
    arm = written(good={"replays": (), "counts": count([]), "error": "died\nin two lines"})["arms"]["good"]
    assert (arm["prefix_cache_share"], arm["decoded_tokens_per_s"], arm["error"]) == (0.0, 0.0, "died")


def test_scales_and_second_rounding(written: Any) -> None:
    first, _, ref = written()["candidates"]
    assert first["kv"]["scales"] == {"kind": "unit", "k": [1.0, 1.0], "v": [1.0, 1.0]}
    assert first["kv"]["second_rounding_share"] == 0.0
    assert ref["kv"]["second_rounding_share"] == 0.1


def test_scales_of_a_checkpoint_show_their_range(written: Any, records: list[ArmRecord]) -> None:
    attested = next(r.facts for r in records if r.arm.name == "good")
    assert attested is not None
    worker = tuple(replace(one, k_scale=0.1 * (one.index + 1), v_scale=None) for one in attested.layers[0])
    scales = written(good={"facts": replace(attested, layers=(worker,))})["candidates"][0]["kv"]["scales"]
    assert scales["kind"] == "checkpoint"
    assert scales["k"] == [pytest.approx(0.1), pytest.approx(0.4)]
    assert scales["v"] == []


def test_a_baseline_that_never_started(written: Any) -> None:
    found = written(baseline={"facts": None, "error": "no memory"})
    assert (found["decision"], found["model"]["dtype"], found["engine"]["attention_backend"]) == ("INVALID", None, "")
    assert found["model"]["kv"]["baseline"]["effective"] == "not read back"
    assert found["candidates"][0]["kv"]["effective"] == "fp8_e4m3"


def test_the_policys_hash_covers_every_limit() -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"rule": Rule.ZERO_FLAGS},
        {"min_turns": 31},
        {"min_headroom": 11},
        {"headroom_points": 21.0},
        {"hold_level": 0.02},
        {"anomalous_gain": 6.0},
        {"require": ("good",)},
        {"accept_differences": ("device",)},
        {"hardest": "faq"},
    ]
    hashes = [policy_sha256(replace(policy(), **change)) for change in changes]
    assert len(set(hashes)) == len(changes)
    assert policy_sha256(policy()) == policy_sha256(policy())


def test_post_hoc_is_said(written: Any) -> None:
    assert written()["post_hoc"] is False
    assert written(post_hoc=True)["post_hoc"] is True


def test_the_identity_is_the_question_not_the_answer(made: Settings, written: Any) -> None:
    same = written(good={"error": "died"})["identity_sha256"]
    assert same == written()["identity_sha256"]
    others = [
        replace(made, policy=policy(min_turns=31)),
        replace(made, model=replace(made.model, revision="r2")),
        replace(made, candidates={k: v for k, v in made.candidates.items() if k != "ref"}),
    ]
    marks = {written(other)["identity_sha256"] for other in others[:2]}
    assert len(marks | {same}) == 3


@pytest.mark.parametrize("trusted", [False, True])
def test_the_decision_says_whether_the_models_code_was_run(made: Settings, written: Any, trusted: bool) -> None:
    model = replace(made.model, trust_remote_code=trusted)
    assert written(replace(made, model=model))["model"]["trust_remote_code"] is trusted


def test_candidates_that_may_be_promoted_are_ranked_by_their_bytes(written: Any) -> None:
    """A reference format by what it takes itself, not by the BF16 that it is kept in."""
    found = written()
    sizes = {one["name"]: one["kv"] for one in found["candidates"]}
    ranked = [(each["name"], each["bytes_per_token"]) for each in found["ranking"]]
    assert sorted(ranked, key=lambda each: each[1]) == ranked
    assert dict(ranked) == {
        "good": sizes["good"]["bytes_per_token"],
        "ref": sizes["ref"].get("nominal_bytes_per_token", sizes["ref"]["bytes_per_token"]),
    }


def test_the_policys_limits_are_all_there(written: Any) -> None:
    assert set(written()["policy"]) >= {
        "name", "sha256", "hardest", "rule", "tiers", "largest_break", "hold_level", "critical_turns", "confirm_epochs",
        "early_stop", "allow_underpowered", "min_turns", "min_headroom", "modes",
    }  # fmt: skip


def test_strata_pooled_direction_and_cautions_of_every_arm(written: Any) -> None:
    found = written()
    for arm in (*found["candidates"], *found["controls"].values()):
        assert set(arm["pooled"]) == {"n_conversations", "worse", "better", "p"}
        assert arm["pooled"]["n_conversations"] == 20
    hit = found["candidates"][1]
    score = hit["classes"]["math_chain"]["scores"]["gl_reply"]
    assert [part["name"] for part in score["strata"][:2]] == ["turn index 0", "turn index 1"]
    assert score["worst_stratum"] in score["strata"]
    assert hit["pooled"]["worse"] >= 10


def test_every_arm_says_what_its_workers_said(written: Any) -> None:
    found = written()
    good, ref = found["arms"]["good"]["attested"], found["arms"]["ref"]["attested"]
    kv = found["candidates"][0]["kv"]
    assert {key: good[key] for key in ("bytes_per_token", "capacity_tokens", "layers_quantized", "scales")} == {
        key: kv[key] for key in ("bytes_per_token", "capacity_tokens", "layers_quantized", "scales")
    }
    assert good["attention_backend"] == found["engine"]["attention_backend"] != ""
    assert (good["layers"], ref["layers_quantized"], found["arms"]["baseline"]["attested"]["layers_quantized"]) == (
        4,
        4,
        0,
    )
    assert {name: arm["baseline"] for name, arm in found["arms"].items()} == dict.fromkeys(found["arms"], "baseline")
    assert all(arm["differs"] == {} for arm in found["arms"].values())


def test_settings_that_differ_from_the_baseline_are_named_with_both_values(
    written: Any, records: list[ArmRecord]
) -> None:
    facts = next(r.facts for r in records if r.arm.name == "good")
    assert facts is not None
    worker = tuple(replace(layer, backend="OTHER") for layer in facts.layers[0])
    other = replace(facts, layers=(worker,), settings={**facts.settings, "max_num_seqs": 7}, capacity_tokens=5)
    found = written(good={"facts": other})
    differs = found["arms"]["good"]["differs"]
    assert set(differs) == {"attention_backend", "max_num_seqs"}
    assert differs["attention_backend"] == [[found["engine"]["attention_backend"]], ["OTHER"]]
    assert differs["max_num_seqs"][1] == 7
    assert found["arms"]["good"]["attested"]["attention_backend"] == "OTHER"
    assert {finding["what"].split(" ")[0] for finding in found["candidates"][0]["findings"]} >= set(differs)


def test_an_arm_of_which_nothing_was_read_back(written: Any) -> None:
    arm = written(good={"facts": None, "error": "died"})["arms"]["good"]
    assert (arm["attested"], arm["differs"]) == (None, {})
