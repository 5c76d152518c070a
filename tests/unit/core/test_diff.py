"""Two decisions side by side, on documents of known differences."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from kvquant_eval.core.diff import Change, FlagChange, diff
from tests.fakes.decided import classes, document, flag

Edit = Callable[[dict[str, Any]], Any]


def made(**change: Any) -> dict[str, Any]:
    return document("org/model", "run-a", drop=3.0, decision="HOLD", **change)


def edited(*edits: Edit) -> dict[str, Any]:
    """The other run: another id and time, and what the edits do."""
    other = copy.deepcopy({**made(), "run_id": "run-b", "created_at": "2026-02-02T00:00:00+00:00"})
    for edit in edits:
        edit(other)
    return other


def candidate(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document["candidates"][0]
    return found


def gl_span(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = candidate(document)["classes"]["math"]["scores"]["gl_span"]
    return found


def test_nothing_changed_but_ids_times_and_speeds() -> None:
    found = diff(made(), edited(lambda d: d["arms"]["fp8"].update(decoded_tokens_per_s=1.0)))
    assert found.same
    assert not found.other_turns
    (one,) = found.candidates
    assert one.same
    assert [each.change for each in one.scores] == [0.0, 0.0, 0.0]
    assert [flag.a == flag.b == 7.0 for flag in one.flags] == [True, True]


@pytest.mark.parametrize(
    ("edit", "change"),
    [
        (lambda d: d["engine"].update(version="0.33.0"), Change("engine.version", "0.32.0", "0.33.0")),
        (lambda d: d["engine"].update(args={"x": 1, "y": 2}), Change("engine.args.y", None, 2)),
        (lambda d: d["model"].update(revision="r2"), Change("model.revision", "r1", "r2")),
        (lambda d: d["model"].update(weights_sha256="v"), Change("model.weights_sha256", "w" * 64, "v")),
        (lambda d: d["policy"].update(sha256="q"), Change("policy.sha256", "p" * 64, "q")),
        (lambda d: d["sampling"].update(temperature=0.7), Change("sampling.temperature", 0.0, 0.7)),
        (lambda d: d["baseline"]["kv"].update(effective="auto"), Change("baseline.kv.effective", "bfloat16", "auto")),
        (lambda d: candidate(d)["kv"].update(layers_skipped=[3]), Change("kv.fp8.layers_skipped", [], [3])),
        (lambda d: gl_span(d).update(margin=1.0), Change("workloads.math.scores.gl_span.margin", 2.0, 1.0)),
    ],
)
def test_what_was_gated_otherwise_is_named(edit: Edit, change: Change) -> None:
    found = diff(made(), edited(edit))
    assert change in found.identity
    assert {each.key.split(".")[0] for each in found.identity} == {change.key.split(".")[0]}
    assert not found.same
    assert not found.other_turns


@pytest.mark.parametrize("edit", [lambda d: d["golden"].update(sha256="b"), lambda d: d["golden"].update(folds=[1])])
def test_other_golden_turns_are_known_as_such(edit: Edit) -> None:
    assert diff(made(), edited(edit)).other_turns


def test_decisions_of_the_whole_and_of_controls() -> None:
    def edit(document: dict[str, Any]) -> None:
        document.update(decision="INVALID", post_hoc=True)
        document["controls"]["repeat"]["decision"] = "HOLD"

    assert diff(made(), edited(edit)).decisions == (
        Change("decision", "HOLD", "INVALID"),
        Change("post hoc", False, True),
        Change("control repeat", "PROMOTE", "HOLD"),
    )


@pytest.mark.parametrize(
    ("low", "high", "apart"),
    [
        (4.5, 9.0, True),
        (4.0, 9.0, False),
        (-3.0, 1.5, True),
        (-3.0, 2.0, False),
        (None, 1.5, True),
        (None, None, False),
    ],
)
def test_a_drop_moved_when_the_bounds_of_both_do_not_touch(low: float | None, high: float | None, apart: bool) -> None:
    """Those of A are 2 and 4 points."""
    found = diff(made(), edited(lambda d: gl_span(d).update(mean_drop=5.25, ci_lower=low, ci_upper=high)))
    (score,) = [each for each in found.candidates[0].scores if not each.same]
    assert (score.workload, score.score) == ("math", "gl_span")
    assert (score.a["mean_drop"], score.change, score.apart) == (3.0, 2.25, apart)
    assert not found.same


def test_flags_that_came_and_went_the_worst_first() -> None:
    def edit(document: dict[str, Any]) -> None:
        flags = [{**flag("math-b/t00", "gl_span"), "drop": 9.0}, {**flag("math-c/t00", "gl_span"), "drop": 30.0}]
        candidate(document)["flagged_turns"][1:] = flags

    (found,) = diff(made(), edited(edit)).candidates
    assert found.gained == [
        FlagChange("math-c/t00", "gl_span", None, 30.0),
        FlagChange("math-b/t00", "gl_span", None, 9),
    ]
    assert found.lost == [FlagChange("math-a/t01", "gl_reply", 7.0, None)]
    assert len(found.flags) == 4
    assert not found.same


def test_classes_and_scores_of_one_side_are_named_and_their_flags_left_out() -> None:
    def edit(document: dict[str, Any]) -> None:
        judged = candidate(document)["classes"]
        del judged["coding"]
        judged["math"]["scores"]["f1"] = judged["math"]["scores"].pop("gl_span")
        judged["more"] = classes(0.0)["faq"]

    (found,) = diff(made(), edited(edit)).candidates
    assert (found.only_a, found.only_b) == (("coding", "math gl_span"), ("more", "math f1"))
    assert [(each.workload, each.score) for each in found.scores] == [("math", "gl_reply"), ("faq", "gl_reply")]
    assert [each.score for each in found.flags] == ["gl_reply"]
    assert not found.same


def test_a_candidate_is_the_same_by_name_else_by_what_it_stores() -> None:
    found = diff(made(), edited(lambda d: candidate(d).update(name="other")))
    ((one,), only) = found.candidates, (found.only_a, found.only_b)
    assert (one.a["name"], one.b["name"], only) == ("fp8", "other", ((), ()))

    def twice(document: dict[str, Any]) -> None:
        document["candidates"] = [{**candidate(document), "name": name} for name in ("one", "two")]

    found = diff(made(), edited(twice))
    assert not found.candidates
    assert [[each["name"] for each in side] for side in (found.only_a, found.only_b)] == [["fp8"], ["one", "two"]]
