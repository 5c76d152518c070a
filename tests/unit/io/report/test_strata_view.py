"""Strata, trends, second tests, tiers and the ranking in the report; and in ``decision.json``, which it is made of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvquant_eval.core.confirm import Confirmation
from kvquant_eval.core.gate import decide
from kvquant_eval.core.policy import Policy, ScorePolicy, ScoreRole, Tier
from kvquant_eval.core.records import ScoreDelta
from kvquant_eval.core.result_document import result_data
from kvquant_eval.core.results import CandidateResult
from kvquant_eval.core.strata import Axis
from kvquant_eval.io.report.confirmations import confirmation_sections, second_test
from kvquant_eval.io.report.strata import strata_sections
from tests.fakes.records import delta, grounds, one_class

MakeCase = Callable[..., Any]


def policy(**changes: Any) -> Policy:
    scores = {"s": ScorePolicy(role=ScoreRole.GATE, margin=2.0, flag_over=50.0)}
    return one_class(scores={"hard": scores, "easy": scores}, **changes)


def late() -> list[ScoreDelta]:
    """20 late turns that lose 4 or 5 points, behind 60 that lose nothing."""
    first = [delta(f"t{i:02}", 0.0) for i in range(60)]
    return first + [delta(f"u{i:02}", 4.0 + i % 2, turn_index=7) for i in range(20)]


def decided(made: list[ScoreDelta], limits: Policy, **changes: Any) -> CandidateResult:
    ones = dict.fromkeys(Axis, 1)
    places = {d.turn_id: {**ones, Axis.TURN_INDEX: d.turn_index} for d in made}
    return decide(made, limits, grounds(made, positions=places, **changes))


def as_candidate(result: CandidateResult, limits: Policy) -> dict[str, Any]:
    return {"name": "fp8", **result_data(result, limits, {}, {})}


def tables(section: Any) -> list[Any]:
    return [block for block in section.blocks if block.kind == "table"]


def test_strata_and_the_worst_of_them_are_in_the_document() -> None:
    limits = policy(tiers={"easy": Tier.ADVISORY})
    found = as_candidate(decided(late(), limits), limits)
    score = found["classes"]["hard"]["scores"]["s"]
    assert [part["name"] for part in score["strata"]] == ["turn index 0", "turn index 7"]
    assert score["worst_stratum"] == score["strata"][1]
    assert score["worst_stratum"]["n_turns"] == 20
    assert score["n_conversations"] == 80
    assert [trend["axis"] for trend in score["trends"]] == ["turn_index"]
    assert [found["classes"][w]["tier"] for w in ("hard", "easy")] == ["critical", "advisory"]
    assert found["pooled"] == {"n_conversations": 80, "worse": 20, "better": 0, "p": 2**-20}
    assert [caution["about"] for caution in found["cautions"]] == ["pooled", "stratum", "trend"]


def test_strata_trends_and_cautions_have_their_section() -> None:
    limits = policy(tiers={"easy": Tier.ADVISORY})
    (section,) = strata_sections(as_candidate(decided(late(), limits), limits))
    sentences = section.blocks[0].rows
    assert sentences[0].startswith("all classes together: 20 of 80 conversations lose, 0 gain (p = 9.5e-07")
    assert sentences[2].startswith("caution: hard s, turn index 7: mean drop 4.50 points")
    by_stratum, by_trend = tables(section)
    assert [(*row[:6], row[-1]) for row in by_stratum.rows] == [
        ("hard", "s", "turn index 0", "60", "60", "+0.00", ""),
        ("hard", "s", "turn index 7", "20", "20", "+4.50", "worst"),
    ]
    assert by_trend.rows[0][:3] == ("hard", "s", "+0.643 points a turn")


def test_where_there_is_one_stratum_only_the_direction_is_said() -> None:
    made = [delta(f"t{i}", 0.0) for i in range(40)]
    (section,) = strata_sections(as_candidate(decided(made, policy()), policy()))
    assert [row for block in section.blocks for row in block.rows] == [
        "all classes together: 0 of 40 conversations lose, 0 gain (p = 1, one-sided); it decides nothing"
    ]


SURE = Confirmation(epochs=32, drop=40.0, p=0.001, holm=0.002, q=0.001, confirmed=True)
OPEN = Confirmation(epochs=32, drop=1.0, p=0.4, holm=0.4, q=0.4, confirmed=False)


def flagged() -> dict[str, Any]:
    made = [delta(f"t{i}", 60.0 if i < 3 else 0.0) for i in range(60)]
    second = {("t0", "s"): OPEN, ("t1", "s"): SURE}
    return as_candidate(decided(made, policy(), confirmations=second), policy())


def test_second_tests_are_a_reading_list_by_q() -> None:
    (section,) = confirmation_sections(flagged(), 0.01)
    said, table = section.blocks
    assert said.rows[0].startswith("2 flags were run again, on fresh epochs of both arms alone: 1 are confirmed")
    assert table.rows == (
        ("t1", "hard", "s", "+60.00", "+40.00", "32", "0.001", "0.002", "0.001", "yes"),
        ("t0", "hard", "s", "+60.00", "+1.00", "32", "0.4", "0.4", "0.4", "no"),
    )


def test_a_flag_without_a_second_test_has_none_in_the_document() -> None:
    flags = {flag["turn_id"]: flag for flag in flagged()["flagged_turns"]}
    assert (flags["t1"]["confirmed"], flags["t0"]["confirmed"], flags["t2"]["confirmed"]) == (True, False, None)
    assert (flags["t1"]["fresh_drop"], flags["t1"]["fresh_epochs"], flags["t1"]["q"]) == (40.0, 32, 0.001)
    assert "q" not in flags["t2"]
    assert [second_test(flags.get(turn)) for turn in ("t1", "t0", "t2", "t9")] == [
        "confirmed", "not confirmed", "raw", "",
    ]  # fmt: skip


def test_no_second_test_no_section() -> None:
    made = [delta(f"t{i}", 60.0) for i in range(9)]
    assert confirmation_sections(as_candidate(decided(made, policy()), policy()), 0.01) == []


def test_tiers_limits_and_ranking_are_in_the_pages(case: MakeCase, tmp_path: Path) -> None:
    made = case(0.0001, model="acme/tiny")
    made.document["candidates"][0]["classes"]["faq"]["tier"] = "supporting"
    assert made.document["ranking"] == [{"name": "fp8_e4m3", "bytes_per_token": 64.0}]
    page = made.write(tmp_path)["report.md"]
    assert "| faq (supporting) | PASS |" in page
    assert "- **PASS** faq (supporting): gl_reply: mean drop" in page
    assert "- faq (supporting): 40 turns, 40 with headroom, 0 missing" in page
    assert "promoted, the fewest bytes a token first: fp8_e4m3 64" in page
    for limit in (
        "chance to hold a candidate that loses nothing, all reasons together: 0.01",
        "points that an unseen conversation may lose: 0",
        f"fresh epochs of flags of sampled replies: {made.document['policy']['confirm_epochs']}",
        "turns that may never drop: none",
        "rule: ",
    ):
        assert f"- {limit}" in page


def test_hostile_names_are_escaped(case: MakeCase, tmp_path: Path) -> None:
    made = case(9.0)
    candidate = made.document["candidates"][0]
    flag = {"confirmed": True, "fresh_drop": 9.0, "fresh_epochs": 4, "p": 0.1, "holm": 0.1, "q": 0.1, "listed": True}
    candidate["flagged_turns"][0] |= {**flag, "score": "<b>x</b>"}
    candidate["cautions"] = [{"about": "trend", "sentence": "<script>alert(1)</script> grows"}]
    part = {"name": "<img src=x>", "n_turns": 1, "n_conversations": 1, "mean_drop": 1, "ci_lower": None, "ci_upper": 2}
    candidate["classes"]["faq"]["scores"]["gl_reply"]["strata"] = [part]
    files = made.write(tmp_path)
    for name in ("report.md", "report.html"):
        body = files[name]
        assert "<script" not in body
        assert "<img" not in body
        assert "<b>x" not in body
        assert "flags put to a second test" in body
