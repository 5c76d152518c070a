"""``kvquant-eval sign`` on runs of the fake engine."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvquant_eval.cli.main import main
from kvquant_eval.core.signoff import Record, faults
from kvquant_eval.io import report, signoffs
from kvquant_eval.io.runfolder import OWN_FILES
from tests.fakes.cli import arguments

GOOD, HELD = "fp8_e4m3", "fp8_e5m2"
WRITE = report.write


@pytest.fixture(scope="module", autouse=True)
def _without_reports() -> Iterator[None]:
    """Drawing them takes longer than all the rest here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "write", lambda *_, **__: None)
        yield


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a candidate that is promoted and one that is held, in MLflow."""
    folder = tmp_path_factory.mktemp("gate")
    asked = [f"kv=[{GOOD},{HELD}]", f"engine.args.faults={{{HELD}: drops_math_chain}}", "model.revision=r1"]
    database = [f"tracking.uri=sqlite:///{folder}/mlflow.db", "tracking=mlflow", "gate.allow_underpowered=true"]
    assert main(arguments(folder, *asked, *database)) == 3
    (run,) = (folder / "runs").iterdir()
    return run


@pytest.fixture
def run(decided: Path, tmp_path: Path) -> Path:
    """A copy, which logs nowhere."""
    copied = tmp_path / "runs" / decided.name
    shutil.copytree(decided, copied)
    configure(copied, tracking={"uri": ""})
    return copied


def configure(run: Path, **change: Any) -> None:
    path = run / "config.yaml"
    config = yaml.safe_load(path.read_text())
    for section, values in change.items():
        config[section].update(values)
    path.write_text(yaml.safe_dump(config, sort_keys=False))


def sign(run: Path, *options: str, by: str = "Ada Lovelace") -> int:
    return main(["sign", str(run), "--by", by, "--into", str(run.parents[1] / "signoff"), *options])


def record(run: Path) -> Record:
    (path,) = (run.parents[1] / "signoff").glob("*.json")
    return signoffs.read(path.read_bytes(), path)


def test_a_promoted_candidate_is_signed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in run.iterdir() if path.is_file()}
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).date()
    assert sign(run, "--candidate", GOOD, "--expires", str(tomorrow), "--note", "staging") == 0
    out, err = capsys.readouterr()
    made = record(run)
    (signed,) = made.signatures
    assert not list(faults(made))
    assert (signed.by, signed.expires, signed.note, signed.override) == ("Ada Lovelace", tomorrow, "staging", None)
    assert (signed.decision, signed.candidate, signed.run_id) == ("PROMOTE", GOOD, run.name)
    assert signed.decision_sha256 == sha256(before[run / "decision.json"]).hexdigest()
    assert (made.revision, made.kv_dtype) == ("r1", GOOD)
    (path,) = (run.parents[1] / "signoff").glob("*.json")
    assert path.name == f"HuggingFaceTB--SmolLM2-135M-Instruct--r1--{GOOD}.json"
    assert out.splitlines()[-3:] == [
        f"sign-off: {path}",
        f"page: {path.with_suffix('.md')}",
        f"sha256: {signed.sha256}",
    ]
    assert err == ""
    assert json.loads((run / "signoff.json").read_text())["signatures"][0]["sha256"] == signed.sha256
    after = {path: path.read_bytes() for path in run.iterdir() if path.is_file() and path.name != "signoff.json"}
    assert after == before
    assert {path.name for path in run.iterdir()} <= OWN_FILES


def test_what_is_not_promoted_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sign(run, "--candidate", HELD) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"{HELD}: only PROMOTE is signed, got HOLD; to sign it all the same: --override REASON")
    assert not (run / "signoff.json").exists()
    assert not (run.parents[1] / "signoff").exists()


def test_an_override_stands_in_plain_sight(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sign(run, "--candidate", HELD, "--override", "a pilot of 1%") == 0
    assert "HOLD, by Ada Lovelace OVERRIDE: a pilot of 1%" in capsys.readouterr().out
    assert record(run).signatures[0].override == "a pilot of 1%"
    (page,) = (run.parents[1] / "signoff").glob("*.md")
    assert "- **OVERRIDE**: a pilot of 1%" in page.read_text().split("##")[0]


def test_a_policy_that_was_changed_afterwards_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configure(run, gate={"require": [GOOD]})
    assert sign(run, "--candidate", GOOD) == 2
    assert "got another 'decision', 'exit_code', 'identity_sha256', 'policy', 'post_hoc'" in capsys.readouterr().err


def test_what_was_decided_afterwards_is_not_signed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["regate", str(run), f"gate.require=[{GOOD}]"]) == 0
    (beside,) = (run / "post_hoc").iterdir()
    capsys.readouterr()
    assert sign(beside, "--candidate", GOOD) == 2
    assert "the folder of a run, got one of what was decided afterwards" in capsys.readouterr().err
    assert sign(run, "--candidate", GOOD) == 0


@pytest.mark.parametrize(
    ("options", "needle"),
    [
        ([], f"--candidate: one of 2, got none; name one of {GOOD} (PROMOTE), {HELD} (HOLD)"),
        (["--candidate", "fp8_e4m4"], f"--candidate: one of the run's, got 'fp8_e4m4'; did you mean '{GOOD}'?"),
        (["--candidate", GOOD, "--expires", "soon"], "--expires: a date, got 'soon'; write it as 2027-03-31"),
        (["--candidate", GOOD, "--expires", "20991231"], "--expires: a date, got '20991231'"),
        (["--candidate", GOOD, "--expires", "2020-01-01"], "--expires: today (UTC) or later, got 2020-01-01"),
        (["--candidate", GOOD, "--override", "x"], "--override: a reason where something stands against signing"),
        (["--candidate", HELD, "--override", " "], "--override: 1 to 500 printable characters"),
        (["--candidate", GOOD, "--note", "a\nb"], "--note: 0 to 500 printable characters"),
        (["--candidate", GOOD, "--note", "x" * 501], "--note: 0 to 500 printable characters"),
    ],
)
def test_bad_input(run: Path, options: list[str], needle: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert sign(run, *options) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert needle in line
    assert not (run / "signoff.json").exists()


@pytest.mark.parametrize("by", ["", "  ", "Ada\x1b[2J", "x" * 501])
def test_nobody_to_sign(run: Path, by: str) -> None:
    assert sign(run, "--candidate", GOOD, by=by) == 2


def test_today_is_not_over(run: Path) -> None:
    assert sign(run, "--candidate", GOOD, "--expires", str(datetime.now(UTC).date())) == 0


def edit(run: Path, change: Any) -> None:
    path = run / "decision.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document, indent=2) + "\n")


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (lambda document: document["candidates"][1].update(decision="PROMOTE", reasons=[]), "candidates"),
        (lambda document: document["candidates"][0]["kv"].update(requested="nvfp4"), "candidates"),
        (lambda document: document["engine"].update(attention_backend="FLASH_ATTN"), "engine"),
        (lambda document: document.update(extra=1), "extra"),
        (lambda document: document["arms"]["baseline"].update(seconds=0.0), "arms"),
    ],
)
def test_a_decision_that_was_edited_is_refused(
    run: Path, change: Any, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(run, change)
    assert sign(run, "--candidate", GOOD) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"decision.json: what the stored replays decide, got another '{key}'" in line
    assert not (run / "signoff.json").exists()


def test_what_is_the_runs_own_may_differ(run: Path) -> None:
    edit(run, lambda document: document.update(created_at="2026-01-01T00:00:00+00:00", attempts=9))
    assert sign(run, "--candidate", GOOD) == 0


def test_a_damaged_copy_in_the_run_is_found_before_anything_is_signed(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "signoff.json").write_text("{")
    assert sign(run, "--candidate", GOOD) == 2
    assert "signoff.json: a sign-off in strict JSON" in capsys.readouterr().err
    assert not (run.parents[1] / "signoff").exists()


def test_a_run_that_was_broken_off_is_not_signed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "tracking.json").unlink()
    assert sign(run, "--candidate", GOOD) == 2
    assert "a run that came to its end, got one that was broken off" in capsys.readouterr().err


def test_no_run(tmp_path: Path) -> None:
    assert main(["sign", str(tmp_path), "--by", "Ada"]) == 2


def test_a_second_signature_follows_the_first(run: Path) -> None:
    assert sign(run, "--candidate", GOOD) == 0
    assert sign(run, "--candidate", GOOD, by="Bo") == 0
    assert [each.by for each in record(run).signatures] == ["Ada Lovelace", "Bo"]
    assert not list(faults(record(run)))


def test_a_run_with_signatures_is_decided_again_as_before(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sign(run, "--candidate", GOOD) == 0
    before = (run / "decision.json").read_bytes()
    assert main(["regate", str(run)]) == 3
    assert "not a file of this run" not in capsys.readouterr().err
    assert record(run).signatures[0].decision_sha256 == sha256((run / "decision.json").read_bytes()).hexdigest()
    assert (run / "decision.json").read_bytes() == before


def test_mlflow_has_the_hash_of_the_signature(decided: Path, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from mlflow import MlflowClient

    uri = f"sqlite:///{decided.parents[1]}/mlflow.db"
    configure(run, tracking={"uri": uri})
    assert sign(run, "--candidate", GOOD) == 0
    assert capsys.readouterr().err == ""
    tags = [version.tags for version in MlflowClient(uri, uri).search_model_versions("")]
    (signed,) = (each for each in tags if "signoff_sha256" in each)
    assert signed["signoff_sha256"] == record(run).signatures[0].sha256
    assert (signed["signed_by"], signed["kv_cache_dtype_requested"]) == ("Ada Lovelace", GOOD)


def test_a_signature_stands_when_mlflow_is_down(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    configure(run, tracking={"uri": "http://127.0.0.1:1"})
    assert sign(run, "--candidate", GOOD) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert "Connection refused" in line
    assert line.endswith(f"the signature stands: anchor it with verify --sha256 {record(run).signatures[0].sha256}")


def test_the_reports_show_who_signed_and_an_override(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "write", WRITE)
    assert sign(run, "--candidate", GOOD) == 0
    assert sign(run, "--candidate", HELD, "--override", "a pilot of 1%", by="Bo") == 0
    for again in (False, True):
        if again:
            assert main(["regate", str(run)]) == 3
        for name in ("report.md", "report.html"):
            text = (run / name).read_text()
            assert text.count("signed by Ada Lovelace on ") == text.count("signed by Bo on ") == 1
            assert "a pilot of 1%" in text
