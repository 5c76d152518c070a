"""``kvquant-eval verify``: exit status and lines, with each kind of anchor. Servers are in tests/integration."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from kvquant_eval.cli import verify as verb
from kvquant_eval.cli.main import main
from kvquant_eval.core.codec import to_data
from kvquant_eval.core.records import Decision
from kvquant_eval.core.signoff import Record, seal
from kvquant_eval.io.signoffs import append
from kvquant_eval.io.tracking import anchor, log
from tests.fakes.mlstore import Corner
from tests.fakes.signed import SKIPPING, TERMS, record, signature

SERVES = {
    "--model": "org/model@r1", "--kv-dtype": "fp8", "--engine-version": "0.32.0", "--backend": "CPU_ATTN (amx)",
    "--policy": "b2" * 32,
}  # fmt: skip


@pytest.fixture
def signoff(tmp_path: Path) -> Path:
    return append(tmp_path, signature())[0]


def verify(path: Path, *more: str, **change: str | None) -> int:
    """The command; ``change`` is of ``SERVES``, None leaves an option out."""
    options = {**SERVES, **{f"--{key.replace('_', '-')}": value for key, value in change.items()}}
    given = [text for key, value in options.items() if value is not None for text in (key, value)]
    return main(["verify", str(path), *given, *more])


def sha256_of(path: Path) -> str:
    return str(json.loads(path.read_text())["signatures"][-1]["sha256"])


def forge(path: Path, **change: Any) -> None:
    """Change the last signature and make its hash anew, as one can who may write the file."""
    made = record(*(signature(**change) for _ in json.loads(path.read_text())["signatures"]))
    path.write_text(json.dumps(to_data(made)))


def test_everything_matches(signoff: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(signoff, "--sha256", sha256_of(signoff)) == 0
    head, *lines, last = capsys.readouterr().out.splitlines()
    assert head == (
        "org/model@r1 KV fp8_e4m3 (effective fp8_e4m3, native): PROMOTE, signed by Ada at 2026-01-01T12:00:00+00:00, "
        "expires no date"
    )
    assert all(line.startswith("match: ") for line in lines)
    facts = [
        "expiry",
        "model",
        "revision",
        "kv dtype",
        "layers skipped",
        "engine version",
        "backend",
        "policy",
        "anchor",
    ]
    assert [line.split(": ")[1] for line in lines] == facts
    assert last == "verified"


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"kv_dtype": "fp8_e5m2"}, "refused: kv dtype: signed fp8_e4m3, asked for fp8_e5m2"),
        ({"model": "org/model@r2"}, "refused: revision: signed r1, asked for r2"),
        ({"engine_version": "0.33.0"}, "refused: engine version: signed 0.32.0, asked for 0.33.0"),
        ({"policy": "mine"}, "refused: policy: signed default b2b2b2b2b2b2, asked for mine"),
    ],
)
def test_what_differs_is_refused(
    signoff: Path, change: dict[str, str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(signoff, "--sha256", sha256_of(signoff), **change) == 3
    lines = capsys.readouterr().out.splitlines()
    assert [each for each in lines if each.startswith("refused: ")] == [line]
    assert lines[-1] == "refused"


def test_without_an_anchor(signoff: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(signoff) == 4
    assert "\nunanchored: " in capsys.readouterr().out


def test_an_expired_signature(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, _ = append(tmp_path, signature(expires=date(2026, 1, 31)))
    assert verify(path, "--sha256", sha256_of(path)) == 3
    assert "refused: expiry: expired at the end of 2026-01-31, UTC\n" in capsys.readouterr().out


def test_the_last_signature_counts(tmp_path: Path) -> None:
    path, first = append(tmp_path, signature())
    append(tmp_path, signature(by="Bo", expires=date(2026, 1, 31)))
    assert verify(path, "--sha256", sha256_of(path)) == 3
    assert verify(path, "--sha256", first.sha256) == 3


def test_an_override_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, signed = append(tmp_path, signature(decision=Decision.HOLD, override="a pilot of 1%"))
    assert verify(path, "--sha256", signed.sha256) == 0
    assert "OVERRIDE: HOLD was signed all the same: a pilot of 1%\n" in capsys.readouterr().out


def test_the_installed_engine_is_compared_where_nobody_says_another(
    signoff: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb, "version", {"vllm": "0.33.0"}.__getitem__)
    assert verify(signoff, "--sha256", sha256_of(signoff), engine_version=None) == 3
    assert "engine version: signed 0.32.0, vllm installed here is 0.33.0\n" in capsys.readouterr().out


def test_no_engine_is_installed(
    signoff: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb, "ENGINES", ("no-such-engine",))
    assert verify(signoff, "--sha256", sha256_of(signoff), engine_version=None) == 4
    assert "not shown: engine version (signed 0.32.0); give --engine-version" in capsys.readouterr().out


def test_skipped_layers(tmp_path: Path) -> None:
    path, signed = append(tmp_path, signature(terms=SKIPPING))
    assert verify(path, "--sha256", signed.sha256) == 4
    assert verify(path, "--sha256", signed.sha256, "--skip-layers", "0") == 0
    assert verify(path, "--sha256", signed.sha256, "--skip-layers", "0,1") == 3
    assert verify(path, "--sha256", signed.sha256, "--skip-layers") == 3
    assert verify(path, "--sha256", signed.sha256, "--skip-layers", "sliding_window") == 2


CHANGES: list[dict[str, Any]] = [
    {"by": "Eve"},
    {"expires": date(2099, 1, 1)},
    {"note": "more"},
    {"terms": replace(TERMS, device="another CPU")},
    {"decision_sha256": "e" * 64},
    {"run_id": "another"},
]


@pytest.mark.parametrize("change", CHANGES)
def test_an_edited_file_with_its_hash_made_anew_is_refused_by_sha256(
    signoff: Path, change: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    anchored = sha256_of(signoff)
    forge(signoff, **change)
    assert verify(signoff) == 4  # the file alone looks sound
    assert verify(signoff, "--sha256", anchored) == 3
    assert f"refused: anchor: signed {sha256_of(signoff)}, --sha256 gives {anchored}\n" in capsys.readouterr().out


@pytest.mark.parametrize("change", CHANGES)
def test_an_edited_file_with_its_old_hash_is_refused_without_any_anchor(
    signoff: Path, change: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    made = json.loads(signoff.read_text())
    made["signatures"][0].update(to_data(replace(signature(**change), sha256=made["signatures"][0]["sha256"])))
    signoff.write_text(json.dumps(made))
    assert verify(signoff) == 3
    assert "refused: record: signature 1: says sha256 " in capsys.readouterr().out


def test_a_changed_term_with_its_hash_made_anew_is_refused_by_sha256(signoff: Path) -> None:
    anchored = sha256_of(signoff)
    forge(signoff, terms=replace(TERMS, engine_version="0.33.0"))
    assert verify(signoff, "--sha256", anchored, engine_version="0.33.0") == 3


@pytest.fixture
def signed_by_key(signoff: Path) -> list[str]:
    """A detached signature of the file, as documented."""
    key, public, detached = (signoff.with_suffix(end) for end in (".key", ".pem", ".sig"))
    for command in (
        ["genpkey", "-algorithm", "ed25519", "-out", key],
        ["pkey", "-in", key, "-pubout", "-out", public],
        ["pkeyutl", "-sign", "-rawin", "-inkey", key, "-in", signoff, "-out", detached],
    ):
        subprocess.run(["openssl", *command], check=True, capture_output=True)
    return ["--signature", str(detached), "--public-key", str(public)]


def test_a_detached_signature_anchors(signoff: Path, signed_by_key: list[str]) -> None:
    assert verify(signoff, *signed_by_key) == 0


@pytest.mark.parametrize("change", CHANGES)
def test_an_edited_file_with_its_hash_made_anew_is_refused_by_a_detached_signature(
    signoff: Path, signed_by_key: list[str], change: dict[str, Any]
) -> None:
    forge(signoff, **change)
    assert verify(signoff, *signed_by_key) == 3


def test_one_anchor_that_agrees_does_not_outweigh_one_that_does_not(signoff: Path, signed_by_key: list[str]) -> None:
    forge(signoff, by="Eve")
    assert verify(signoff, *signed_by_key, "--sha256", sha256_of(signoff)) == 3


@pytest.fixture(scope="module")
def registered(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Record]:
    """An MLflow database with the anchor of one signature."""
    folder = tmp_path_factory.mktemp("store")
    corner = Corner(f"sqlite:///{folder}/mlflow.db", 1)
    log(corner.run_folder(folder), corner.settings())
    terms = replace(TERMS, model=corner.model, weights_sha256="w" * 64, policy_sha256="p" * 64)
    made = record(signature(terms=terms))
    anchor(corner.settings(), made.signatures[0])
    return corner.uri, made


def stored(folder: Path, made: Record) -> Path:
    path = folder / "signoff.json"
    path.write_text(json.dumps(to_data(made)))
    return path


def test_a_registered_version_anchors_and_shows_the_policy(registered: tuple[str, Record], tmp_path: Path) -> None:
    uri, made = registered
    serves = {"model": f"{made.model}@r1", "policy": None}
    assert verify(stored(tmp_path, made), "--mlflow", uri, **serves) == 0


@pytest.mark.parametrize("change", [each for each in CHANGES if "run_id" not in each])
def test_an_edited_file_with_its_hash_made_anew_is_refused_by_mlflow(
    registered: tuple[str, Record], tmp_path: Path, change: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    uri, made = registered
    terms = replace(made.signatures[0].terms, device="x") if "terms" in change else made.signatures[0].terms
    forged = seal(replace(made.signatures[0], **{**change, "terms": terms}))
    path = stored(tmp_path, replace(made, signatures=(forged,)))
    assert verify(path, "--mlflow", uri, model=f"{made.model}@r1", policy=None) == 3
    assert "refused: anchor: signed " in capsys.readouterr().out


def test_a_signature_of_a_run_that_mlflow_does_not_know(
    registered: tuple[str, Record], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uri, made = registered
    path = stored(tmp_path, replace(made, signatures=(seal(replace(made.signatures[0], run_id="other")),)))
    assert verify(path, "--mlflow", uri, model=f"{made.model}@r1", policy=None) == 4
    assert "not shown: MLflow (no registered version of run other)\n" in capsys.readouterr().out


def test_mlflow_that_is_down_shows_nothing(
    signoff: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    assert verify(signoff, "--mlflow", "http://127.0.0.1:1", "--sha256", sha256_of(signoff)) == 4
    assert "not shown: MLflow (a store that answers, got http://127.0.0.1:1 (" in capsys.readouterr().out


def test_a_server_that_is_down_shows_nothing(signoff: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(signoff, "--server", "http://127.0.0.1:1", "--sha256", sha256_of(signoff)) == 4
    assert "not shown: running KV dtype (signed fp8_e4m3); the server does not answer: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "change", "needle"),
    [
        (["--sha256", "abc"], {}, "--sha256: 64 hexadecimal digits, got 'abc'"),
        (["--signature", "x.sig"], {}, "--signature: a file and its --public-key, got one of the two"),
        (["--signature", "nowhere", "--public-key", "nowhere"], {}, "nowhere: No such file or directory"),
        (["--server", ""], {}, "--server: the address of a vLLM server, got ''"),
        (["--at-least", "strong"], {}, "--at-least: evidence of a --server, got strong without one"),
        (["--mlflow", ""], {}, "--mlflow: the address of a store, got none"),
        (["--server", "localhost:8000"], {}, "--server: the address of a vLLM server, got 'localhost:8000'"),
        ([], {"model": "@r1"}, "--model: ID or ID@REVISION, got '@r1'"),
        ([], {"model": "org/model@"}, "--model: ID or ID@REVISION, got 'org/model@'"),
    ],
)
def test_bad_input(
    signoff: Path, more: list[str], change: dict[str, str], needle: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(signoff, *more, **change) == 2
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    assert needle in line
    assert out == ""


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"schema_version": 2}', b"\xff"])
def test_a_damaged_file(tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    assert verify(path) == 2
    assert capsys.readouterr().err.startswith(f"kvquant-eval: {path}: ")


def test_a_number_that_no_hash_is_made_of(signoff: Path, capsys: pytest.CaptureFixture[str]) -> None:
    signoff.write_text(signoff.read_text().replace("96.0", "9" * 400))
    assert verify(signoff) == 2
    assert "bytes_per_token: " in capsys.readouterr().err


def test_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(tmp_path / "x.json") == 2
    assert "No such file" in capsys.readouterr().err


def test_a_record_without_signatures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(stored(tmp_path, replace(record(), signatures=()))) == 3
    assert "refused: record: no signature\n" in capsys.readouterr().out


def test_what_a_file_says_cannot_steer_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = stored(tmp_path, record(signature(by="Ada\x1b[2J\nverified", terms=replace(TERMS, policy="\x1b[1m"))))
    assert verify(path, policy="default") == 3
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\nverified" not in out
