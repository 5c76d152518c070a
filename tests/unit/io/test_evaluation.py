"""Flagged turns as rows of MLflow evaluations: the same in every arm, and no texts. What MLflow makes of them is in
``test_tracking``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kvquant_eval.core.codec import digest
from kvquant_eval.io import evaluation
from kvquant_eval.io.clock import Clock
from kvquant_eval.io.runcards import read_cards
from kvquant_eval.io.runtables import MOST_ROWS, worst_turns
from tests.fakes import decided

FLAGGED = "math-a/t01"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A held run, one of whose turns is flagged in two scores."""
    return decided.run("org/model", tmp_path / "run", decision="HOLD", drop=7.0)


def test_rows_are_the_same_turns_in_every_arm_and_have_no_texts(folder: Path) -> None:
    baseline, candidate = (card.rows for card in read_cards(folder, log_texts=False, evaluation=True))
    assert [row["inputs"] for row in baseline] == [row["inputs"] for row in candidate]
    (row,) = candidate
    prompt = digest([1, 2, 2])[:12]
    assert row["inputs"] == {"turn_id": FLAGGED, "class": "math", "turn_index": 0, "prompt_sha256": prompt}
    assert row["outputs"].startswith("ok, 34 characters, ")
    assert row["expectations"]["baseline_reply"] == baseline[0]["outputs"] != row["outputs"]
    assert row["scores"] == {"gl_reply": 70.0, "gl_span": 70.0}
    assert "alert" not in str((baseline, candidate))


def test_texts_go_along_where_they_are_asked_for(folder: Path) -> None:
    _, candidate = read_cards(folder, log_texts=True, evaluation=True)
    (row,) = candidate.rows
    assert row["outputs"] == "fp8 <script>alert(1)</script>\\x1b[2J|"
    assert row["expectations"]["baseline_reply"].startswith("baseline ")


def test_there_are_none_unless_asked_for(folder: Path) -> None:
    assert [card.rows for card in read_cards(folder, log_texts=True)] == [[], []]


def test_the_worst_turns_of_all_candidates_once_each() -> None:
    flags = [{"turn_id": f"t{n:03}", "drop": float(n)} for n in range(90)]
    candidates = [{"flagged_turns": flags[:60]}, {"flagged_turns": [*flags[40:], {"turn_id": "t001", "drop": 500.0}]}]
    found = worst_turns(candidates)
    assert len(found) == MOST_ROWS
    assert [flag["turn_id"] for flag in found[:3]] == ["t001", "t089", "t088"]


def test_time_that_is_up_stops_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "CHILD", "timeit")  # counts for seconds
    with pytest.raises(TimeoutError, match=r"tracking.timeout_s = 0.05 is over"):
        evaluation._evaluate({}, Clock("tracking.timeout_s", 0.05))
