"""Whole gates on the fake engine whose replies a judge grades, behind a local endpoint: sound, noisy and down."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from kvquant_eval.cli.main import main
from kvquant_eval.io import judge_client, report
from kvquant_eval.io.runfolder import RunFolder
from tests.fakes.cli import arguments
from tests.fakes.judge_server import Behave, Handler, JudgeServer, Request, shown

WRITE = report.write
KEY = "sk-very-secret-0123456789"
Said = tuple[int, str]


@pytest.fixture(scope="module", autouse=True)
def _quick() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judge_client, "FIRST_PAUSE_S", 0.01)
        patch.setattr(report, "write", lambda *_: None)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Arms are run once for all tests here."""
    return tmp_path_factory.mktemp("judged")


@pytest.fixture
def gate(folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, RunFolder]]:
    def run(url: str, *overrides: str, role: str = "report") -> tuple[int, str, RunFolder]:
        capsys.readouterr()
        given = [*arguments(folder, "gate.allow_underpowered=true", *overrides), *judged(url, role)]
        status = main(given)
        return status, capsys.readouterr().err, RunFolder(max((folder / "runs").iterdir(), key=made))

    return run


def made(run: Path) -> float:
    return (run / "lock").stat().st_mtime_ns


def judged(url: str, role: str, margin: float = 5.0) -> list[str]:
    return [
        "+scorer@workloads.faq.scores.judge.scorer=judge",
        f"+workloads.faq.scores.judge={{role:{role},margin:{margin},flag_over:2.0}}",
        f"scorer.judge.url={url}",
        "scorer.judge.model=judge-1",
        "scorer.judge.retries=1",
    ]


def document(run: RunFolder) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((run.path / "decision.json").read_text())
    return data


def judge_score(run: RunFolder) -> dict[str, Any]:
    score: dict[str, Any] = document(run)["candidates"][0]["classes"]["faq"]["scores"]["judge"]
    return score


def steady(handler: Handler, request: Request, _: int) -> None:
    """99 points for a price of the golden set's form, less for anything else."""
    handler.say(json.dumps({letter: 99 if "euros" in text else 40 for letter, text in shown(request).items()}))


def moody(spread: int) -> Behave:
    """Points of no relation to the answers, never twice the same."""
    chance = random.Random(0)

    def behave(handler: Handler, request: Request, _: int) -> None:
        handler.say(json.dumps({letter: 50 + chance.randint(-spread, spread) for letter in shown(request)}))

    return behave


def broken(handler: Handler, *_: Any) -> None:
    handler.reply(b"out of order", 500)


def test_a_judged_gate_decides_and_is_decided_again_without_its_judge(
    gate: Callable[..., tuple[int, str, RunFolder]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", KEY)
    monkeypatch.setattr(report, "write", WRITE)
    with JudgeServer(steady) as server:
        status, said, run = gate(server.url, "scorer.judge.api_key_env=JUDGE_KEY", role="gate")
    assert (status, said) == (0, "")
    score = judge_score(run)
    assert (score["baseline_mean"], score["candidate_mean"], score["mean_drop"]) == (99.0, 99.0, 0.0)
    assert score["noise"] == {"who": "judge-1", "n": 20, "mean_difference": 0.0, "share_over": 0.0}
    asked = {json.dumps(request) for request in server.requests}
    assert len(server.requests) == len(asked) + 20
    assert len(asked) < 30  # equal replies of the arms are one question
    assert "differs from itself by 0.00 points on average over 20 questions" in (run.path / "report.md").read_text()
    assert not [file for file in run.path.rglob("*") if file.is_file() and KEY.encode() in file.read_bytes()]
    monkeypatch.delenv("JUDGE_KEY")
    copied = RunFolder(tmp_path / run.run_id)
    shutil.copytree(run.path, copied.path)
    assert main(["regate", str(copied.path)]) == 0
    own = ("created_at", "attempts")
    assert {k: v for k, v in document(copied).items() if k not in own} == {
        k: v for k, v in document(run).items() if k not in own
    }


@pytest.mark.parametrize("role", ["gate", "bound", "report"])
def test_a_noisy_judge_settles_nothing(role: str, gate: Callable[..., tuple[int, str, RunFolder]]) -> None:
    with JudgeServer(moody(50)) as server:
        status, _, run = gate(server.url, role=role)
    reasons = " | ".join(document(run)["reasons"])
    assert judge_score(run)["noise"]["mean_difference"] > 5
    assert status == (4 if role == "gate" else 0)
    assert ("faq: judge: judge-1 differs from itself by " in reasons) == (role != "report")


def test_an_endpoint_that_is_down_is_no_evidence_and_never_0(gate: Callable[..., tuple[int, str, RunFolder]]) -> None:
    with JudgeServer() as gone:
        url = gone.url
    status, _, run = gate(url, role="gate")
    assert status == 4
    (reason,) = [reason for reason in document(run)["reasons"] if "without a pair" in reason]
    assert "20 turns without a pair of scores, such as faq-00/0 (baseline: infra_error, judge: " in reason
    assert "Connection refused" in reason
    scores = pd.read_parquet(run.path / "turns.parquet")
    judged = scores[scores["scorer"] == "judge"]
    assert len(judged) == 80
    assert set(judged["outcome"]) == {"infra_error"}
    assert judged["points"].isna().all()


def test_an_endpoint_that_fails_is_asked_again_when_the_gate_goes_on(
    gate: Callable[..., tuple[int, str, RunFolder]], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate ends before its tracking, as when it is killed there."""
    with JudgeServer(broken) as server:
        with monkeypatch.context() as patch:
            patch.setattr("kvquant_eval.pipeline.track", lambda *_: ())
            status, _, run = gate(server.url)
        assert status == 4
        assert "infra_error, judge: status 500 (out of order)" in " | ".join(document(run)["reasons"])
        server.behave = steady
        assert main(["gate", f"resume={run.path}"]) == 0
        assert judge_score(run)["candidate_mean"] == 99.0
        count = len(server.requests)
        (run.path / "tracking.json").unlink()
        assert main(["gate", f"resume={run.path}"]) == 0
        assert len(server.requests) == count


def test_a_report_role_of_a_dead_judge_leaves_the_class_open(gate: Callable[..., tuple[int, str, RunFolder]]) -> None:
    """A missing pair is missing evidence, whatever the role."""
    with JudgeServer() as gone:
        url = gone.url
    assert gate(url)[0] == 4


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (
            ["scorer.judge.url=''"],
            "scorer.judge.url: a value for workloads.faq.scores.judge, got none; set it, or leave the score out",
        ),
        (
            ["scorer.judge.model=''"],
            "scorer.judge.model: a value for workloads.faq.scores.judge, got none; set it, or leave the score out",
        ),
        (
            ["scorer.judge.api_key_env=NOT_SET"],
            "scorer.judge.api_key_env: the name of a variable that is set, got one that is not; export it",
        ),
    ],
)
def test_a_judge_that_is_not_set_up_is_refused_before_an_engine_starts(
    overrides: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = [item.partition("=")[0] for item in overrides]
    given = [item for item in judged("http://127.0.0.1:9/v1", "report") if item.partition("=")[0] not in keys]
    assert main([*arguments(tmp_path), *given, *overrides]) == 2
    assert capsys.readouterr().err == f"kvquant-eval: {line}\n"
    assert not (tmp_path / "runs").exists()
