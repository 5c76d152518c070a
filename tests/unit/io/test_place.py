"""A slot for engines: which one is kept, which one is started anew."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kvquant_eval.core.codec import from_data
from kvquant_eval.core.engine import EngineFacts, EngineSpec
from kvquant_eval.core.treatment import KVTreatment, Realisation
from kvquant_eval.io.child import EngineDied
from kvquant_eval.io.place import Place

FAKE = "tests.fakes.engine:FakeEngine"
INT8 = KVTreatment(name="int8_ref", dtype="int8", realisation=Realisation.REFERENCE)
NVFP4 = KVTreatment(name="nvfp4_ref", dtype="nvfp4", realisation=Realisation.REFERENCE, skip_layers=("0",))
NATIVE = KVTreatment(name="fp8_e4m3", dtype="fp8_e4m3")
SPEC = EngineSpec(model="m", revision=None, treatment=INT8, args={})


@pytest.fixture
def place() -> Iterator[Place]:
    with Place({}) as made:
        yield made


def ran(place: Place, spec: EngineSpec, folder: Path) -> tuple[int, EngineFacts]:
    """The process that served this, and what it attests."""
    with place.engine(FAKE, spec, folder / "log", 60.0) as child:
        return child._process.pid, from_data(EngineFacts, child.call("facts"), "facts")


def test_reference_arms_share_a_process_and_are_attested_each(place: Place, tmp_path: Path) -> None:
    first, facts = ran(place, SPEC, tmp_path)
    second, others = ran(place, replace(SPEC, treatment=NVFP4), tmp_path)
    assert first == second
    assert [layer.format for layer in facts.layers[0]] == ["int8"] * 4
    assert [layer.format for layer in others.layers[0]] == ["", "nvfp4", "nvfp4", "nvfp4"]


@pytest.mark.parametrize(
    "other", [replace(SPEC, treatment=NATIVE), replace(SPEC, args={"max_num_seqs": 8}), replace(SPEC, model="n")]
)
def test_another_engine_is_started_for_anything_else(place: Place, tmp_path: Path, other: EngineSpec) -> None:
    first, _ = ran(place, SPEC, tmp_path)
    second, _ = ran(place, other, tmp_path)
    assert first != second
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)  # it went before the other came: engines do not free their memory


def test_a_native_engine_ends_with_its_arm(place: Place, tmp_path: Path) -> None:
    first, _ = ran(place, replace(SPEC, treatment=NATIVE), tmp_path)
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)


def test_an_engine_that_died_while_it_was_kept_is_no_fault_of_the_next_arm(place: Place, tmp_path: Path) -> None:
    first, _ = ran(place, SPEC, tmp_path)
    os.kill(first, signal.SIGKILL)
    second, facts = ran(place, replace(SPEC, treatment=NVFP4), tmp_path)
    assert second != first
    assert facts.layers[0][1].format == "nvfp4"


def test_an_engine_that_failed_is_not_used_again(place: Place, tmp_path: Path) -> None:
    first, _ = ran(place, SPEC, tmp_path)
    with pytest.raises(ZeroDivisionError), place.engine(FAKE, SPEC, tmp_path / "log", 60.0):
        raise ZeroDivisionError
    assert ran(place, SPEC, tmp_path)[0] != first


def test_a_stopped_place_begins_nothing(place: Place, tmp_path: Path) -> None:
    place.stop()
    with pytest.raises(EngineDied):
        ran(place, SPEC, tmp_path)
