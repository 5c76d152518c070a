"""Where ``./run.sh ui`` says that the newest run is."""

from __future__ import annotations

import http.server
import os
import threading
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from kvquant_eval.cli import ui
from kvquant_eval.io.runfolder import RunFolder
from kvquant_eval.io.tracking import TrackingError

STORE = "sqlite:////home/me/mlflow.db"
BASE = "http://127.0.0.1:5000"


def tracked(runs_dir: Path, name: str, uri: str = STORE, runs: tuple[str, ...] = ("id",)) -> None:
    (runs_dir / name).mkdir(parents=True)
    run = RunFolder(runs_dir / name)
    run.write_config({"tracking": {"uri": uri}, "pinned": {}})
    run.finish({"experiment": "kvquant_eval", "runs": list(runs), "error": ""})


@pytest.fixture(autouse=True)
def _experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ui, "experiment_of", lambda uri, run: f"{run}-of-{len(uri)}")


def test_the_newest_tracked_run_is_shown_side_by_side(tmp_path: Path) -> None:
    tracked(tmp_path, "20260101T000000-m-fp8", runs=("old",))
    tracked(tmp_path, "20260103T000000-m-fp8")
    tracked(tmp_path, "20260104T000000-m-fp8", runs=())
    (tmp_path / "20260105T000000-m-fp8").mkdir()
    address, line = ui.find(tmp_path, STORE, BASE)
    page = urlsplit(urlsplit(address).fragment)
    assert address.startswith(f"{BASE}/#/")
    assert page.path == f"/experiments/id-of-{len(STORE)}/runs"
    assert parse_qs(page.query) == {
        "workflowType": ["machine_learning"],
        "compareRunsMode": ["CHART"],
        "searchFilter": ["tags.`kv.signoff_id` = '20260103T000000-m-fp8'"],
    }
    assert line.startswith("20260103T000000-m-fp8, ")
    assert line.endswith(address)


def test_a_run_on_another_server_is_named_without_its_password(tmp_path: Path) -> None:
    tracked(tmp_path, "20260101T000000-m-fp8", uri="https://me:secret@mlflow.example/path")
    address, line = ui.find(tmp_path, STORE, BASE)
    assert address == ""
    assert line.endswith("is in another store: https://***@mlflow.example/path")


@pytest.mark.parametrize("damage", ["config", "store"])
def test_what_cannot_be_found_is_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    tracked(tmp_path, "20260101T000000-m-fp8")

    def fails(uri: str, run: str) -> str:
        raise TrackingError("no such run")

    if damage == "store":
        monkeypatch.setattr(ui, "experiment_of", fails)
    else:
        (tmp_path / "20260101T000000-m-fp8" / "config.yaml").write_text(yaml.safe_dump({"pinned": {}}))
    address, line = ui.find(tmp_path, STORE, BASE)
    assert address == ""
    assert line.startswith("the newest run, 20260101T000000-m-fp8, is not found: ")


def test_no_run_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ui.main(["--runs-dir", str(tmp_path / "runs"), "--backend-store-uri", STORE]) == 0
    assert capsys.readouterr().err == f"kvquant-eval: no run in {tmp_path}/runs was logged to MLflow yet\n"


@pytest.fixture
def port() -> Iterator[int]:
    """Of a server that answers."""

    class Healthy(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Healthy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.mark.parametrize("desktop", [False, True])
def test_a_browser_opens_where_there_is_a_desktop(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], desktop: bool
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.setattr(ui, "PATIENCE_S", 5.0)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # which knows nothing of this machine
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.delenv("DISPLAY", raising=False)
    if desktop:
        monkeypatch.setenv("DISPLAY", ":0")
    tracked(tmp_path, "20260101T000000-m-fp8")
    arguments = ["--runs-dir", str(tmp_path), "--backend-store-uri", STORE, "--port", str(port), "--workers", "1"]
    assert ui.main(arguments) == 0
    address = capsys.readouterr().err.splitlines()[-1].removeprefix("kvquant-eval: ")
    assert address.startswith(f"http://127.0.0.1:{port}/#/experiments/")
    assert opened == ([address] if desktop else [])


def test_nothing_is_said_when_the_server_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tracked(tmp_path, "20260101T000000-m-fp8")
    parents = iter([1, 2])
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    assert ui.main(["--runs-dir", str(tmp_path), "--backend-store-uri", STORE]) == 0
    assert capsys.readouterr().err == ""
