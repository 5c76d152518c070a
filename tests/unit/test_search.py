"""A whole search on the fake engine: layers that are known to be fragile are found, kept, and confirmed elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvquant_eval.core.codec import DataError
from kvquant_eval.core.folds import fold_of
from kvquant_eval.core.records import Decision
from kvquant_eval.core.search_document import Searched
from kvquant_eval.core.settings import SearchSettings, Settings, Unit
from kvquant_eval.core.treatment import KVTreatment
from kvquant_eval.io.runfolder import RunFolder
from kvquant_eval.pipeline import gate
from kvquant_eval.search import search
from tests.fakes.gate import policy, reference, settings, treatments, write_golden
from tests.fakes.nursery import forked_children

NATIVE = treatments("fp8_e4m3")
Native = tuple[Path, Settings, Searched, tuple[RunFolder, RunFolder]]


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    """A search starts dozens of engines."""
    with forked_children():
        yield


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Native:
    """A native candidate whose layer 1 is fragile, searched: its folder and settings, what was found, and where."""
    folder = tmp_path_factory.mktemp("native")
    return folder, made(folder), *search(made(folder))


def made(folder: Path, candidates: Mapping[str, KVTreatment] = NATIVE, **changes: Any) -> Settings:
    if not (folder / "golden").exists():
        write_golden(folder / "golden")
    fragile = changes.pop("fragile", [[1, 6.0]])
    changes.setdefault("policy", policy(hold_level=0.2))  # five conversations, all worse, have a chance of 1/32
    plan = SearchSettings(**changes.pop("search", {}))
    return replace(settings(folder, candidates, args={"fragile": fragile}, **changes), search=plan)


def test_the_fragile_layer_is_ranked_first_and_kept(native: Native) -> None:
    _, _, found, _ = native
    assert found.sensitivity[0].unit == "1"
    assert found.sensitivity[0].harm > 10 * abs(found.sensitivity[1].harm)
    chosen = found.found.chosen
    assert chosen is not None
    assert chosen.kept == ("1",)
    assert chosen.bytes_per_token == 3 * 32 + 64  # of four layers, as the engine attests them
    assert found.plain == 4 * 64
    assert found.kv == {"requested": "fp8_e4m3", "effective": "fp8_e4m3", "realisation": "native"}


def test_two_fragile_layers_are_both_kept(tmp_path: Path) -> None:
    found, _ = search(made(tmp_path, fragile=[[0, 5.0], [3, 6.0]]))
    assert found.found.chosen is not None
    assert found.found.chosen.kept == ("0", "3")


def test_a_reference_is_searched_by_halves_of_layers(tmp_path: Path) -> None:
    found, _ = search(made(tmp_path, reference("int8_ref"), search={"unit": Unit.HALF}))
    assert {each.unit for each in found.sensitivity[:2]} == {"1.k", "1.v"}
    assert len(found.sensitivity) == 8
    assert found.found.chosen is not None
    assert found.found.chosen.kept == ("1.k", "1.v")
    assert found.found.chosen.bytes_per_token == pytest.approx(3 * 32 * (1 + 32 / 16 / 8) + 64)  # a scale for 16 values


def test_where_no_set_passes_none_is_chosen(tmp_path: Path) -> None:
    found, _ = search(made(tmp_path, fragile=[[layer, 6.0] for layer in range(4)]))
    assert found.found.chosen is None
    assert all(each.decision is Decision.HOLD for mine in found.found.curve.values() for each in mine)


def test_a_search_only_replays_what_its_scores_need(native: Native) -> None:
    for folder in native[3]:
        replays = folder.arm("baseline").replays()
        assert replays
        assert {replay.measure for replay in replays} == {"forced"}


def test_what_ranks_and_chooses_shares_no_conversation_with_what_confirms(native: Native) -> None:
    _, given, _, folders = native
    allowed = replace(given.policy, allow_underpowered=True)
    confirmed = gate(replace(given, folds=given.search.confirm_folds, policy=allowed))
    held_out = {turn.conversation_id for turn in confirmed.golden.turns}
    seen = {turn.conversation_id for folder in folders for turn in folder.plan().turns}
    assert held_out
    assert not held_out & seen
    assert confirmed.document["golden"]["folds"] == [1, 3, 5, 7]


def test_the_folds_are_those_of_the_whole_set(native: Native) -> None:
    _, given, found, folders = native
    dealt = fold_of(found.golden.turns)
    for folder, folds in zip(folders, (given.search.sensitivity_folds, given.search.choose_folds), strict=True):
        turns = folder.plan().turns
        assert {dealt[turn.conversation_id] for turn in turns} == {*folds}
        assert len(turns) == sum(dealt[turn.conversation_id] in folds for turn in found.golden.turns)


def test_a_second_search_replays_nothing_again(native: Native) -> None:
    _, given, first, _ = native
    second, folders = search(given)
    assert second.found == first.found
    for folder in folders:
        for path in sorted((folder.path / "arms").iterdir()):
            stored = json.loads((path / "arm.json").read_text())
            assert stored["blocks_reused"] == len(folder.arm(path.name).blocks()) > 0


def test_reference_passes_share_an_engine(tmp_path: Path) -> None:
    """An engine's log belongs to the arm it was started for: those that took it over name it."""
    _, (ranked, _) = search(made(tmp_path, reference("int8_ref")))
    arms = sorted((ranked.path / "arms").iterdir())
    assert len(arms) > 8
    over = [arm for arm in arms if "This arm took over an engine, whose log is ../" in (arm / "engine.log").read_text()]
    assert len(over) > len(arms) / 2
    for arm in arms:
        attested = RunFolder(ranked.path).arm(arm.name).facts()
        assert attested is not None
        asked = json.loads((arm / "arm.json").read_text())["ingredients"]["treatment"]
        skipped = {str(layer.index) for layer in attested.layers[0] if not layer.format}
        if asked["realisation"] == "reference":
            assert skipped == set(asked["skip_layers"])


@pytest.mark.parametrize(
    ("candidates", "plan", "line"),
    [
        (treatments("a", "b"), {}, "kv: one candidate for a search, got a, b; such as kv=[a]"),
        (treatments("bfloat16", dtype="bfloat16"), {}, "kv: a candidate that is quantized, got bfloat16"),
        (NATIVE, {"unit": Unit.HALF}, "search.unit: layer for a native dtype"),
        (NATIVE, {"max_passes": 12}, "search.max_passes: at least 20 to rank 4 units"),
    ],
)
def test_what_cannot_be_searched_is_refused(
    tmp_path: Path, candidates: Mapping[str, KVTreatment], plan: dict[str, Any], line: str
) -> None:
    with pytest.raises(DataError) as error:
        search(made(tmp_path, candidates, search=plan))
    assert str(error.value).startswith(line)


def test_a_pass_that_dies_ends_the_search_with_its_reason(tmp_path: Path) -> None:
    given = made(tmp_path)
    args = {**given.engine.args, "faults": {"only-2": "dies_in_block_1"}}
    with pytest.raises(DataError, match=r"a pass for only-2, got .*illegal memory access"):
        search(replace(given, block_requests=2, engine=replace(given.engine, args=args)))


@pytest.mark.parametrize(
    ("plan", "line"),
    [
        ({"confirm_folds": (1, 2)}, "search.confirm_folds: folds that nothing was chosen on, got 2 in both"),
        ({"choose_folds": ()}, "search.choose_folds: at least one fold"),
        ({"sensitivity_folds": (8,)}, "search.sensitivity_folds: at least 0 and up to 7, got 8"),
        ({"max_passes": 0}, "search.max_passes: at least 1, got 0"),
    ],
)
def test_folds_and_budgets_are_checked(plan: dict[str, Any], line: str) -> None:
    with pytest.raises(DataError) as error:
        SearchSettings(**plan)
    assert str(error.value).startswith(line)
