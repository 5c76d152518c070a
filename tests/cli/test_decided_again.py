"""`regate` and `rescore` as commands, on a judged gate of the fake engine: what they write, and where."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvquant_eval.cli.main import main
from kvquant_eval.io import judge_client, report
from tests.fakes.cli import arguments
from tests.fakes.judge_server import Handler, JudgeServer, Request, shown

SCORE = ("+scorer@workloads.faq.scores.judge.scorer=judge", "+workloads.faq.scores.judge={role: report, margin: 50.0}")
REPORTS = {"report.md", "report.html", "junit.xml"}


def grade(points: int) -> Callable[[Handler, Request, int], None]:
    """A judge that gives every answer the same."""
    return lambda handler, request, _: handler.say(json.dumps(dict.fromkeys(shown(request), points)))


@pytest.fixture(scope="module")
def server() -> Iterator[JudgeServer]:
    with pytest.MonkeyPatch.context() as patch, JudgeServer(grade(90)) as server:
        patch.setattr(judge_client, "FIRST_PAUSE_S", 0.01)
        yield server


@pytest.fixture(scope="module")
def gated(server: JudgeServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gated")
    judge = (f"scorer.judge.url={server.url}", "scorer.judge.model=judge-1", "scorer.judge.retries=0")
    assert main([*arguments(folder, "gate.allow_underpowered=true"), *SCORE, *judge]) == 0
    (run,) = (folder / "runs").iterdir()
    return run


@pytest.fixture
def run(gated: Path, server: JudgeServer, tmp_path: Path) -> Path:
    """A copy of the run, elsewhere; the judge is as it was."""
    server.behave = grade(90)
    server.requests.clear()
    return Path(shutil.copytree(gated, tmp_path / gated.name))


@pytest.fixture
def _undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports take longer to draw than all the rest."""
    monkeypatch.setattr(report, "write", lambda *_: None)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def decision(folder: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((folder / "decision.json").read_text())
    return data


def afterwards(run: Path) -> Path:
    """The one folder of what was decided afterwards."""
    (folder,) = (run / "post_hoc").iterdir()
    return folder


def test_the_same_policy_is_the_same_bytes(run: Path, gated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of every file, also when the policy is said again."""
    for overrides in ([], ["gate.min_turns=30", "gate=default", "gate.min_headroom=10", "gate.largest_break=0"]):
        assert main(["regate", str(run), *overrides]) == 0
        assert contents(run) == contents(gated)
    out = capsys.readouterr().out
    assert "POST HOC" not in out
    assert "PROMOTE (exit status 0)" in out


def test_another_policy_stands_beside_the_runs_own(run: Path, gated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """200 turns are more than there are."""
    assert main(["regate", str(run), "gate=strict"]) == 4
    said = capsys.readouterr().out
    assert "POST HOC: policy strict " in said
    made, document = afterwards(run), decision(afterwards(run))
    assert (document["decision"], document["post_hoc"], document["run_id"]) == ("INCONCLUSIVE", True, run.name)
    assert (document["power"], decision(run)["power"]) == (None, decision(gated)["power"])
    assert decision(run)["power"]
    assert "rescored" not in document
    assert made.name == f"strict-{document['policy']['sha256'][:8]}"
    assert f"report: {made / 'report.md'}" in said
    assert {path.name for path in made.iterdir()} >= {"config.yaml", "turns.parquet", "deltas.parquet", *REPORTS}
    files = contents(run)
    assert {name: files[name] for name in contents(gated)} == contents(gated)
    assert main(["regate", str(run), "gate=strict"]) == 4
    assert contents(run) == files
    capsys.readouterr()
    assert main(["regate", str(made)]) == 2
    assert capsys.readouterr().err.endswith(f"got one of what was decided afterwards; name {run}\n")


def test_a_refused_override_leaves_the_folder_alone(run: Path, gated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("regate", "rescore"):
        assert main([verb, str(run), "sampling.seed=1"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(",")[2] for line in lines] == [" got one that needs new replays; gate with it"] * 2
    assert contents(run) == contents(gated)


@pytest.mark.usefixtures("_undrawn")
def test_the_same_answers_are_the_runs_own_decision(
    run: Path, gated: Path, server: JudgeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rescore", str(run)]) == 0
    asked = (gated / "answers.jsonl").read_text().splitlines()
    assert len(server.requests) == len(asked) > 20, "everything was asked anew"
    assert contents(run) == contents(gated)
    assert not (run / "post_hoc").exists()
    assert capsys.readouterr().out.endswith(
        "the same answers, scores and decision as the run's own: nothing is written\n"
    )


@pytest.mark.usefixtures("_undrawn")
def test_other_answers_are_another_decision(
    run: Path, gated: Path, server: JudgeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the policy that was hashed before the run, and post hoc all the same."""
    server.behave = grade(70)
    assert main(["rescore", str(run)]) == 0
    assert "POST HOC: scored again after the run, by policy default " in capsys.readouterr().out
    made, document, own = afterwards(run), decision(afterwards(run)), decision(gated)
    assert (document["post_hoc"], document["rescored"]) == (True, True)
    assert document["policy"] == own["policy"]
    means = [each["candidates"][0]["classes"]["faq"]["scores"]["judge"]["baseline_mean"] for each in (own, document)]
    assert means == [90.0, 70.0]
    answers = [json.loads(line) for line in (made / "answers.jsonl").read_text().splitlines()]
    assert [each["key"] for each in answers] == sorted(each["key"] for each in answers)
    assert {each["answer"]["A"] for each in answers} == {70}
    files = contents(run)
    assert {name: files[name] for name in contents(gated)} == contents(gated)
    assert main(["rescore", str(run)]) == 0
    assert contents(run) == files
    server.behave = grade(60)
    assert main(["rescore", str(run)]) == 0
    assert len(list((run / "post_hoc").iterdir())) == 2, "no answer takes the place of another"
    assert main(["regate", str(run)]) == 0
    assert decision(run) == own, "the run's own answers decide about it"


@pytest.mark.usefixtures("_undrawn")
def test_questions_that_failed_are_asked_again_and_no_others(run: Path, server: JudgeServer) -> None:
    def failing(handler: Handler, request: Request, number: int) -> None:
        if number % 2:
            handler.reply(b"out of order", 500)
        else:
            grade(80)(handler, request, number)

    server.behave = failing
    assert main(["rescore", str(run), "scorer.judge.at_once=1"]) == 4
    total, server.behave = len(server.requests), grade(80)
    server.requests.clear()
    assert main(["rescore", str(run), "scorer.judge.at_once=1"]) == 0
    assert len(server.requests) == total // 2
    assert sorted(path.name.split("-")[0] for path in (run / "post_hoc").iterdir()) == ["default", "default"]


@pytest.mark.usefixtures("_undrawn")
def test_a_score_more_needs_no_engine(run: Path, gated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    added = ("+scorer@workloads.faq.scores.f1.scorer=token_f1", "+workloads.faq.scores.f1={role: report, margin: 5.0}")
    assert main(["rescore", str(run), *added]) == 0
    (found,) = decision(afterwards(run))["candidates"]
    assert set(found["classes"]["faq"]["scores"]) == {"gl_reply", "gl_span", "match", "token_f1", "judge", "f1"}
    means = [found["classes"]["faq"]["scores"][name]["baseline_mean"] for name in ("f1", "token_f1")]
    assert means[0] == means[1] > 0
    capsys.readouterr()
    assert main(["rescore", str(run), "scorer.judge.url=''"]) == 2
    line = "scorer.judge.url: a value for workloads.faq.scores.judge, got none; set it, or leave the score out"
    assert capsys.readouterr().err == f"kvquant-eval: {line}\n"
