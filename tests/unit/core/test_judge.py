"""Stored replays to a judgement: controls first, then candidates; broken baselines and arms that prove nothing."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvquant_eval.core.arms import ArmRecord, plan_arms
from kvquant_eval.core.engine import EngineFacts, EngineSpec
from kvquant_eval.core.judge import Judgement, judge
from kvquant_eval.core.plan import make_blocks
from kvquant_eval.core.records import Decision, GoldenTurn, Measure, Outcome, Prepared, Replay
from kvquant_eval.core.settings import Settings
from kvquant_eval.core.soundness import is_self_test
from kvquant_eval.core.treatment import KVTreatment
from kvquant_eval.io.golden import load
from kvquant_eval.io.runfolder import count
from tests.fakes.engine import FakeEngine, prepare
from tests.fakes.gate import policy, settings, treatments, write_golden


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder = tmp_path_factory.mktemp("judge")
    write_golden(folder / "golden")
    return settings(folder, treatments("good", "drops_math_chain"))


@pytest.fixture(scope="module")
def turns(made: Settings) -> tuple[GoldenTurn, ...]:
    return load(Path(made.golden_path), made.policy.scores).turns


@pytest.fixture(scope="module")
def prepared(made: Settings, turns: tuple[GoldenTurn, ...]) -> Prepared:
    return prepare(made.model, turns, made.engine.args, Path(), [])


@pytest.fixture(scope="module")
def records(made: Settings, prepared: Prepared) -> dict[str, ArmRecord]:
    """The arms as the fake engine runs them, in this process."""
    blocks = make_blocks(prepared.turns, made.sampling, made.block_requests)
    found = {}
    for arm in plan_arms(made):
        engine = FakeEngine(EngineSpec(model="m", revision=None, treatment=arm.treatment, args=arm.args))
        results = [engine.run(block) for block in blocks]
        replays = tuple(replay for result in results for replay in result.replays)
        found[arm.name] = ArmRecord(arm=arm, facts=engine.facts(), replays=replays, counts=count(results))
    return found


@pytest.fixture
def decided(made: Settings, prepared: Prepared, turns: tuple[GoldenTurn, ...], records: dict[str, ArmRecord]) -> Any:
    """Judge the records with some of them replaced."""

    def run(settings: Settings = made, prepared: Prepared = prepared, **changed: ArmRecord) -> Judgement:
        return judge(settings, prepared, turns, list({**records, **changed}.values()))

    return run


def change(record: ArmRecord, only: Any = lambda replay: True, **fields: Any) -> ArmRecord:
    """The record with some replays changed."""
    replays = tuple(replace(r, **fields) if only(r) else r for r in record.replays)
    return replace(record, replays=replays)


def generated(replay: Replay) -> bool:
    return replay.measure is Measure.GENERATED


def test_every_arm_is_scored_and_controls_and_candidates_are_decided(decided: Any) -> None:
    judgement = decided()
    assert set(judgement.scores) == {"baseline", "repeat", "placebo", "good", "drops_math_chain"}
    assert set(judgement.deltas) == set(judgement.results) == set(judgement.scores) - {"baseline"}
    assert judgement.results["good"].decision is Decision.PROMOTE
    assert judgement.decision is Decision.HOLD
    assert all(reason.startswith("drops_math_chain: ") for reason in judgement.reasons)
    assert len(set(judgement.reasons)) == len(judgement.reasons)


def test_only_required_candidates_count(made: Settings, decided: Any) -> None:
    judgement = decided(replace(made, policy=policy(require=("good",))))
    assert judgement.decision is Decision.PROMOTE
    assert judgement.results["drops_math_chain"].decision is Decision.HOLD


def test_a_held_control_makes_every_candidate_invalid(records: dict[str, ArmRecord], decided: Any) -> None:
    worse = change(records["placebo"], lambda r: r.top, logprobs=(-3.0,) * 60)
    judgement = decided(placebo=worse)
    assert judgement.results["placebo"].decision is Decision.HOLD
    assert {judgement.results[name].decision for name in ("good", "drops_math_chain")} == {Decision.INVALID}
    assert "control placebo: HOLD: " in judgement.reasons[0]


def test_an_unsettled_control_is_named_only(made: Settings, records: dict[str, ArmRecord], decided: Any) -> None:
    lost = change(
        records["repeat"], lambda r: r.turn_id == "faq-00/0", outcome=Outcome.INFRA_ERROR, logprobs=(), error="lost"
    )
    judgement = decided(replace(made, policy=policy(require=("good",))), repeat=lost)
    assert judgement.results["repeat"].decision is Decision.INCONCLUSIVE
    assert judgement.decision is Decision.PROMOTE
    (remark,) = [f for f in judgement.results["good"].findings if f.where == "control repeat"]
    assert not remark.invalid


@pytest.mark.parametrize("outcome", [Outcome.EMPTY, Outcome.DEGENERATE])
def test_a_baseline_that_cannot_speak(records: dict[str, ArmRecord], decided: Any, outcome: Outcome) -> None:
    def most(replay: Replay) -> bool:
        return generated(replay) and not replay.turn_id.endswith("00/0")

    judgement = decided(baseline=change(records["baseline"], most, outcome=outcome))
    assert judgement.decision is Decision.INVALID
    assert "broken: 38 of 40 replies are empty or loops" in judgement.reasons[0]


def test_half_of_the_replies_empty_is_not_broken(records: dict[str, ArmRecord], decided: Any) -> None:
    def half(replay: Replay) -> bool:
        return generated(replay) and replay.turn_id.endswith("/0")

    empty = {name: change(record, half, outcome=Outcome.EMPTY) for name, record in records.items()}
    assert "broken" not in " ".join(decided(**empty).reasons)


def test_a_baseline_that_knows_nothing(records: dict[str, ArmRecord], decided: Any) -> None:
    lost = change(records["baseline"], lambda r: r.top, logprobs=(math.log(0.04),) * 60)
    assert any("mean golden likelihood under 5 points" in reason for reason in decided(baseline=lost).reasons)


@pytest.mark.parametrize("name", ["baseline", "repeat", "placebo", "good"])
def test_an_arm_without_facts_or_with_an_error(records: dict[str, ArmRecord], decided: Any, name: str) -> None:
    for broken in (replace(records[name], facts=None), replace(records[name], error="engine died")):
        judgement = decided(**{name: broken})
        assert judgement.results["good"].decision is Decision.INVALID
        assert judgement.decision is Decision.INVALID


@pytest.mark.parametrize("name", ["baseline", "repeat", "placebo", "good"])
def test_preemptions_anywhere(records: dict[str, ArmRecord], decided: Any, name: str) -> None:
    judgement = decided(**{name: replace(records[name], counts={**records[name].counts, "preemptions": 3})})
    assert judgement.results["good"].decision is Decision.INVALID
    assert "3 preemptions" in " ".join(judgement.results["good"].reasons)


def test_outputs_equal_to_the_baselines_were_not_treated(records: dict[str, ArmRecord], decided: Any) -> None:
    same = replace(records["good"], replays=records["baseline"].replays)
    assert "good: good: not applied: every token" in decided(good=same).reasons[0]


def test_a_self_test_may_be_equal(records: dict[str, ArmRecord], decided: Any) -> None:
    base = records["baseline"]
    arm = replace(records["good"].arm, treatment=replace(base.arm.treatment, name="good"))
    same = replace(records["good"], arm=arm, facts=base.facts, replays=base.replays)
    assert is_self_test(same, base)
    assert not is_self_test(records["good"], base)
    assert decided(good=same).results["good"].decision is Decision.PROMOTE


def test_headroom_is_the_mean_of_baseline_and_repeat(records: dict[str, ArmRecord], decided: Any) -> None:
    """A turn at 19 in the baseline and 100 in the repeat has room; at 19 in both it has none."""
    low = {"logprobs": (math.log(0.19),) * 60}

    def one(replay: Replay) -> bool:
        return bool(replay.top) and replay.turn_id == "math_chain-00/0"

    changed = {name: change(records[name], one, **low) for name in ("baseline", "good")}
    assert decided(**changed).results["good"].classes["math_chain"].n_headroom == 20
    changed["repeat"] = change(records["repeat"], one, **low)
    assert decided(**changed).results["good"].classes["math_chain"].n_headroom == 19


def test_skipped_turns_are_counted_by_class(prepared: Prepared, records: dict[str, ArmRecord], decided: Any) -> None:
    gone = {"math_chain-00/0", "faq-00/0"}
    cut = replace(
        prepared, turns=tuple(replace(t, skip="too long") if t.turn_id in gone else t for t in prepared.turns)
    )
    kept = {
        name: replace(record, replays=tuple(r for r in record.replays if r.turn_id not in gone))
        for name, record in records.items()
    }
    result = decided(prepared=cut, **kept).results["good"]
    assert result.decision is Decision.INCONCLUSIVE
    assert result.reasons == ("math_chain: 1 turns skipped in the hardest class",)
    assert (result.classes["math_chain"].n_missing, result.classes["faq"].n_missing) == (1, 1)


def test_a_difference_that_is_not_the_treatment(records: dict[str, ArmRecord], decided: Any) -> None:
    attested = records["good"].facts
    assert isinstance(attested, EngineFacts)
    judgement = decided(good=replace(records["good"], facts=replace(attested, device="another GPU")))
    assert judgement.results["good"].decision is Decision.INVALID
    assert "device differs from the baseline: 'none' against 'another GPU'" in judgement.results["good"].reasons[0]


def test_the_judgement_is_the_same_each_time(decided: Any) -> None:
    assert decided().results == decided().results


def test_the_baseline_by_another_name_is_a_self_test(records: dict[str, ArmRecord]) -> None:
    for one, other in (("fp8", "fp8_e4m3"), ("half", "float16")):
        base = replace(records["baseline"].arm, treatment=KVTreatment(name="baseline", dtype=one))
        arm = replace(records["good"].arm, treatment=KVTreatment(name="good", dtype=other))
        assert is_self_test(replace(records["good"], arm=arm), replace(records["baseline"], arm=base))


@pytest.mark.parametrize("logprob", [math.nan, math.inf, 0.1])
def test_an_impossible_log_probability_is_an_infra_error(
    records: dict[str, ArmRecord], decided: Any, logprob: float
) -> None:
    strange = change(records["good"], lambda r: r.top and r.turn_id == "faq-00/0", logprobs=(logprob, -1.0))
    judgement = decided(good=strange)
    assert judgement.results["good"].decision is Decision.INCONCLUSIVE
    assert "candidate: infra_error" in judgement.results["good"].reasons[0]
    assert judgement.arms["good"].replays != strange.replays
