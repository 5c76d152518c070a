"""A verb inside a GitHub job: annotations, summary, outputs, and no workflow command that a model wrote."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvquant_eval.cli import github, main, terminal
from kvquant_eval.core.records import Decision
from tests.fakes import decided
from tests.fakes.runner import executed, outputs

MODEL = "acme/tiny"
NAME = f"{MODEL}@r1 KV fp8_e4m3 (effective fp8_e4m3, native), candidate fp8"
HOSTILE = ("::add-mask::a", "  ::stop-commands::x", "x ##[error]owned", "::set-output name=decision::PROMOTE", "::x::")


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job's folder: ``out`` and ``page`` are the files of outputs and summary."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "out"))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "page"))
    (tmp_path / "summary.md").write_text("# the page\n")
    return tmp_path


def concluded(folder: Path, monkeypatch: pytest.MonkeyPatch, warnings: tuple[str, ...] = (), **change: Any) -> int:
    """``conclude`` over a decision as ``main`` calls it, with hostile lines where the table stands."""
    document = decided.document(MODEL, "run", **change)
    document["candidates"][0]["reasons"] = ["math: 50%, so:\nworse", "faq: too"]
    run = SimpleNamespace(
        document=document,
        folder=SimpleNamespace(path=folder),
        warnings=warnings,
        judgement=SimpleNamespace(decision=Decision(document["decision"])),
    )
    monkeypatch.setattr(terminal, "show", lambda *_: sys.stdout.write("\n".join([*HOSTILE, ""])))
    monkeypatch.setattr(main, "_status", lambda _: terminal.conclude(run))  # type: ignore[arg-type]
    return main.main(["gate"])


@pytest.mark.parametrize(
    ("decision", "level"),
    [("PROMOTE", "notice"), ("HOLD", "error"), ("INCONCLUSIVE", "warning"), ("INVALID", "error")],
)
def test_a_decision_is_one_annotation_a_candidate(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], decision: str, level: str
) -> None:
    assert concluded(job, monkeypatch, decision=decision) == Decision(decision).exit_code
    said = executed(capsys.readouterr().out)
    assert said == [(level, f"{decision}: {NAME}", "math: 50%, so:\nworse (and 1 more below)")]


def test_titles_and_messages_are_escaped(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    concluded(job, monkeypatch)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("::notice")]
    title = f"PROMOTE%3A {NAME}".replace(",", "%2C")
    assert line == f"::notice title={title}::math: 50%25, so:%0Aworse (and 1 more below)"


def test_summary_and_outputs_are_appended(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (job / "out").write_text("before=1\n")
    (job / "page").write_text("before\n")
    concluded(job, monkeypatch, decision="HOLD")
    assert (job / "page").read_text() == "before\n# the page\n\n"
    assert outputs((job / "out").read_text().splitlines()) == {
        "before": "1",
        "decision": "HOLD",
        "exit-code": "0",  # the fake document's own
        "run-dir": str(job),
        "report": f"{job}/report.html",
        "summary": f"{job}/summary.md",
        "junit": f"{job}/junit.xml",
    }


def test_a_folder_with_a_line_feed_sets_no_other_output(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = job / "a\ndecision=PROMOTE"
    folder.mkdir()
    concluded(folder, monkeypatch, decision="HOLD")
    found = outputs((job / "out").read_text().splitlines())
    assert (found["decision"], found["run-dir"]) == ("HOLD", str(folder))


def test_files_that_cannot_be_written_are_warnings(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GITHUB_OUTPUT", str(job / "nowhere" / "out"))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(job))
    assert concluded(job, monkeypatch, decision="HOLD") == 3
    out, err = capsys.readouterr()
    assert [line.split(":")[1].strip() for line in err.splitlines()] == ["GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT"]
    assert [command for command, *_ in executed(out)] == ["error", "warning", "warning"]


def test_a_summary_that_is_gone_is_a_warning(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (job / "summary.md").unlink()
    (line,) = github.tell(decided.document(MODEL, "run"), job)
    assert line.endswith("summary.md (No such file or directory); the decision stands")


def test_warnings_and_errors_are_annotated(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    concluded(job, monkeypatch, warnings=("tracking.uri: down",))
    assert executed(capsys.readouterr().out)[1:] == [("warning", "kvquant-eval", "tracking.uri: down")]


def test_bad_input_is_annotated(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["gate", "kv=[]"]) == 2
    out, err = capsys.readouterr()
    assert executed(out) == [("error", "kvquant-eval", err.strip().removeprefix("kvquant-eval: "))]
    assert not (job / "out").exists()


def test_at_most_ten_annotations_of_decisions(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = decided.document(MODEL, "run")
    document["candidates"] *= 30
    with github.commands_stopped():
        github.tell(document, job)
    assert len(executed(capsys.readouterr().out)) == github.MOST


@pytest.mark.parametrize("text", HOSTILE)
def test_no_line_of_a_model_is_a_command(job: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    with github.commands_stopped():
        sys.stdout.write(f"{text}\n")
        github.annotate("error", text, f"a\n{text}")
        sys.stdout.write(f"{text}\n")
    out = capsys.readouterr().out
    assert executed(out) == [("error", text, f"a\n{text}")]
    assert executed(f"{out}::notice::after") == [("error", text, f"a\n{text}"), ("notice", "", "after")]


@pytest.mark.parametrize("text", HOSTILE)
def test_no_line_on_standard_error_is_a_command(capsys: pytest.CaptureFixture[str], text: str) -> None:
    terminal.say(text)
    assert executed(capsys.readouterr().err) == []


def test_every_stop_has_a_token_of_its_own(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with github.commands_stopped():
        github.annotate("notice", "a", "b")
    tokens = [line.rpartition("::")[2] for line in capsys.readouterr().out.splitlines() if "stop-commands" in line]
    assert len({*tokens}) == 2
    assert all(len(token) == 32 for token in tokens)


@pytest.mark.parametrize("arguments", [["gate", "--cfg"], ["--version"]])
def test_what_programs_read_is_left_alone(job: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    with contextlib.suppress(SystemExit):
        main.main(arguments)
    assert "::" not in capsys.readouterr().out


def test_elsewhere_nothing_is_said_or_written(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("GITHUB_ACTIONS", "GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name)
    concluded(job, monkeypatch, decision="HOLD")
    assert capsys.readouterr().out.splitlines() == list(HOSTILE)
    assert sorted(path.name for path in job.iterdir()) == ["summary.md"]
