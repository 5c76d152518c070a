"""Sign-offs on disk: appended whole or not at all, read strictly, shown harmlessly."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from kvquant_eval.core.codec import DataError, to_data
from kvquant_eval.core.records import Decision
from kvquant_eval.core.signoff import Record, faults
from kvquant_eval.io.runfolder import RunFolder
from kvquant_eval.io.signoffs import append, copies, keep, kept, page, read
from tests.fakes.signed import SKIPPING, TERMS, record, signature

NAME = "org--model--r1--fp8_e4m3.json"
CONTENT = json.dumps(to_data(record(signature(), signature(by="Bo", expires=date(2027, 3, 31))))).encode()


def stored(path: Path) -> Record:
    return read(path.read_bytes(), path)


def test_signatures_are_appended(tmp_path: Path) -> None:
    folder = tmp_path / "reports" / "signoff"
    path, first = append(folder, signature())
    assert path == folder / NAME
    again, second = append(folder, signature(by="Bo", expires=date(2027, 3, 31)))
    assert again == path
    assert stored(path).signatures == (first, second)
    assert second.previous == first.sha256
    assert not list(faults(stored(path)))
    assert sorted(each.name for each in folder.iterdir()) == [NAME, NAME.replace(".json", ".md")]


def test_another_thing_to_serve_has_a_file_of_its_own(tmp_path: Path) -> None:
    append(tmp_path, signature())
    path, signed = append(tmp_path, signature(terms=SKIPPING))
    assert path.name == "org--model--r1--fp8_e4m3-skip-0.json"
    assert signed.previous is None


def test_many_who_sign_at_once(tmp_path: Path) -> None:
    people = [threading.Thread(target=append, args=(tmp_path, signature(by=f"P{n}"))) for n in range(12)]
    for each in people:
        each.start()
    for each in people:
        each.join()
    made = stored(tmp_path / NAME)
    assert {each.by for each in made.signatures} == {f"P{n}" for n in range(12)}
    assert not list(faults(made))


@pytest.mark.parametrize(
    ("content", "needle"),
    [
        (b"{", "a sign-off in strict JSON, got"),
        (b"[]", "a sign-off, got '[]'"),
        (b"{}", "schema version 1, got 'none'"),
        (b'{"schema_version": 2}', "schema version 1, got '2'"),
        (b'{"schema_version": 1}', "model"),
        (CONTENT[:-20], "a sign-off in strict JSON, got"),
        (CONTENT.replace(b"Ada", b"Eve"), "a record that nobody changed, got signature 1: says sha256"),
        (CONTENT.replace(b'"org/model", "revision"', b'"org/other", "revision"', 1), "got signature 1: "),
        (CONTENT.replace(b"2027-03-31", b"some day"), "expires"),
        (CONTENT.replace(b'"by": "Ada"', b'"by": "Ada", "by": "Eve"'), "the key 'by' twice"),
        (CONTENT.replace(b'"by": "Ada"', b'"by": "Ada", "more": 1'), "more"),
    ],
)
def test_what_was_damaged_is_refused_and_stays_as_it_is(tmp_path: Path, content: bytes, needle: str) -> None:
    path = tmp_path / NAME
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        append(tmp_path, signature())
    assert str(caught.value).startswith(f"{path}: ")
    assert needle in str(caught.value)
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


@given(st.integers(0, len(CONTENT) - 1), st.integers(1, 255))
def test_no_changed_byte_gives_a_sound_record_that_says_something_else(place: int, change: int) -> None:
    changed = bytearray(CONTENT)
    changed[place] ^= change
    try:
        found = read(bytes(changed), Path(NAME))
    except DataError:
        return
    assert list(faults(found)) or found == read(CONTENT, Path(NAME))


def test_a_run_keeps_the_signatures_of_its_candidates(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert kept(run) == []
    one, two = record(signature()).signatures[0], record(signature(candidate="other", terms=SKIPPING)).signatures[0]
    keep(run, [one])
    keep(run, [*copies(run), two])
    assert kept(run) == [one, two]
    assert json.loads((tmp_path / "signoff.json").read_text())["schema_version"] == 1


def test_a_damaged_copy_is_no_reason_not_to_report(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "signoff.json").write_text('{"signatures": [{}]}')
    assert kept(RunFolder(tmp_path)) == []
    assert "the report shows no signature" in caplog.text
    with pytest.raises(DataError):
        copies(RunFolder(tmp_path))


def test_the_page_says_it_all_at_its_top() -> None:
    text = page(record(signature(), signature(by="Bo", expires=date(2027, 3, 31), note="staging", terms=SKIPPING)))
    first, voids = text.split("## Void as soon as one of these changes")
    assert first.startswith("# org/model@r1 KV fp8_e4m3 (effective bfloat16+fp8_e4m3, native)\n")
    for line in (
        "- decision: PROMOTE",
        "- signed by: Bo",
        "- expires: at the end of 2027-03-31, UTC",
        "- note: staging",
    ):
        assert f"\n{line}\n" in first
    assert "OVERRIDE" not in text
    assert "- attention backend: CPU_ATTN (amx)\n" in voids
    assert "--kv-cache-dtype fp8_e4m3 --kv-cache-dtype-skip-layers 0" in voids
    assert "PROMOTE signed by Ada" in voids


def test_the_page_shows_an_override() -> None:
    text = page(record(signature(decision=Decision.HOLD, override="a pilot of 1%")))
    assert "- decision: HOLD\n- **OVERRIDE**: a pilot of 1%\n" in text


@pytest.mark.parametrize("hostile", ["<script>alert(1)</script>", "a\n# b", "`x` | y", "[x](http://evil)", "```\n# b"])
def test_the_page_reads_nothing_as_syntax(hostile: str) -> None:
    change: dict[str, Any] = {"by": hostile, "note": hostile, "override": hostile, "decision": Decision.HOLD}
    terms = replace(TERMS, model=hostile, attention_backend=hostile, policy=hostile, kv_requested=hostile)
    tokens = MarkdownIt("commonmark").parse(page(record(signature(**change, terms=terms))))
    inner = [child.type for token in tokens for child in token.children or ()]
    assert set(inner) <= {"text", "strong_open", "strong_close", "softbreak"}
    assert [token.tag for token in tokens if token.type == "heading_open"] == ["h1", "h2", "h2"]
    assert sum(token.type == "fence" for token in tokens) == 1
    assert not any(token.type == "html_block" for token in tokens)
