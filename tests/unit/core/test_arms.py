"""Which arms a gate runs, and what makes an arm another arm."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvquant_eval.core.arms import Arm, differences, ingredients, plan_arms, with_scales
from kvquant_eval.core.codec import DataError, digest
from kvquant_eval.core.plan import make_blocks, plan_sha256
from kvquant_eval.core.records import Prepared, Role, Sampling
from kvquant_eval.core.scales import LayerScales, ScaleSource
from kvquant_eval.core.settings import PlaceboKind, ReportSettings, Settings
from kvquant_eval.core.treatment import KVTreatment, Realisation
from tests.fakes.gate import reference, settings, treatments
from tests.fakes.records import rendered_turn

PREPARED = Prepared(
    path="/models/m",
    weights_sha256="w",
    template_sha256="t",
    device="cpu",
    versions={"vllm": "0.32.0"},
    kv_cache_scheme=False,
    turns=(rendered_turn("a"),),
)
BLOCKS = make_blocks(PREPARED.turns, Sampling())


def arms(made: Settings) -> dict[str, Arm]:
    return {arm.name: arm for arm in plan_arms(made)}


def test_an_eager_engine_has_one_baseline_for_all(tmp_path: Path) -> None:
    found = arms(settings(tmp_path, {**treatments("fp8"), **reference("ref")}))
    assert list(found) == ["baseline", "repeat", "placebo", "fp8", "ref"]
    assert {name: arm.role for name, arm in found.items()} == {
        "baseline": Role.BASELINE,
        "repeat": Role.CONTROL,
        "placebo": Role.CONTROL,
        "fp8": Role.CANDIDATE,
        "ref": Role.CANDIDATE,
    }
    assert {arm.baseline for arm in found.values()} == {"baseline"}
    assert found["repeat"].treatment == found["baseline"].treatment
    assert found["repeat"].order_seed is not None
    assert found["baseline"].order_seed is None
    assert found["placebo"].treatment.realisation is Realisation.REFERENCE


def test_a_compiled_engine_gets_an_eager_baseline_for_reference_arms(tmp_path: Path) -> None:
    found = arms(settings(tmp_path, {**treatments("fp8"), **reference("ref")}, args={"enforce_eager": False}))
    assert list(found) == ["baseline", "baseline_eager", "repeat", "placebo", "fp8", "ref"]
    assert {name: arm.baseline for name, arm in found.items()} == {
        "baseline": "baseline",
        "baseline_eager": "baseline_eager",
        "repeat": "baseline",
        "placebo": "baseline_eager",
        "fp8": "baseline",
        "ref": "baseline_eager",
    }
    for name, arm in found.items():
        assert arm.args["enforce_eager"] is (arm.baseline == "baseline_eager"), name


def test_a_placebo_by_batch_limit_needs_no_hooks(tmp_path: Path) -> None:
    made = settings(
        tmp_path, treatments("fp8"), args={"enforce_eager": False, "max_num_seqs": 64}, placebo=PlaceboKind.BATCH_LIMIT
    )
    found = arms(made)
    assert list(found) == ["baseline", "repeat", "placebo", "fp8"]
    assert found["placebo"].args["max_num_seqs"] == 32
    assert found["placebo"].treatment == made.baseline
    assert found["placebo"].accept == ("scheduler_config.max_num_seqs",)


def test_arms_differ_by_the_treatment_alone(tmp_path: Path) -> None:
    found = arms(settings(tmp_path, {**treatments("fp8"), **reference("ref")}))
    assert all(arm.args == found["baseline"].args for arm in found.values())


PROFILED = ReportSettings(range_profile=True)


def test_the_baseline_takes_the_range_profile_of_all_formats_in_use(tmp_path: Path) -> None:
    halves = KVTreatment(name="k8v4", k="fp8", v="nvfp4", realisation=Realisation.REFERENCE)
    found = arms(settings(tmp_path, {**treatments("fp8"), "k8v4": halves, **reference("ref")}, report=PROFILED))
    assert found["baseline"].profile == ("fp8_e4m3", "nvfp4", "int8")
    assert {name for name, arm in found.items() if arm.profile} == {"baseline"}


def test_beside_a_compiled_baseline_the_eager_one_does(tmp_path: Path) -> None:
    found = arms(settings(tmp_path, treatments("fp8"), args={"enforce_eager": False}, report=PROFILED))
    assert {name for name, arm in found.items() if arm.profile} == {"baseline_eager"}


def test_a_gate_without_hooks_has_no_range_profile(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^report.range_profile: an eager baseline to look into, got none"):
        settings(
            tmp_path,
            treatments("fp8"),
            args={"enforce_eager": False},
            placebo=PlaceboKind.BATCH_LIMIT,
            report=PROFILED,
        )


def mark(arm: Arm, made: Settings, **changes: Any) -> str:
    values = {"prepared": PREPARED, "golden_sha256": "g", "code_sha256": "c", **changes}
    return digest(ingredients(arm, made, plan_sha256=plan_sha256(values.pop("blocks", BLOCKS)), **values))


@pytest.fixture
def made(tmp_path: Path) -> Settings:
    return settings(tmp_path, treatments("fp8"))


def test_equal_arms_have_equal_fingerprints(made: Settings, tmp_path: Path) -> None:
    again = settings(tmp_path / "elsewhere", {**treatments("fp8"), **reference("ref")})
    for name in ("baseline", "repeat", "placebo", "fp8"):
        assert mark(arms(made)[name], made) == mark(arms(again)[name], again)


def test_all_arms_of_a_gate_are_apart(made: Settings) -> None:
    assert len({mark(arm, made) for arm in arms(made).values()}) == 4


def test_a_self_test_is_not_the_baseline_again(tmp_path: Path) -> None:
    """The candidate must be run, even if it asks for just what the baseline asks for."""
    baseline = KVTreatment(name="baseline", dtype="bfloat16")
    made = settings(tmp_path, {"same": baseline})
    assert mark(arms(made)["same"], made) != mark(arms(made)["baseline"], made)


@pytest.mark.parametrize(
    "changes",
    [
        {"golden_sha256": "other"},
        {"code_sha256": "other"},
        {"blocks": make_blocks(PREPARED.turns, Sampling(seed=1))},
        {"blocks": make_blocks([rendered_turn("a", prompt_ids=(1, 2, 4))], Sampling())},
        {"blocks": BLOCKS * 2},
        *(
            {"prepared": replace(PREPARED, **{name: "other"})}  # type: ignore[arg-type]
            for name in ("weights_sha256", "config_sha256", "template_sha256", "device")
        ),
        {"prepared": replace(PREPARED, versions={"vllm": "0.33.0"})},
    ],
)
def test_whatever_can_change_an_arm_changes_its_fingerprint(made: Settings, changes: dict[str, Any]) -> None:
    arm = arms(made)["baseline"]
    assert mark(arm, made, **changes) != mark(arm, made)


def test_so_do_engine_model_and_treatment(made: Settings) -> None:
    arm = arms(made)["fp8"]
    engine = made.engine
    others = [
        (replace(arm, treatment=replace(arm.treatment, dtype="fp8_e5m2")), made),
        (replace(arm, treatment=replace(arm.treatment, skip_layers=("0",))), made),
        (replace(arm, treatment=replace(arm.treatment, realisation=Realisation.REFERENCE)), made),
        (replace(arm, args={**arm.args, "max_model_len": 1}), made),
        (replace(arm, role=Role.BASELINE), made),
        (replace(arm, order_seed=5), made),
        (arm, replace(made, engine=replace(engine, engine="other:Engine"))),
        (arm, replace(made, engine=replace(engine, env={"VLLM_X": "1"}))),
        (arm, replace(made, engine=replace(engine, top_logprobs=5))),
        (arm, replace(made, model=replace(made.model, id="org/other"))),
        (arm, replace(made, model=replace(made.model, revision="r2"))),
    ]
    marks = {mark(other, settings) for other, settings in others}
    assert len(marks) == len(others)
    assert mark(arm, made) not in marks


def test_so_does_code_that_comes_with_the_model(made: Settings) -> None:
    trusting = replace(made, model=replace(made.model, trust_remote_code=True))
    assert mark(arms(made)["fp8"], made) != mark(arms(trusting)["fp8"], trusting)


def test_a_range_profile_marks_the_arm_that_takes_it_alone(made: Settings) -> None:
    """Arms of before there was one keep their fingerprints."""
    asked = arms(replace(made, report=PROFILED))
    assert {name for name, arm in arms(made).items() if mark(arm, made) != mark(asked[name], made)} == {"baseline"}
    assert "profile" not in ingredients(arms(made)["baseline"], made, PREPARED, "p", "g", "c")
    assert ingredients(asked["baseline"], made, PREPARED, "p", "g", "c")["profile"] == ["fp8_e4m3"]


@pytest.mark.parametrize("changes", [{"timeout_s": 1.0}, {"retries": 9}, {"stall_s": 1.0}])
def test_patience_does_not(made: Settings, changes: dict[str, Any]) -> None:
    arm = arms(made)["fp8"]
    assert mark(arm, replace(made, engine=replace(made.engine, **changes))) == mark(arm, made)


def test_what_changed_is_named(made: Settings) -> None:
    arm = arms(made)["fp8"]
    values = {"plan_sha256": "a" * 64, "golden_sha256": "b" * 64, "code_sha256": "c"}
    then = ingredients(arm, made, PREPARED, **values)
    other = replace(PREPARED, versions={"vllm": "0.33.0"})
    now = ingredients(replace(arm, args={}), made, other, **{**values, "golden_sha256": "d" * 64})
    assert differences(then, then) == []
    assert differences(then, now) == [
        "args.enforce_eager: True, now None",
        "golden: bbbbbbbbbbbb, now dddddddddddd",
        "versions.vllm: 0.32.0, now 0.33.0",
    ]


SCALES = (LayerScales(index=0, k=(0.5,), v=(2.0,)),)


def test_the_scales_of_a_checkpoint_are_those_of_the_arms_that_take_them(tmp_path: Path) -> None:
    asked = {**treatments("fp8", "unit"), **reference("ref", "fp8_e5m2"), **reference("int", "int8")}
    asked["unit"] = replace(asked["unit"], scales=ScaleSource.UNIT)
    found = {arm.name: arm.treatment.layer_scales for arm in with_scales(plan_arms(settings(tmp_path, asked)), SCALES)}
    assert {name for name, scales in found.items() if scales == SCALES} == {"fp8", "ref"}
    assert {name for name, scales in found.items() if scales == ()} == found.keys() - {"fp8", "ref"}


@pytest.mark.parametrize(("source", "seen"), [(ScaleSource.CHECKPOINT, SCALES), (ScaleSource.UNIT, ())])
def test_the_range_profile_is_taken_under_the_scales_that_candidates_agree_on(
    tmp_path: Path, source: ScaleSource, seen: tuple[LayerScales, ...]
) -> None:
    asked = {**treatments("fp8"), **reference("ref", "fp8_e4m3"), **reference("int", "int8")}
    asked["ref"] = replace(asked["ref"], scales=source)
    planned = plan_arms(settings(tmp_path, asked, report=ReportSettings(range_profile=True)))
    assert {a.name: a.profile_scales for a in with_scales(planned, SCALES) if a.profile} == {"baseline": seen}
    several = (LayerScales(index=0, k=(0.5, 1.0), v=(2.0,)),)
    assert all(not arm.profile_scales for arm in with_scales(planned, several)), "it has no scales of single heads"
