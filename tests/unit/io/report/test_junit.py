"""``junit.xml`` as a CI page reads it: what is no PROMOTE is never green, what is one is never red."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from junitparser import Error, Failure, JUnitXml, Skipped

from kvquant_eval.io.report import junit
from tests.fakes import decided

MakeCase = Callable[..., Any]
MODEL = "acme/tiny_model"
SUITE = f"{MODEL} KV fp8_e4m3 (effective fp8_e4m3, native)"
MARKS: Mapping[type, str] = {Failure: "failure", Error: "error", Skipped: "skipped"}


def read(xml: str) -> list[tuple[str, str, str]]:
    """(Name of the case, its mark or nothing, the mark's type) over all suites."""
    found = []
    for suite in JUnitXml.fromstring(xml.encode()):
        for case in suite:
            mark = case.result[0] if case.result else None
            assert case.classname == suite.name
            assert mark is None or mark.message
            found.append((case.name, MARKS[type(mark)] if mark else "", mark.type if mark else ""))
    return found


def judged(verdict: str, tier: str = "critical") -> dict[str, Any]:
    return {"verdict": verdict, "tier": tier, "reasons": [f"{verdict} it is"]}


def document(decision: str, classes: Mapping[str, Any]) -> dict[str, Any]:
    made = decided.document(MODEL, "run", decision=decision)
    made["candidates"][0] |= {"classes": classes, "reasons": ["for a reason"]}
    return made


@pytest.mark.parametrize(
    ("arguments", "decision", "expected"),
    [
        ({"drop": 0.0001}, "PROMOTE", ("", "")),
        ({"drop": 9.0}, "HOLD", ("failure", "FAIL")),
        ({"drop": 0.0001, "turns": 5}, "INCONCLUSIVE", ("error", "INCONCLUSIVE")),
        ({"drop": 0.0001, "min_turns": 500}, "INCONCLUSIVE", ("error", "INCONCLUSIVE")),
        ({"run_candidate": False, "error": "the engine died"}, "INVALID", ("error", "INVALID")),
    ],
)
def test_a_case_a_class(
    case: MakeCase, tmp_path: Path, arguments: dict[str, Any], decision: str, expected: tuple[str, str]
) -> None:
    made = case(**arguments, model=MODEL)
    assert made.document["decision"] == decision
    xml = made.write(tmp_path)["junit.xml"]
    assert read(xml) == [("faq", *expected), ("math_chain", *expected)]
    (suite,) = JUnitXml.fromstring(xml.encode())
    marks = [expected[0]] * 2
    assert (suite.tests, suite.failures, suite.errors, suite.skipped) == (
        2, marks.count("failure"), marks.count("error"), 0,
    )  # fmt: skip
    if decision != "INVALID":
        assert suite.name == SUITE


@pytest.mark.parametrize(
    ("decision", "classes", "expected"),
    [
        ("HOLD", {"a": judged("PASS"), "b": judged("FAIL")}, ["", "failure FAIL"]),
        ("HOLD", {"a": judged("FAIL", "supporting"), "b": judged("PASS")}, ["failure FAIL", ""]),
        # held by what belongs to no class: degenerate replies
        ("HOLD", {"a": judged("PASS"), "b": judged("INCONCLUSIVE")}, ["failure HOLD", "failure HOLD"]),
        ("HOLD", {"a": judged("FAIL", "advisory"), "b": judged("PASS")}, ["failure HOLD", "failure HOLD"]),
        ("INCONCLUSIVE", {"a": judged("PASS"), "b": judged("INCONCLUSIVE")}, ["", "error INCONCLUSIVE"]),
        # too few turns in all, while an advisory class is open
        ("INCONCLUSIVE", {"a": judged("PASS"), "b": judged("INCONCLUSIVE", "advisory")}, ["error INCONCLUSIVE"] * 2),
        ("INVALID", {"a": judged("PASS"), "b": judged("FAIL")}, ["error INVALID", "error INVALID"]),
        # what may not bar a promotion is grey, never green and never red
        ("PROMOTE", {"a": judged("PASS"), "b": judged("INCONCLUSIVE", "supporting")}, ["", "skipped INCONCLUSIVE"]),
        ("PROMOTE", {"a": judged("PASS"), "b": judged("FAIL", "advisory")}, ["", "skipped FAIL"]),
        ("HOLD", {}, ["failure HOLD"]),
        ("INCONCLUSIVE", {}, ["error INCONCLUSIVE"]),
        ("INVALID", {}, ["error INVALID"]),
        ("PROMOTE", {}, ["skipped PROMOTE"]),
    ],
)
def test_a_decision_that_no_class_explains_stands_on_every_case(
    decision: str, classes: dict[str, Any], expected: list[str]
) -> None:
    found = read(junit.render(document(decision, classes)))
    assert [f"{mark} {kind}".strip() for _, mark, kind in found] == expected


def test_tiers_and_candidates_of_one_dtype_are_told_apart() -> None:
    made = document("PROMOTE", {"a": judged("PASS", "supporting")})
    made["candidates"].append({**made["candidates"][0], "name": "fp8_e4m3"})
    suites = list(JUnitXml.fromstring(junit.render(made).encode()))
    assert [suite.name for suite in suites] == [f"{SUITE}, candidate fp8", SUITE]
    assert [case.name for suite in suites for case in suite] == ["a (supporting)"] * 2


def test_reasons_without_words_still_say_the_verdict() -> None:
    made = document("HOLD", {"a": {**judged("FAIL"), "reasons": []}})
    assert 'message="FAIL" type="FAIL"' in junit.render(made)
