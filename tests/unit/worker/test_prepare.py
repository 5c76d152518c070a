"""Finding the model, and what can be known of it and the turns before an engine starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvquant_eval.core.codec import DataError
from kvquant_eval.core.records import ModelSpec
from kvquant_eval.worker import embedded
from kvquant_eval.worker.embedded import ModelFolder
from kvquant_eval.worker.prepare import check_fit, check_vocabulary, locate
from tests.fakes.records import rendered_turn


def spec(source: str, **changes: Any) -> ModelSpec:
    return ModelSpec(id="org/model", revision="r1", source=source, **changes)


def test_a_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert locate(spec("folder", path=str(tmp_path / ".")), tmp_path) == tmp_path.resolve()


@pytest.mark.parametrize("path", [None, "", "gone", "."])
def test_a_folder_without_a_model_is_refused(tmp_path: Path, path: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"^model\.path: a model folder with a config\.json, got "):
        locate(spec("folder", path=path), tmp_path)


def test_the_embedded_model_is_unpacked_into_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = ModelFolder(path=tmp_path / "unpacked", weights_sha256="")
    monkeypatch.setattr(embedded, "materialise", lambda cache: made if cache == tmp_path else None)
    assert locate(spec("embedded"), tmp_path) == made.path


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(cache: Path) -> ModelFolder:
        raise OSError(28, "No space left on device", "model.safetensors")

    monkeypatch.setattr(embedded, "materialise", full)
    with pytest.raises(DataError, match=r"^cache_dir: .*No space left on device.*; make room or set it$"):
        locate(spec("embedded"), tmp_path)


def test_the_hub_is_asked_for_the_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def download(name: str, revision: str, ignore_patterns: list[str]) -> str:
        asked.append((name, revision))
        assert "*.safetensors" not in ignore_patterns
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert locate(spec("hub"), tmp_path) == tmp_path
    assert asked == [("org/model", "r1")]


def test_a_hub_that_fails_is_one_line_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*_: Any, **__: Any) -> str:
        raise OSError("401 Client Error\nlong explanation")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    with pytest.raises(
        DataError, match=r"^model\.id: .*got org/model@r1 \(OSError: 401 Client Error\); correct the id"
    ) as caught:
        locate(spec("hub"), tmp_path)
    assert "\n" not in str(caught.value)


def test_a_class_without_a_turn_that_fits_is_refused_with_what_it_needs() -> None:
    fits = rendered_turn("a", workload="faq")
    skipped = [
        rendered_turn(name, workload="hard", prompt_ids=range(n), max_tokens=8, skip="needs more")
        for name, n in (("b", 90), ("c", 50))
    ]
    check_fit([fits, rendered_turn("d", workload="hard"), *skipped], 16)
    with pytest.raises(
        DataError, match=r"^engine\.args\.max_model_len: .*got 16 and 'hard' needs at least 58; raise it, or leave"
    ):
        check_fit([fits, *skipped], 16)


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    check_vocabulary([rendered_turn(prompt_ids=(1, 9), golden_ids=(3,))], 10, tmp_path)
    for beyond in ({"prompt_ids": (1, 10)}, {"golden_ids": (10,)}):
        with pytest.raises(DataError, match=r"a tokenizer of the model's 10 tokens, got token 10; "):
            check_vocabulary([rendered_turn(**beyond)], 10, tmp_path)
