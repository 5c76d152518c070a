"""``kvquant-eval verify --server`` against a real vLLM API server on loopback: FP8 and BF16, with and without its
development mode.
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
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvquant_eval.cli.config import home
from kvquant_eval.cli.main import main
from kvquant_eval.core.signoff import Terms
from kvquant_eval.core.verification import EXTENSION
from kvquant_eval.io.server import Server
from kvquant_eval.io.signoffs import append
from kvquant_eval.worker.embedded import materialise
from tests.fakes.signed import TERMS, signature
from tests.fakes.vllm_server import Answer, FakeVllm, Handler
from tests.integration.conftest import needs_native_fp8, quiet

pytestmark = [pytest.mark.integration, needs_native_fp8]

START_S = 180.0
MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
LAYERS, BYTES = 30, 384
"""Of the embedded model, and of K and V of one layer in FP8."""


@contextmanager
def server(log: Path, *arguments: str) -> Iterator[str]:
    """The address of a server with the embedded model; its process group ends with the context."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    model = materialise(Path(home()) / ".cache").path
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(port), "--max-model-len", "512"]
    command += ["--enforce-eager", "--worker-extension-cls", EXTENSION, *arguments]
    env = {**quiet(), "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_SERVER_DEV_MODE": "1", "HF_HUB_OFFLINE": "1"}
    env |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=env, start_new_session=True)
    try:
        _wait(f"http://127.0.0.1:{port}/health", process, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            urllib.request.urlopen(url, timeout=5).close()  # noqa: S310 - http, as the URL says
        except OSError:
            time.sleep(0.5)
        else:
            return
    pytest.fail(f"no server (status {process.poll()}):\n{log.read_text()[-4000:]}")


@pytest.fixture(scope="module")
def fp8(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with server(tmp_path_factory.mktemp("fp8") / "log", "--kv-cache-dtype", "fp8_e4m3") as url:
        yield url


@pytest.fixture(scope="module")
def bf16(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """As a server is when somebody forgot the dtype."""
    with server(tmp_path_factory.mktemp("bf16") / "log") as url:
        yield url


@contextmanager
def without_development(url: str) -> Iterator[str]:
    """The same server, as it is seen without its development mode."""

    def forward(handler: Handler) -> None:
        with urllib.request.urlopen(url + handler.path, timeout=60) as answer:  # noqa: S310 - http, as the URL says
            handler.send(answer.read())

    paths: tuple[str, ...] = ("/version", "/v1/models", "/metrics")
    answers: dict[str, Answer] = dict.fromkeys(paths, forward)
    with FakeVllm(answers) as front:
        yield front.url


@pytest.fixture(scope="module")
def terms(fp8: str) -> Terms:
    """As a gate on this machine would write them; version and backend are those of the machine."""
    found = Server(fp8).read()
    assert found.version is not None
    assert found.workers is not None
    return replace(
        TERMS,
        model=MODEL,
        bytes_per_token=float(LAYERS * BYTES),
        engine_version=found.version,
        attention_backend=found.workers.layers[0][0].attention,
    )


def verify(folder: Path, terms: Terms, url: str, *more: str) -> int:
    """Of a sign-off with these terms. Version, backend and skipped layers are left to the server."""
    path, signed = append(folder, signature(terms=terms))
    stated = ["--model", f"{MODEL}@r1", "--kv-dtype", "fp8", "--policy", TERMS.policy_sha256, "--sha256", signed.sha256]
    return main(["verify", str(path), *stated, "--server", url, *more])


def test_fp8_is_read_back_from_the_workers(
    fp8: str, terms: Terms, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(tmp_path, terms, fp8, "--at-least", "strong") == 0
    out = capsys.readouterr().out
    running = "signed fp8_e4m3, the server's workers run fp8_e4m3 (strong evidence)\n"
    assert f"match: running KV dtype: {running}" in out
    assert "match: bytes per token: signed 11,520, the server's workers store 11,520 (strong evidence)\n" in out
    assert f"match: model: signed {MODEL}, the server calls it {MODEL} (weak evidence)\n" in out


def test_bf16_in_the_workers_is_refused(
    bf16: str, terms: Terms, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(tmp_path, terms, bf16) == 3
    running = "signed fp8_e4m3, the server's workers run bfloat16 (strong evidence)\n"
    assert f"refused: running KV dtype: {running}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            {"kv_effective": "bfloat16+fp8_e4m3", "layers_skipped": (0,)},
            "layers skipped: signed 0, the server's workers skip none",
        ),
        ({"k_scales": (0.5, 0.7)}, "k scales: signed 0.5 to 0.7, the server's workers run 1 to 1"),
        (
            {"attention_backend": "CPU_ATTN (other)"},
            "backend: signed CPU_ATTN (other), the server's workers run CPU_ATTN",
        ),
        ({"engine_version": "0.1.0"}, "engine version: signed 0.1.0, the server says "),
    ],
)
def test_anything_else_that_the_server_runs_is_refused(
    fp8: str, terms: Terms, tmp_path: Path, change: dict[str, Any], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(tmp_path, replace(terms, **change), fp8) == 3
    assert f"refused: {line}" in capsys.readouterr().out


def test_without_development_mode_fp8_is_shown_by_label_and_size(
    fp8: str, terms: Terms, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with without_development(fp8) as url:
        backend = ("--backend", terms.attention_backend)
        assert verify(tmp_path, terms, url, *backend) == 0
        assert "the server's label says fp8_e4m3 (medium evidence)\n" in capsys.readouterr().out
        assert verify(tmp_path, terms, url, *backend, "--at-least", "strong") == 4
        assert verify(tmp_path, terms, url) == 4
    assert "not shown: backend (signed " in capsys.readouterr().out


def test_without_development_mode_bf16_is_refused_by_the_size_of_its_cache(
    bf16: str, terms: Terms, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with without_development(bf16) as url:
        assert verify(tmp_path, terms, url, "--backend", terms.attention_backend) == 3
    out = capsys.readouterr().out
    assert "refused: bytes per token: signed 11,520, the server's cache has 2" in out
    assert "not shown: running KV dtype" in out
