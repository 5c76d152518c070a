"""Mixed precision on the real engine: engines that change their treatment, and a search from end to end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kvquant_eval.cli.config import core_slots
from kvquant_eval.core.codec import from_data, to_data
from kvquant_eval.core.engine import EngineFacts, EngineSpec
from kvquant_eval.core.plan import make_blocks
from kvquant_eval.core.records import BlockResult, Replay, Sampling
from kvquant_eval.core.treatment import KVTreatment, Realisation
from kvquant_eval.io.place import Place
from kvquant_eval.io.runfolder import RunFolder
from tests.integration.conftest import Run

pytestmark = pytest.mark.integration
UNITS = ("6", "14", "18", "23")
"""The layers that may stay in BF16 here; all others do anyway."""


@pytest.fixture(scope="module")
def found(gate: Callable[..., Run], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A search over four layers; its folder is the one of its runs."""
    folder, skipped = tmp_path_factory.mktemp("search"), [str(n) for n in range(30) if str(n) not in UNITS]
    run = gate(
        folder,
        "workload=[faq]",
        "gate.hardest=faq",
        "kv=[nvfp4_ref]",
        f"kv.nvfp4_ref.skip_layers={skipped}",
        "search.choose_folds=[0]",
        "search.confirm_folds=[1]",
        verb="search",
    )
    return Run(run.status, run.output, folder / "runs")


def test_a_search_ranks_layers_and_says_what_it_would_take(found: Run) -> None:
    """One conversation a fold bounds nothing, so nothing can pass here: the curve says so."""
    assert found.status == 4, found.output
    (path,) = found.folder.glob("*-choose/search.json")
    document = json.loads(path.read_text())
    assert {each["unit"] for each in document["sensitivity"]} == set(UNITS)
    assert all(each["alone"]["kl"] > 0 for each in document["sensitivity"])
    assert document["all_kl"] > document["floors"][0] > 0
    sizes = [each["bytes_per_token"] for each in document["curve"]["sensitive"]]
    assert sizes[0] == pytest.approx((26 * 16 + 4 * 4.5) / (30 * 16) * 23040)
    assert sizes == sorted(sizes)
    (reason,) = document["reasons"]
    assert reason.startswith("no mixed precision tried passes: with 3 of 4 units in BF16 faq ")
    assert "no bound" in reason
    assert (path.parent / "search.html").stat().st_size > 1000


def test_an_engine_that_changes_its_treatment_is_as_one_that_was_started_with_it(found: Run, tmp_path: Path) -> None:
    nvfp4 = KVTreatment(name="nvfp4", dtype="nvfp4", realisation=Realisation.REFERENCE)
    int8 = KVTreatment(name="int8", dtype="int8", realisation=Realisation.REFERENCE, skip_layers=("0", "7.v"))
    (run,) = map(RunFolder, found.folder.glob("*-choose"))
    first, _ = replayed(run, tmp_path, nvfp4)
    changed, facts = replayed(run, tmp_path, nvfp4, int8)
    fresh, attested = replayed(run, tmp_path, int8)
    assert changed == fresh
    assert facts == attested
    assert changed != first


def replayed(run: RunFolder, folder: Path, *treatments: KVTreatment) -> tuple[tuple[Replay, ...], EngineFacts]:
    """The forced replies of some turns under the last of these, which one engine took one after the other."""
    prepared, args = run.plan(), run.arm("baseline").identity()["ingredients"]["args"]
    (block,) = make_blocks(prepared.turns[:4], Sampling(), generate=False)
    (slot,) = core_slots(1)
    with Place({"VLLM_ENABLE_V1_MULTIPROCESSING": "0", **slot}) as place:
        for treatment in treatments:
            spec = EngineSpec(model=prepared.path, revision=None, treatment=treatment, args=args)
            with place.engine("kvquant_eval.worker.vllm_engine:VllmEngine", spec, folder / "log", 600) as child:
                facts = from_data(EngineFacts, child.call("facts"), "facts")
                result = from_data(BlockResult, child.call("run", 600, block=to_data(block)), "block")
    return result.replays, facts
