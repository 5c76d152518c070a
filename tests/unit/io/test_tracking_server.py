"""``io.tracking`` on a real MLflow server behind a proxy that breaks: the decision stands, and a relog completes it.

With ``KVQUANT_FUZZ=10000`` every request of a log breaks in every way, one after the other.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest

from kvquant_eval.core.settings import TrackingSettings
from kvquant_eval.io.tracking import TrackingError, log
from tests.fakes.mlstore import Corner
from tests.fakes.proxy import Fault, Proxy, always, first, only
from tests.fuzz.cases import CASES

REQUESTS = 38
"""Of one undisturbed log."""
CREATE_EXPERIMENT, CREATE_RUN, UPLOAD, FINISH, CREATE_MODEL, CREATE_VERSION, SET_ALIAS = 2, 4, 10, 17, 33, 35, 38
BROKEN = (Fault.CUT_REQUEST, Fault.CUT_ANSWER, Fault.DEATH)
BREAKS = [
    (1, Fault.CUT_REQUEST), (CREATE_RUN, Fault.CUT_ANSWER), (UPLOAD, Fault.CUT_REQUEST), (FINISH, Fault.CUT_ANSWER),
    (18, Fault.DEATH), (CREATE_VERSION, Fault.CUT_ANSWER), (SET_ALIAS, Fault.DEATH),
]  # fmt: skip
RETRIED = (Fault.ERROR, Fault.CUT_REQUEST, Fault.LOST_ANSWER)
RETRIES = [
    (CREATE_EXPERIMENT, Fault.LOST_ANSWER), (CREATE_RUN, Fault.LOST_ANSWER), (UPLOAD, Fault.CUT_REQUEST),
    (18, Fault.ERROR), (CREATE_MODEL, Fault.LOST_ANSWER), (CREATE_VERSION, Fault.LOST_ANSWER),
]  # fmt: skip
if CASES >= 10_000:
    BREAKS, RETRIES = (list(product(range(1, REQUESTS + 1), faults)) for faults in (BROKEN, RETRIED))
NUMBERS = count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("server")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    store = ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", str(folder / "files")]
    address = ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command = [sys.executable, "-m", "mlflow", "server", *store, *address]
    with (folder / "log").open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    try:
        _wait(f"http://127.0.0.1:{port}", process)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/health").close()  # noqa: S310 - http, as the URL says
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise RuntimeError(f"the MLflow server ended with status {process.returncode}")


@pytest.fixture
def corner(server: str) -> Corner:
    return Corner(server, next(NUMBERS))


@pytest.fixture(scope="module")
def undisturbed(server: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    corner = Corner(server, 0)
    with Proxy(server) as proxy:
        log(corner.run_folder(tmp_path_factory.mktemp("undisturbed")), corner.settings(proxy.url))
    assert len(proxy.requests) == REQUESTS
    return corner.holds()


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries without waiting."""
    retry(monkeypatch, 0)
    for name in ("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "MLFLOW_HTTP_REQUEST_BACKOFF_JITTER"):
        monkeypatch.setenv(name, "0")


def retry(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", str(times))


def refusal(folder: Path, settings: TrackingSettings) -> str:
    """The one line that a log which cannot be done ends in."""
    with pytest.raises(TrackingError) as caught:
        log(folder, settings)
    line = str(caught.value)
    assert "\n" not in line
    assert line.startswith(f"tracking.uri: a store that takes the runs, got {settings.uri} (")
    assert line.endswith(f"; the decision stands: make the store reachable and run `kvquant-eval relog {folder}`")
    return line


def test_an_undisturbed_log(undisturbed: Any) -> None:
    assert [run[0] for run in undisturbed["runs"]] == ["FINISHED", "FINISHED"]
    assert [version[:2] for version in undisturbed["versions"]] == [[1, "fp8"]]
    assert undisturbed["aliases"] == [{"kv-fp8-e4m3-approved": 1}]


@pytest.mark.parametrize(("nth", "fault"), BREAKS)
def test_a_log_that_broke_off_is_completed(
    corner: Corner, undisturbed: Any, tmp_path: Path, nth: int, fault: Fault
) -> None:
    folder = corner.run_folder(tmp_path)
    with Proxy(corner.uri, only(nth, fault)) as proxy:
        refusal(folder, corner.settings(proxy.url))
    if fault is not Fault.DEATH:  # the server is there to be told that the run has failed
        assert corner.open_runs() == []
    runs = log(folder, corner.settings())
    assert corner.holds() == undisturbed
    if fault is Fault.DEATH:  # twice is once
        assert log(folder, corner.settings()) == runs
        assert corner.holds() == undisturbed
    assert corner.open_runs() == []


@pytest.mark.parametrize(("nth", "fault"), RETRIES)
def test_a_retried_request_leaves_nothing_twice(
    corner: Corner, undisturbed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nth: int, fault: Fault
) -> None:
    retry(monkeypatch, 1)
    with Proxy(corner.uri, only(nth, fault)) as proxy:
        log(corner.run_folder(tmp_path), corner.settings(proxy.url))
    assert corner.holds() == undisturbed
    assert corner.open_runs() == []


@pytest.mark.parametrize("fault", [Fault.ERROR, Fault.BUSY, Fault.CUT_REQUEST])
def test_retries_are_bounded(corner: Corner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault) -> None:
    retry(monkeypatch, 2)
    with Proxy(corner.uri, always(fault)) as proxy:
        refusal(corner.run_folder(tmp_path), corner.settings(proxy.url))
    assert len(proxy.requests) == 3


def test_a_server_that_recovers_in_time_is_enough(
    corner: Corner, undisturbed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    retry(monkeypatch, 3)
    with Proxy(corner.uri, first(3, Fault.ERROR)) as proxy:
        log(corner.run_folder(tmp_path), corner.settings(proxy.url))
    assert corner.holds() == undisturbed


def test_no_server(corner: Corner, tmp_path: Path) -> None:
    with Proxy(corner.uri) as proxy:
        proxy.die()
        assert "Connection refused" in refusal(corner.run_folder(tmp_path), corner.settings(proxy.url))


def test_a_silent_server(corner: Corner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    with Proxy(corner.uri, delay_s=3) as proxy:
        assert "timeout" in refusal(corner.run_folder(tmp_path), corner.settings(proxy.url))
    assert len(proxy.requests) == 1


def test_a_slow_server_is_given_up(corner: Corner, undisturbed: Any, tmp_path: Path) -> None:
    folder = corner.run_folder(tmp_path)
    with Proxy(corner.uri, delay_s=0.5) as proxy:
        assert "(tracking.timeout_s = 4 is over)" in refusal(folder, corner.settings(proxy.url, timeout_s=4))
    assert len(proxy.requests) < REQUESTS / 2
    assert corner.open_runs() == []
    log(folder, corner.settings())
    assert corner.holds() == undisturbed
