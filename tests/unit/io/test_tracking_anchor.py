"""The hash of a signature at the registered version that it is about, on a real MLflow database."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from kvquant_eval.core.settings import TrackingSettings
from kvquant_eval.core.signoff import Signature
from kvquant_eval.io.tracking import TrackingError, anchor, anchored, log
from tests.fakes.mlstore import Corner
from tests.fakes.signed import TERMS, record, signature

NUMBERS = count(1)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('store')}/mlflow.db"


@pytest.fixture
def corner(database: str, tmp_path: Path) -> Corner:
    """Two runs of one model, logged."""
    made = Corner(database, next(NUMBERS))
    for name in ("one", "two"):
        log(made.run_folder(tmp_path, name), made.settings())
    return made


def signed(corner: Corner, **change: Any) -> Signature:
    made = signature(**{"run_id": "two", "terms": replace(TERMS, model=corner.model), **change})
    return record(made).signatures[0]


def tags(corner: Corner, version: int) -> dict[str, str]:
    found: list[tuple[Any, ...]] = corner.holds()["versions"]
    return next(each[3] for each in found if each[0] == version)


def test_the_version_of_the_run_is_tagged(corner: Corner) -> None:
    mine = signed(corner)
    assert anchored(corner.settings(), mine) is not None
    anchor(corner.settings(), mine)
    assert (tags(corner, 2)["signoff_sha256"], tags(corner, 2)["signed_by"]) == (mine.sha256, "Ada")
    assert "signoff_sha256" not in tags(corner, 1)
    found = anchored(corner.settings(), mine)
    assert found is not None
    assert (found["signoff_sha256"], found["kv_decision"]) == (mine.sha256, "PROMOTE")


def test_the_last_signature_counts(corner: Corner) -> None:
    anchor(corner.settings(), signed(corner))
    anchor(corner.settings(), signed(corner, by="Bo"))
    assert tags(corner, 2)["signed_by"] == "Bo"


@pytest.mark.parametrize("later", ["one", "two"])
def test_a_later_signature_is_known_though_it_is_of_another_run(corner: Corner, later: str) -> None:
    terms = replace(TERMS, model=corner.model)
    runs = ("one", later, "two")
    made = record(*(signature(run_id=run, terms=terms, by=by) for run, by in zip(runs, "ABC", strict=True)))
    for each in made.signatures:
        anchor(corner.settings(), each)
    *cut, last = [anchored(corner.settings(), each) for each in made.signatures]
    assert last is not None
    assert "signoff_followed_by" not in last
    for before, after in zip(cut, made.signatures[1:], strict=True):
        assert before is not None
        assert before["signoff_followed_by"] == after.sha256


def test_a_tag_moves_no_alias_and_a_relog_keeps_it(corner: Corner, tmp_path: Path) -> None:
    before = corner.holds()["aliases"]
    anchor(corner.settings(), signed(corner))
    log(tmp_path / "two", corner.settings())
    assert "signoff_sha256" in tags(corner, 2)
    assert corner.holds()["aliases"] == before


def test_a_version_that_a_later_log_adds_hides_no_anchor(corner: Corner, tmp_path: Path) -> None:
    mine = signed(corner)
    anchor(corner.settings(), mine)
    path = tmp_path / "two" / "decision.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "more": 1}))
    log(tmp_path / "two", corner.settings())
    assert "signoff_sha256" not in tags(corner, 3)
    found = anchored(corner.settings(), mine)
    assert found is not None
    assert found["signoff_sha256"] == mine.sha256
    anchor(corner.settings(), mine)
    assert tags(corner, 3)["signoff_sha256"] == mine.sha256


@pytest.mark.parametrize("change", [{"run_id": "three"}, {"candidate": "other"}])
def test_another_run_or_candidate_is_not_there(corner: Corner, change: dict[str, Any]) -> None:
    stranger = signed(corner, **change)
    assert anchored(corner.settings(), stranger) is None
    with pytest.raises(TrackingError, match=f"a registered version of run {stranger.run_id}, got none"):
        anchor(corner.settings(), stranger)


def test_another_model_is_not_there(corner: Corner) -> None:
    other = signed(corner, terms=replace(TERMS, model="org/nobody"))
    assert anchored(corner.settings(), other) is None


def test_a_database_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    where = TrackingSettings(uri=f"sqlite:///{tmp_path}/no.db", experiment="x")
    for ask in (anchor, anchored):
        with pytest.raises(TrackingError, match=r"got sqlite:///.*/no\.db \(no such database\)"):
            ask(where, record().signatures[0])
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    where = TrackingSettings(uri="http://user:secret@127.0.0.1:1", experiment="x")
    with pytest.raises(TrackingError, match="a store that answers") as caught:
        anchored(where, record().signatures[0])
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_time_that_is_over(corner: Corner) -> None:
    with pytest.raises(TrackingError, match="is over"):
        anchor(corner.settings(timeout_s=1e-9), signed(corner))
