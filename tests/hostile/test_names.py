"""A candidate's name is the name of a folder: one that leads elsewhere is refused before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvquant_eval.core.codec import DataError
from kvquant_eval.core.treatment import KVTreatment
from tests.fakes.gate import settings


@pytest.mark.parametrize(
    "name",
    ["../../../x", "a/b", "/x", "..", ".", "", ".hidden", "-rf", "a\0", "a\n", "\x1b[2J", "a\\b", "数", "x" * 81],
)
def test_a_name_that_is_no_folders_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=r"^kv: names of letters, digits and ") as caught:
        settings(tmp_path, {name: KVTreatment(name=name, dtype="fp8_e4m3")})
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", ["fp8_e4m3", "int8-ref.2", "a+b", "X", "x" * 80])
def test_plain_names_are_taken(tmp_path: Path, name: str) -> None:
    assert list(settings(tmp_path, {name: KVTreatment(name=name, dtype="fp8_e4m3")}).candidates) == [name]
