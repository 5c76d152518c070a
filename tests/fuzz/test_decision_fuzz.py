"""A damaged ``decision.json`` gives a DataError in one line or sound cards, and nothing else."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvquant_eval.core.codec import DataError
from kvquant_eval.io.runcards import RunCard, read_cards
from tests.fakes import decided
from tests.fuzz.cases import CASES

DOCUMENT = decided.document("org/model", "run", decision="HOLD", drop=7.0)
TEXT = json.dumps(DOCUMENT)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value inside ``value``."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        yield (*path, key)
        yield from places(inner, (*path, key))


PLACES = list(places(DOCUMENT))
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(
        [10**400, -(10**400), 1e308, 5e-324, 0, 1, -1, "", "..", "a/b", "\x00", "\x1b[2J", "\ud800", "'", "x" * 300]
    ),
)
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3))


def set_at(document: Any, path: tuple[Any, ...], value: Any) -> None:
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value


@st.composite
def other_values(draw: st.DrawFn) -> bytes:
    """One to three values replaced by others; NaN and infinity are written as Python writes them."""
    document = copy.deepcopy(DOCUMENT)
    for path in draw(st.lists(st.sampled_from(PLACES), min_size=1, max_size=3)):
        try:
            set_at(document, path, draw(JSON))
        except (KeyError, IndexError, TypeError):  # inside a value that was replaced before
            continue
    return json.dumps(document).encode()


@st.composite
def other_keys(draw: st.DrawFn) -> bytes:
    """One key deleted or renamed."""
    document = copy.deepcopy(DOCUMENT)
    *path, key = draw(st.sampled_from(PLACES))
    inner: Any = document
    for step in path:
        inner = inner[step]
    value = inner.pop(key)
    if isinstance(inner, dict) and draw(st.booleans()):
        inner[draw(st.text(max_size=10))] = value
    return json.dumps(document).encode()


@st.composite
def other_bytes(draw: st.DrawFn) -> bytes:
    """Bytes flipped, put in, or cut off."""
    data = bytearray(TEXT.encode())
    for at in draw(st.lists(st.integers(0, len(data) - 1), max_size=4)):
        data[at] = draw(st.integers(0, 255))
    at = draw(st.integers(0, len(data)))
    data[at:at] = draw(st.sampled_from([b"", b"NaN", b"1e999", b"[" * 300, b"9" * 5000, b"\xef\xbb\xbf"]))
    return bytes(data[: draw(st.integers(0, len(data)) | st.just(len(data)))])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return decided.run("org/model", tmp_path_factory.mktemp("fuzz") / "run", decision="HOLD", drop=7.0)


def test_the_undamaged_document_gives_cards(folder: Path) -> None:
    (folder / "decision.json").write_text(TEXT)
    assert [card.tags["kv.role"] for card in read_cards(folder, log_texts=True)] == ["baseline", "candidate"]


@settings(max_examples=CASES)
@given(data=st.one_of(other_values(), other_keys(), other_bytes()))
def test_a_damaged_document_is_one_line_or_sound(folder: Path, data: bytes) -> None:
    (folder / "decision.json").write_bytes(data)
    found = outcome(folder)
    if isinstance(found, DataError):
        assert str(found).startswith(str(folder))
        assert str(found).isprintable()
    else:
        assert found[0].tags["kv.role"] == "baseline"
        for card in found:
            check(card)
    assert list(folder.parent.iterdir()) == [folder]


def outcome(folder: Path) -> list[RunCard] | DataError:
    try:
        return read_cards(folder, log_texts=True)
    except DataError as error:
        return error


def check(card: RunCard) -> None:
    """What MLflow is told is finite, text where text goes, and UTF-8."""
    assert all(math.isfinite(value) for value in card.metrics.values())
    texts = [card.name, *card.params.values(), *card.tags.values()]
    if card.version is not None:
        texts += [card.version.model, card.version.source, card.version.alias, *card.version.tags.values()]
    assert all(isinstance(text, str) for text in texts)
    assert "".join(texts).encode()
