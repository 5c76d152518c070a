"""The first screen: why in words, marks, signatures, and what makes a decision void."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvquant_eval.core.treatment import KVTreatment, Realisation
from kvquant_eval.io import report
from kvquant_eval.io.report.blocks import Card, Cards, Facts, Section
from kvquant_eval.io.report.plain import deciding, sentence
from kvquant_eval.io.report.signoff import signoff_section

MakeCase = Callable[..., Any]
SIGNATURE = {"by": "Ada L.", "at": "2026-02-03", "expires": "2026-08-03", "note": "for agents", "candidate": "fp8_e4m3"}


def score(mean: float, lower: float | None, upper: float | None, **change: Any) -> dict[str, Any]:
    return {
        "role": "gate", "margin": 2.0, "mean_drop": mean, "ci_lower": lower, "ci_upper": upper, "flag_over": 2.0,
        "drops_over": 9, "gains_over": 3, "n_conversations": 14, **change,
    }  # fmt: skip


def judged(verdict: str, reasons: list[str], tier: str = "critical", **scores: Any) -> dict[str, Any]:
    return {"verdict": verdict, "reasons": reasons, "tier": tier, "scores": scores}


def said(decision: str, reasons: list[str], rule: str = "default", **classes: Any) -> str:
    return sentence({"decision": decision, "reasons": reasons, "classes": classes}, {"rule": rule})


def told(**classes: Any) -> list[str]:
    """The reasons of the classes, as a decision has them."""
    return [f"{workload}: {reason}" for workload, each in classes.items() for reason in each["reasons"]]


def card(section: Section) -> Card:
    (cards,) = [block for block in section.blocks if isinstance(block, Cards)]
    return cards.rows[0]


def test_a_hold_tells_the_drop_that_is_proven_furthest_beyond_its_margin() -> None:
    reason = "mean drop 5.00 points, at least 3.00, is beyond the margin of 2 (p = 0.001 among 9 reasons to hold)"
    faq = judged("FAIL", [f"gl_reply: {reason}"], gl_reply=score(5.0, 3.0, 7.0), gl_span=score(9.0, 8.0, 10.0))
    tools = judged(
        "FAIL", ["tool_call: mean drop 15.00 points, ..."], tool_call=score(15.0, 12.0, 20.0, role="bound", margin=10.0)
    )
    reasons = [*told(faq=faq, tools=tools), "degenerate replies: 80 of 80"]
    assert said("HOLD", reasons, faq=faq, tools=tools) == (
        "faq turns lose 5.0 points of 100 on average (likelihood of the recorded replies), at least 3.0; 2 are allowed "
        "(and 2 more reasons below)"
    )


def test_a_hold_by_counts_tells_the_counts() -> None:
    hard = judged("FAIL", ["gl_span: 9 turns drop over 2 points against 3 that gain as much"], gl_span=score(1, 0, 2))
    assert said("HOLD", told(hard=hard), hard=hard) == (
        "9 hard turns drop by more than 2 points of 100 (likelihood of their decisive words), and only 3 gain as much"
    )


def test_an_open_decision_tells_how_much_may_be_lost() -> None:
    small = judged("INCONCLUSIVE", ["x: mean drop 1.0 points [0, 3] does not settle"], x=score(1.0, 0.0, 3.0))
    large = judged("INCONCLUSIVE", ["y: mean drop 0.0 points [0, 9] does not settle"], y=score(0.0, -1.0, 9.0))
    aside = judged("INCONCLUSIVE", ["z: mean drop"], tier="supporting", z=score(0.0, -1.0, 99.0))
    assert said("INCONCLUSIVE", told(small=small, large=large), small=small, large=large, aside=aside) == (
        "large turns may lose up to 9.0 points of 100 and 2 are allowed: 14 conversations cannot tell "
        "(and 1 more reason below)"
    )
    unbounded = judged("INCONCLUSIVE", ["x: mean drop"], x=score(1.0, None, None, n_conversations=1))
    assert said("INCONCLUSIVE", told(unbounded=unbounded), unbounded=unbounded, large=large) == (
        "unbounded turns may lose any number of points of 100 and 2 are allowed: one conversation cannot tell"
    )


def test_a_gain_that_is_too_good_to_be_true_is_told_as_no_loss() -> None:
    gain = "gl: mean drop -9.00 points [-11.00, -7.00] is a gain over 5, too good to be true"
    strange = judged("INCONCLUSIVE", [gain], gl=score(-9.0, -11.0, -7.0))
    assert said("INCONCLUSIVE", told(strange=strange), strange=strange) == f"strange: {gain}"


def test_what_a_class_left_open_is_no_reason_where_an_arm_did_not_finish() -> None:
    large = judged("INCONCLUSIVE", ["y: mean drop 0.0 points [0, 9] does not settle"], y=score(0.0, -1.0, 9.0))
    assert said("INCONCLUSIVE", ["fp8: 3 of 9 blocks ran"], large=large) == "fp8: 3 of 9 blocks ran"


def test_a_promotion_tells_the_class_that_comes_nearest_to_its_margin() -> None:
    near = judged("PASS", ["gl: ..."], gl=score(0.5, 0.0, 1.5), other=score(0.0, 0.0, 0.1))
    far = judged("PASS", ["gl: ..."], gl=score(0.0, -1.0, -0.5))
    assert said("PROMOTE", ["a", "b"], near=near, far=far) == (
        "No critical class loses more than is allowed: at worst 1.5 points of 100 (near, 95% confidence), where 2 are "
        "allowed"
    )


@pytest.mark.parametrize(
    ("decision", "reasons", "rule", "expected"),
    [
        ("INVALID", ["fp8: requested fp8, but 3 layers run bfloat16"], "default", "fp8: requested fp8, but 3 layers"),
        ("INVALID", ["one", "two"], "default", "one (and 1 more reason below)"),
        ("HOLD", ["degenerate replies: 80 of 80"], "default", "degenerate replies: 80 of 80"),
        ("PROMOTE", ["hard: no flag"], "zero_flags", "hard: no flag"),
        ("INCONCLUSIVE", ["golden set: at least 200 turns"], "default", "golden set: at least 200 turns"),
        ("INCONCLUSIVE", [], "default", "no reason is recorded"),
    ],
)
def test_what_no_class_tells_is_told_as_it_was_recorded(
    decision: str, reasons: list[str], rule: str, expected: str
) -> None:
    fine = judged("PASS", ["gl: ..."], gl=score(0.0, -1.0, 1.0))
    assert said(decision, reasons, rule, faq=fine).startswith(expected)


def test_the_score_a_verdict_hangs_on() -> None:
    wide, narrow, task = score(0.0, -9.0, 9.0), score(5.0, 4.5, 5.5), score(30.0, 20.0, 40.0, role="bound", margin=10.0)
    assert deciding(judged("PASS", [], wide=wide, narrow=narrow, task=task)) == "wide"
    assert deciding(judged("FAIL", ["narrow: mean drop"], wide=wide, narrow=narrow, task=task)) == "narrow"
    assert deciding(judged("FAIL", ["task: mean drop"], wide=wide, narrow=narrow, task=task)) == "task"
    assert deciding(judged("PASS", [], none=score(0.0, None, None), narrow=narrow)) == "none"
    assert deciding(judged("INCONCLUSIVE", ["30 turns with headroom, got 0"], task=task)) == ""


def test_a_card_names_everything_that_makes_it_void(case: MakeCase) -> None:
    made = case(9.0)
    found = card(signoff_section(made.document, ()))
    assert (found.decision, found.model, found.kv) == (
        "HOLD", "acme/tiny@r1", "KV fp8_e4m3 (effective fp8_e4m3, native)",
    )  # fmt: skip
    facts = dict(found.facts)
    policy = made.document["policy"]["sha256"][:12]
    assert facts["void as soon as one of these changes"] == (
        "model revision r1 (weights 111111111111…); KV dtype fp8_e4m3, no layer skipped; fake 1; attention FAKE; "
        f"device a chip; policy test ({policy}…); golden set tiny 3 (abababababab…)"
    )
    assert facts["decided"] == "2026-01-01 00:00 UTC, not signed"
    assert found.classes == (("faq", "FAIL"), ("math_chain", "FAIL"))
    assert found.marks == ("attempt 2 of the same question",)


@pytest.mark.parametrize(
    ("change", "mark"),
    [
        ({"post_hoc": True}, "post hoc: the policy is not the one hashed before the run; it moves no alias"),
        (
            {"post_hoc": True, "rescored": True},
            "post hoc: the replies were scored again after the run; it moves no alias",
        ),
        ({"power": {"chance": 0.31}}, "underpowered: a lossless candidate would be promoted with a chance of 31%"),
        ({"golden": {"folds": [0, 2]}}, "a part of the golden set only; it moves no alias"),
    ],
)
def test_marks_of_the_whole_decision(case: MakeCase, change: dict[str, Any], mark: str) -> None:
    made = case()
    change = {key: {**made.document[key], **value} if key == "golden" else value for key, value in change.items()}
    found = card(signoff_section({**made.document, "attempts": 1, **change}, ()))
    assert found.marks == (mark,)


def test_marks_of_a_candidate(case: MakeCase) -> None:
    reference = KVTreatment(name="fp8_ref", dtype="fp8_e4m3", realisation=Realisation.REFERENCE)
    marks = card(signoff_section(case(candidate=reference).document, ())).marks
    assert marks[0].startswith("reference: ")
    itself = card(signoff_section(case(candidate=KVTreatment(name="same", dtype="bfloat16")).document, ())).marks
    assert itself[0].startswith("self-test: ")


def test_signatures_stand_on_the_card_of_their_candidate(case: MakeCase, tmp_path: Path) -> None:
    made = case(9.0)
    other = {"by": "Eve", "at": "2026-02-04", "candidate": "another"}
    found = card(signoff_section(made.document, (SIGNATURE, other)))
    assert found.signed == ("signed by Ada L. on 2026-02-03 (expires 2026-08-03): for agents",)
    assert found.overrides == ()
    assert dict(found.facts)["decided"] == "2026-01-01 00:00 UTC"
    overridden = {**SIGNATURE, "override": "<b>we accept</b> 9 points"}
    report.write(tmp_path, made.document, made.judgement, made.golden, made.prepared, signatures=(overridden,))
    pages = {name: (tmp_path / name).read_text() for name in ("report.md", "report.html")}
    assert "  - OVERRIDE: &lt;b&gt;we accept&lt;/b&gt; 9 points" in pages["report.md"]
    assert "<b>OVERRIDE:</b> &lt;b&gt;we accept&lt;/b&gt; 9 points" in pages["report.html"]
    assert all("signed by Ada L. on 2026-02-03" in page for page in pages.values())


def test_an_arm_that_did_not_run_has_a_card(case: MakeCase) -> None:
    found = card(signoff_section(case(run_candidate=False, error="the engine died").document, ()))
    assert (found.decision, dict(found.facts)["stored"]) == ("INVALID", "nothing was read back")
    assert found.kv == "KV fp8_e4m3 (effective not read back, native)"
    assert "KV dtype fp8_e4m3, nothing read back;" in dict(found.facts)["void as soon as one of these changes"]


def test_there_is_no_ratio_to_a_baseline_that_was_not_read_back(case: MakeCase) -> None:
    made = case()
    stored = dict(card(signoff_section(made.document, ())).facts)["stored"]
    assert stored.endswith("64 bytes a token (0.50 of the baseline)")
    made.document["arms"]["baseline"]["attested"] = None
    assert dict(card(signoff_section(made.document, ())).facts)["stored"].endswith("64 bytes a token")


def test_scales_are_among_what_makes_it_void(case: MakeCase) -> None:
    made = case()
    made.document["candidates"][0]["kv"]["scales"] = {"kind": "checkpoint", "k": [0.5, 0.75], "v": [1.0, 1.0]}
    void = dict(card(signoff_section(made.document, ())).facts)["void as soon as one of these changes"]
    assert "KV dtype fp8_e4m3, no layer skipped, K scales 0.5 to 0.75; " in void


def test_the_ranking_says_what_is_only_a_reference(case: MakeCase) -> None:
    reference = KVTreatment(name="fp8_ref", dtype="fp8_e4m3", realisation=Realisation.REFERENCE)
    ranked = [{"name": "fp8_ref", "bytes_per_token": 64.0}]
    document = {**case(candidate=reference).document, "ranking": ranked}
    (facts,) = [dict(each.rows) for each in signoff_section(document, ()).blocks if isinstance(each, Facts)]
    assert facts["promoted, the fewest bytes a token first"] == "fp8_ref 64 (reference: as a native store would)"


def test_two_candidates_of_one_dtype_are_told_apart(case: MakeCase, tmp_path: Path) -> None:
    pages = case(candidate=KVTreatment(name="tail", dtype="fp8_e4m3", skip_layers=("1",))).write(tmp_path)
    titles = [line for line in pages["report.md"].splitlines() if line.startswith("## ") and "@r1" in line]
    assert titles
    assert all(", candidate tail" in title for title in titles)
