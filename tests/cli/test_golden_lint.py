"""``kvquant-golden lint``: one line and a status for what cannot be looked at; integration tests have the rest."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from kvquant_eval.cli.golden import main
from kvquant_eval.core.codec import to_json
from kvquant_eval.core.lint.fault import Severity
from kvquant_eval.core.lint.rendering import Inspected, InspectedTurn
from kvquant_eval.core.policy import ScorePolicy, ScoreRole
from kvquant_eval.core.records import GoldenTurn
from kvquant_eval.core.scorers.code import Code
from kvquant_eval.core.scorers.likelihood import ReplyLikelihood
from kvquant_eval.core.settings import Settings
from kvquant_eval.io.child import EngineDied
from kvquant_eval.io.golden.manifest import read_manifest
from kvquant_eval.io.sandbox import Isolation
from kvquant_eval.lint import lint
from tests.fakes.engine import prepare
from tests.fakes.gate import settings, treatments, write_golden
from tests.fakes.records import golden_turn


def write(folder: Path, *lines: str) -> Path:
    (folder / "math_chain").mkdir(parents=True)
    (folder / "math_chain" / "set.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder


def asking(text: str) -> str:
    return to_json(golden_turn(messages=({"role": "user", "content": text},)))


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "{set}: <class>/*.jsonl files to read, got none; correct --path"),
        (["modle=x"], "modle: a known key, got 'modle'; did you mean 'model'?"),
        (["--config-dir", "/nowhere"], "--config-dir: a folder, got '/nowhere'; correct the path"),
    ],
)
def test_what_cannot_be_looked_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], line: str
) -> None:
    folder = tmp_path if not arguments else write(tmp_path / "set", asking("?"))
    assert main(["lint", "--path", str(folder), *arguments]) == 2
    assert capsys.readouterr().err == f"kvquant-golden: {line.format(set=folder)}\n"


def test_a_child_that_dies(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(*_: object) -> None:
        raise EngineDied("engine, during prepare: killed")

    monkeypatch.setattr("kvquant_eval.lint.inspect", dies)
    assert main(["lint", "--path", str(write(tmp_path / "set", asking("?")))]) == 5
    assert capsys.readouterr().err == "kvquant-golden: engine, during prepare: killed\n"


def test_an_interrupted_lint_says_so(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "kvquant_eval.cli.golden",
        "lint",
        "--path",
        str(write(tmp_path / "set", asking("?"))),
    ]
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    deadline = time.monotonic() + 60
    while process.poll() is None and not _children(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "kvquant-golden: interrupted\n")


def _children(pid: int) -> bool:
    return bool(Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


def test_a_set_without_its_secrets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = write(tmp_path / "set", asking("I am jo@acme.com")), tmp_path / "clean"
    assert main(["lint", "--path", str(source), "--redact", str(target)]) == 0
    assert capsys.readouterr().out == f"1 secrets replaced in 1 turns; pinned in {target}/MANIFEST.json\n"
    assert read_manifest(target).name == "clean"
    [line] = (target / "math_chain" / "set.jsonl").read_text().splitlines()
    assert json.loads(line)["messages"][0]["content"] == "I am <EMAIL_1>"
    assert main(["lint", "--path", str(source), "--redact", str(target)]) == 2
    assert capsys.readouterr().err == f"kvquant-golden: {target}: a new folder, got one that is there; choose another\n"


def test_a_broken_set_is_not_redacted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "set", "{")
    assert main(["lint", "--path", str(source), "--redact", str(tmp_path / "clean")]) == 2
    assert capsys.readouterr().err.startswith(f"kvquant-golden: {source}/math_chain/set.jsonl:1:2: JSON, got ")
    assert not (tmp_path / "clean").exists()


def test_where_code_may_not_be_executed_lint_says_so_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def inspect(given: Settings, turns: Sequence[GoldenTurn], log: Path) -> Inspected:
        prepared = prepare(given.model, turns, {}, log, ())
        return Inspected(context=4096, turns=tuple(InspectedTurn(rendered=turn) for turn in prepared.turns))

    monkeypatch.setattr("kvquant_eval.lint.inspect", inspect)
    monkeypatch.setattr("kvquant_eval.evidence.find_isolation", lambda: Isolation(bubblewrap="", weakness="no bwrap"))
    scores = {name: ScorePolicy(role=ScoreRole.GATE, margin=2.0) for name in ("gl_reply", "code")}
    made = settings(tmp_path, treatments("good"))
    scorers = {**made.scorers, "faq": {"gl_reply": ReplyLikelihood(), "code": Code()}}
    policy = replace(made.policy, scores={**made.policy.scores, "faq": scores})
    report = lint(replace(made, policy=policy, scorers=scorers), write_golden(tmp_path / "golden"), tmp_path / "log")
    text = (
        "strong isolation to try faq.code, got none (no bwrap); "
        "install bubblewrap, or set scorer.code.allow_execution=true, which README.md explains"
    )
    said = [fault for fault in report.faults if "code" in fault.text]
    assert [(fault.severity, fault.check, fault.text) for fault in said] == [(Severity.WARNING, "execution", text)]
