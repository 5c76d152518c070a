"""The list of broken invariants stays true: what it breaks is there, once, and so is the test."""

from __future__ import annotations

import pytest

from tests.invariants.__main__ import ROOT
from tests.invariants.mutants import MUTANTS, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.what)
def test_what_is_to_be_broken_is_there(mutant: Mutant) -> None:
    assert (ROOT / mutant.file).read_text(encoding="utf-8").count(mutant.old) == 1
    assert mutant.new != mutant.old
    path, _, name = mutant.test.partition("::")
    assert (ROOT / path).exists()
    assert not name or f"def {name}(" in (ROOT / path).read_text(encoding="utf-8")


def test_every_invariant_is_broken() -> None:
    assert {mutant.invariant for mutant in MUTANTS} == set(range(1, 12))
