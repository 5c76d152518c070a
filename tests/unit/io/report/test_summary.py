"""``summary.md``: the decision on one page without a word of any text."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from kvquant_eval.core.records import Outcome, Replay
from kvquant_eval.io.report import summary
from tests.unit.io.report.conftest import Case

MakeCase = Callable[..., Case]
SECRET = "the patient is Ada Lovelace"
MODEL = "acme/<b>tiny</b>_model"


def page(case: Case) -> str:
    return summary.render(case.document, case.judgement)


def test_decision_reasons_and_table_are_there_and_no_text_is(case: MakeCase, tmp_path: Path) -> None:
    made = case(9.0, reply=SECRET, model=MODEL)
    said = page(made)
    name = "acme/&lt;b&gt;tiny&lt;/b&gt;\\_model@r1 KV fp8_e4m3 (effective fp8_e4m3, native)"
    lines = said.splitlines()
    assert lines[0] == "# KV cache: HOLD"
    assert f"## HOLD: {name}" in lines
    assert "| class | verdict | score | turns | BF16 | candidate | drop | 95% bounds | drops/gains |" in lines
    assert "| math_chain | FAIL | gl_reply | 40 | 81.0 | 72.0 | +9.00 | [9.00, 9.00] | 40/0 |" in lines
    assert all(f"- {reason}" in said.replace("\\", "") for reason in made.document["candidates"][0]["reasons"])
    assert "Ada" not in said
    assert "five" not in said  # what the baseline replied
    assert SECRET in made.write(tmp_path)["report.md"]


def test_flags_are_ids_drops_and_hashes_the_worst_twenty(case: MakeCase) -> None:
    said = page(case(9.0, reply=SECRET))
    assert "- 80 turns drop over the threshold in 80 scores; the worst 20 are shown, decision.json has them all" in said
    rows = [line for line in said.splitlines() if line.startswith("| ") and "characters, " in line]
    mark = f"ok, {len(SECRET)} characters, {hashlib.sha256(SECRET.encode()).hexdigest()[:12]}"
    assert len(rows) == 20
    assert all(row.endswith(f"| {mark} |") and "| gl_reply | +9.00 | " in row for row in rows)


def test_one_row_a_turn_by_its_worst_score(case: MakeCase) -> None:
    made = case(9.0)
    (candidate,) = made.document["candidates"]
    worst, *_ = candidate["flagged_turns"]
    candidate["flagged_turns"] = [{**worst, "drop": 30.0, "confirmed": True}, {**worst, "drop": 5.0, "score": "other"}]
    said = page(made)
    assert "1 turns drop over the threshold in 2 scores" in said
    assert said.count(f"| {worst['turn_id']} |") == 1
    assert "| +30.00 |" in said
    assert "| yes |" in said


def test_an_arm_that_did_not_run_has_no_replies(case: MakeCase) -> None:
    said = page(case(run_candidate=False, error="the engine died"))
    assert said.startswith("# KV cache: INVALID\n")
    assert "0 turns drop over the threshold in 0 scores" in said


def test_marks_tell_replies_apart() -> None:
    replay = Replay(turn_id="a", measure="generated", epoch=0, outcome=Outcome.TRUNCATED, text="a\ud800")  # type: ignore[arg-type]
    assert summary.reply_mark(None) == "–"
    assert summary.reply_mark(replay).startswith("truncated, 2 characters, ")


def test_why_it_is_post_hoc(case: MakeCase) -> None:
    document = {**case().document, "post_hoc": True}
    said = [page(replace(case(), document={**document, **more})) for more in ({}, {"rescored": True})]
    assert "- post hoc: the policy is not the one hashed before the run; this decision moves no alias" in said[0]
    assert "- post hoc: the replies were scored again after it; this decision moves no alias" in said[1]


def test_turns_without_headroom_are_told_from_those_that_count(case: MakeCase) -> None:
    """Or more of them drop than there are."""
    made = case(9.0)
    made.document["candidates"][0]["classes"]["math_chain"]["scores"]["gl_reply"]["n_headroom"] = 30
    assert "| math_chain | FAIL | gl_reply | 30 of 40 | 81.0 | 72.0 | +9.00 | [9.00, 9.00] | 40/0 |" in page(made)


def test_many_reasons_are_counted(case: MakeCase) -> None:
    made = case(9.0)
    made.document["candidates"][0]["reasons"] = [f"reason {n}" for n in range(100)]
    said = page(made)
    assert "- reason 19\n- and 80 reasons more, in decision.json" in said
