"""The flagged turns: in which order they are read, what stands beside them, and how much of long replies is kept."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvquant_eval.core.records import Measure
from kvquant_eval.io.report.blocks import Facts, Section, Sides, Table
from kvquant_eval.io.report.turns import MOST_LISTED, MOST_TURNS, flagged_sections

MakeCase = Callable[..., Any]


def sections(case: Any, **policy: Any) -> list[Section]:
    (candidate,) = case.document["candidates"]
    rules = {**case.document["policy"], **policy}
    return flagged_sections(candidate, "acme/tiny KV fp8", "BF16", case.judgement, case.golden, case.prepared, rules)


def with_replies(case: Any, arm: str, **changes: Any) -> Any:
    """The case with all generated (or, for ``logprobs``, forced) replays of an arm changed."""
    measure = Measure.FORCED if "logprobs" in changes else Measure.GENERATED
    record = case.judgement.arms[arm]
    replays = tuple(replace(r, **changes) if r.measure is measure else r for r in record.replays)
    arms = {**case.judgement.arms, arm: replace(record, replays=replays)}
    return replace(case, judgement=replace(case.judgement, arms=arms))


def facts(section: Section) -> dict[str, str]:
    return {name: value for block in section.blocks if isinstance(block, Facts) for name, value in block.rows}


def test_the_hardest_class_and_critical_turns_come_first(case: MakeCase) -> None:
    made = case(9.0)
    shown = sections(made, critical_turns=["faq-7/t2"])[1:]
    assert len(shown) == MOST_TURNS
    assert {section.title.split("-")[0] for section in shown} == {"faq", "math_chain"}
    assert [section.title for section in shown if section.title.startswith("faq")] == ["faq-7/t2"]


def test_then_what_is_confirmed_then_what_is_raw(case: MakeCase) -> None:
    made = case(9.0)
    flags = made.document["candidates"][0]["flagged_turns"]
    hard = [flag for flag in flags if flag["class"] == "math_chain"]
    hard[5] |= {"confirmed": True}
    hard[0] |= {"confirmed": False}
    listed = next(block for block in sections(made)[0].blocks if isinstance(block, Table))
    assert listed.rows[0][0] == hard[5]["turn_id"]
    assert listed.rows[0][-1] == "confirmed"
    assert [row[0] for row in listed.rows].index(hard[0]["turn_id"]) == 39  # the last of its class
    assert len(listed.rows) == MOST_LISTED


def test_a_list_names_place_drop_and_placebo(case: MakeCase) -> None:
    listed = next(block for block in sections(case(9.0))[0].blocks if isinstance(block, Table))
    turn, workload, scores, index, context, drop, placebo, flag = listed.rows[0]
    assert re.fullmatch(r"math_chain-\d+/t\d", turn)
    assert (workload, scores, context, drop, placebo, flag) == (
        "math_chain", "gl_reply", "3", "+9.00", "+0.00", "raw",
    )  # fmt: skip
    assert turn.endswith(f"/t{index}")


def test_replies_stand_side_by_side_with_differing_words_marked(case: MakeCase) -> None:
    made = with_replies(case(9.0), "baseline", text="Step 1: 3 + 2 = 5")
    made = with_replies(made, "fp8_e4m3", text="Step 1: 3 + 2 = 6")
    shown = sections(made)[1]
    (sides,) = (block for block in shown.blocks if isinstance(block, Sides))
    labels, pieces = zip(*sides.rows, strict=True)
    assert labels == ("golden reply", "BF16 reply", "candidate reply")
    assert pieces[1] == (("Step 1: 3 + 2 = ", False), ("5", True))
    assert pieces[2] == (("Step 1: 3 + 2 = ", False), ("6", True))
    tables = [block for block in shown.blocks if isinstance(block, Table)]
    assert tables[1].rows == (("Step 1: 3 + 2 = ", "5", "6"),)


def test_replies_and_explanations_are_those_of_the_first_epoch(case: MakeCase) -> None:
    made = case(9.0)
    record = made.judgement.arms["fp8_e4m3"]
    later = tuple(replace(r, epoch=1, text="later") for r in record.replays)
    scores = made.judgement.scores["fp8_e4m3"]
    said = (*scores, *(replace(s, epoch=1, explanation="later") for s in scores))
    judgement = replace(
        made.judgement,
        arms={**made.judgement.arms, "fp8_e4m3": replace(record, replays=(*record.replays, *later))},
        scores={**made.judgement.scores, "fp8_e4m3": said},
    )
    assert "later" not in repr(sections(replace(made, judgement=judgement)))


def test_equal_replies_have_no_mark_and_no_parting(case: MakeCase) -> None:
    made = with_replies(with_replies(case(9.0), "baseline", text="same"), "fp8_e4m3", text="same")
    shown = sections(made)[1]
    assert [type(block) for block in shown.blocks].count(Table) == 1
    (sides,) = (block for block in shown.blocks if isinstance(block, Sides))
    assert not any(differs for _, pieces in sides.rows for _, differs in pieces)


@pytest.mark.parametrize(
    ("base", "other", "said"),
    [
        (
            (-0.1, -0.2, -0.3),
            (-0.1, -1.7, -0.2),
            "position 1 (from 0) loses the most, +1.500 nats of +1.400 over all 3",
        ),
        ((-0.1,), (-0.1, -0.2), "not scored in both arms"),
        ((), (), "not scored in both arms"),
        ((-0.1,), (-math.inf,), "a token has no probability at all"),
    ],
)
def test_the_golden_token_that_loses_the_most_is_named(
    case: MakeCase, base: tuple[float, ...], other: tuple[float, ...], said: str
) -> None:
    made = with_replies(with_replies(case(9.0), "baseline", logprobs=base), "fp8_e4m3", logprobs=other)
    assert facts(sections(made)[1])["golden reply, forced"].startswith(said)


def test_a_loop_keeps_both_ends(case: MakeCase, tmp_path: Path) -> None:
    made = with_replies(case(9.0), "fp8_e4m3", text="again and " * 5000)
    files = made.write(tmp_path)
    for name in ("report.html", "report.md"):
        assert "[… 48,600 characters left out …]" in files[name]
        assert len(files[name]) < 400_000


def test_no_flag_is_one_sentence(case: MakeCase) -> None:
    made = copy.deepcopy(case(9.0))
    made.document["candidates"][0]["flagged_turns"] = []
    (only,) = sections(made)
    assert only.blocks[0].rows == ("no turn drops over the threshold",)  # type: ignore[union-attr]
