"""Each bad input gets its line, exit status 2 and nothing else; no engine starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvquant_eval.cli.main import main
from kvquant_eval.worker.embedded import materialise
from tests.bad_input.case import Case
from tests.bad_input.document import GROUPS, PATH, text
from tests.fakes.model import CACHE
from tests.fakes.nursery import forked_children

CASES = [pytest.param(case, id=f"{title}: {case.what}") for title, cases in GROUPS for case in cases]


@pytest.fixture(scope="module", autouse=True)
def _tokenizer() -> None:
    """Unpacked before anybody looks at what is printed."""
    materialise(CACHE)


@pytest.fixture(scope="module", autouse=True)
def _workers() -> Iterator[None]:
    """All of them import vLLM once."""
    with forked_children():
        yield


@pytest.mark.parametrize("case", CASES)
def test_it_gets_its_line_and_status_2(
    case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in case.environment.items():
        monkeypatch.setenv(name, value)
    status = main(list(case.make(tmp_path)))
    out, err = capsys.readouterr()
    line = case.line.replace("{folder}", str(tmp_path))
    assert (err, status, out) == (f"kvquant-eval: {line}\n", 2, "")
    assert not list(tmp_path.glob("**/arms")), "no engine was to start"


def test_the_document_says_what_the_cases_say() -> None:
    assert PATH.read_text(encoding="utf-8") == text(), "write it again: python -m tests.bad_input"


def test_each_case_of_a_group_has_a_name_of_its_own() -> None:
    names = Counter((title, case.what) for title, cases in GROUPS for case in cases)
    assert [name for name, count in names.items() if count > 1] == []


def test_no_line_breaks_its_cell() -> None:
    for _, cases in GROUPS:
        for case in cases:
            assert case.line.isprintable()
            assert "`" not in case.line + case.what
