"""The search as a plan: which sets it asks for, and what it makes of answers whose truth is known."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from kvquant_eval.core.mixed import Kept, in_order, keeping, probes, units_of
from kvquant_eval.core.policy import Policy, Rule, ScorePolicy, ScoreRole
from kvquant_eval.core.records import Decision, Verdict
from kvquant_eval.core.results import CandidateResult, ClassResult, ScoreResult
from kvquant_eval.core.search import Pass, find, measured, rank
from kvquant_eval.core.treatment import KVTreatment, Realisation

NVFP4 = KVTreatment(name="nvfp4_ref", dtype="nvfp4", realisation=Realisation.REFERENCE)
LAYERS = tuple(str(layer) for layer in range(16))
EXACT = 1e-9


def world(harm: Mapping[str, float], allowed: float) -> Callable[[Sequence[KVTreatment]], list[Pass]]:
    """Passes of a model whose quantized layers each add their ``harm``, and which passes up to ``allowed``."""

    def measure(treatments: Sequence[KVTreatment]) -> list[Pass]:
        return [one(treatment) for treatment in treatments]

    def one(treatment: KVTreatment) -> Pass:
        total = sum(cost for layer, cost in harm.items() if layer not in treatment.skip_layers)
        return Pass(
            name=treatment.name,
            decision=Decision.PROMOTE if total < allowed else Decision.HOLD,
            kl=total / 10,
            drop=total,
            worst="math_chain gl_reply",
            worst_drop=total,
            worst_bound=total,
            reach=total / allowed,
            predicted=total / allowed,
            shares=(total / 20, total / 20),
            bytes_per_token=float(2 * len(treatment.skip_layers) + (16 - len(treatment.skip_layers))),
            compression=None,
        )

    return measure


def test_the_ranking_finds_planted_layers() -> None:
    harm = dict.fromkeys(LAYERS, 0.01) | {"3": 2.0, "11": 1.0}
    measure = world(harm, 1.0)
    ranking = rank(LAYERS, measure([replace(NVFP4, name="all"), *probes(NVFP4, LAYERS)]))
    assert [each.unit for each in ranking[:2]] == ["3", "11"]
    assert ranking[0].harm == pytest.approx(0.2)  # additive: what it adds first is what it adds last
    assert ranking[0].brings == pytest.approx(ranking[0].saves)
    assert ranking[0].alone.name == "only-3"
    assert ranking[0].spared.name == "without-3"


def test_what_is_measured_more_surely_weighs_more() -> None:
    """Sums of 0.4 and of 0.2 over four turns; the turns of the second differ three times as much."""

    def one(name: str, *shares: float) -> Pass:
        return replace(world({}, 1.0)([replace(NVFP4, name=name)])[0], shares=shares)

    noisy = [0.35, 0.05, 0.05, -0.25]
    rest = one("all", *(x + 1 for x in noisy)), one("without-0", 1.0, 1.0, 1.0, 1.0)
    (found,) = rank(("0",), [*rest, one("only-0", 0.2, 0.1, 0.1, 0.0)])
    assert (found.brings, found.saves) == (pytest.approx(0.4), pytest.approx(0.2))
    weight = (9 + 1 / 9) / (9 + 1 / 9 + 2)
    assert found.harm == pytest.approx(0.4 * weight + 0.2 * (1 - weight))
    assert found.error == pytest.approx(
        math.sqrt((weight**2 + 9 * (1 - weight) ** 2) * 4 * statistics.variance([0.2, 0.1, 0.1, 0.0]))
    )


def test_an_effect_that_others_mask_is_not_lost() -> None:
    """What sparing saves is nothing, to the last digit, as long as something else breaks the replies too."""

    def one(name: str, *shares: float) -> Pass:
        return replace(world({}, 1.0)([replace(NVFP4, name=name)])[0], shares=shares)

    (found,) = rank(("0",), [one("all", 0.5, 0.3), one("without-0", 0.5, 0.3), one("only-0", 0.5, 0.3)])
    assert found.harm == pytest.approx(0.8 / 10)


def test_the_fewest_layers_that_do_are_found() -> None:
    harm = dict.fromkeys(LAYERS, 0.01) | {"3": 2.0, "11": 1.0, "7": 0.9}
    found = find(
        NVFP4, LAYERS, ["3", "11", "7", *(x for x in LAYERS if x not in ("3", "11", "7"))], world(harm, 0.5), 100
    )
    assert found.chosen is not None
    assert found.chosen.kept == ("3", "7", "11")
    assert found.sure


def test_a_wrong_ranking_is_mended_by_trying_without() -> None:
    harm = dict.fromkeys(LAYERS, 0.01) | {"3": 2.0, "11": 1.0}
    wrong = ["0", "1", "2", "3", "11", *(layer for layer in LAYERS if layer not in ("0", "1", "2", "3", "11"))]
    found = find(NVFP4, LAYERS, wrong, world(harm, 0.5), 100)
    assert found.chosen is not None
    assert found.chosen.kept == ("3", "11")


def test_where_nothing_passes_nothing_is_chosen_and_the_curve_says_so() -> None:
    found = find(NVFP4, LAYERS, LAYERS, world(dict.fromkeys(LAYERS, 1.0), 0.5), 100)
    assert found.chosen is None
    assert not found.sure
    assert [len(each.kept) for each in found.curve["sensitive"]] == [0, 2, 4, 6, 8, 10, 12, 14, 15]
    assert all(each.decision is Decision.HOLD for mine in found.curve.values() for each in mine)


def test_what_passes_but_is_not_likely_to_elsewhere_is_chosen_only_for_want_of_better() -> None:
    def measure(treatments: Sequence[KVTreatment]) -> list[Pass]:
        return [replace(each, predicted=2.0) for each in world(dict.fromkeys(LAYERS, 0.1), 1.0)(treatments)]

    found = find(NVFP4, LAYERS, LAYERS, measure, 100)
    assert found.chosen is not None
    assert not found.sure


def test_folk_remedies_stand_beside_it_on_the_same_bytes() -> None:
    found = find(NVFP4, LAYERS, LAYERS, world(dict.fromkeys(LAYERS, 0.1), 0.5), 100)
    by_size = {strategy: {len(each.kept): each for each in mine} for strategy, mine in found.curve.items()}
    for size in (4, 8, 12):
        assert len({by_size[strategy][size].bytes_per_token for strategy in by_size}) == 1
    assert by_size["first"][4].kept == ("0", "1", "2", "3")
    assert by_size["last"][4].kept == ("12", "13", "14", "15")
    assert by_size["both ends"][4].kept == ("0", "1", "14", "15")


@pytest.mark.parametrize("budget", [4, 9, 30])
def test_the_budget_is_kept_and_no_set_is_measured_twice(budget: int) -> None:
    asked: list[tuple[str, ...]] = []

    def measure(treatments: Sequence[KVTreatment]) -> list[Pass]:
        asked.extend(treatment.skip_layers for treatment in treatments)
        return world(dict.fromkeys(LAYERS, 0.1), 0.55)(treatments)

    found = find(NVFP4, LAYERS, LAYERS, measure, budget)
    assert len(asked) == len(set(asked)) == found.passes <= budget


def test_the_first_passes_of_a_small_budget_are_the_searchs_own() -> None:
    found = find(NVFP4, LAYERS, LAYERS, world(dict.fromkeys(LAYERS, 0.1), 0.55), 9)
    assert len(found.curve["sensitive"]) == 9


def test_halves_of_a_layer_become_the_layer() -> None:
    units = units_of(range(2), True, NVFP4)
    assert units == ("0.k", "0.v", "1.k", "1.v")
    assert keeping(NVFP4, ["1.v", "0.k", "1.k"], "x").skip_layers == ("0.k", "1")


def test_layers_that_are_skipped_anyway_are_no_units() -> None:
    skipping = replace(NVFP4, skip_layers=("0", "2.k", "sliding_window"))
    assert units_of(range(4), False, skipping) == ("1", "2", "3")
    assert units_of(range(4), True, skipping) == ("1.k", "1.v", "2.v", "3.k", "3.v")
    assert keeping(skipping, ["10", "9"], "x").skip_layers == ("0", "2.k", "9", "10", "sliding_window")


def test_probes_quantize_one_unit_and_all_but_one() -> None:
    found = {treatment.name: treatment.skip_layers for treatment in probes(NVFP4, ("0", "1", "2"))}
    assert found["only-1"] == ("0", "2")
    assert found["without-1"] == ("1",)
    assert len(found) == 6


def test_units_are_in_the_order_of_the_model() -> None:
    assert in_order(["10", "9", "2.v", "2.k"]) == ("2.k", "2.v", "9", "10")


def _score(mean: float, upper: float | None) -> ScoreResult:
    return ScoreResult(
        role=ScoreRole.GATE, margin=2.0, flag_over=2.0, n_turns=10, n_headroom=10, baseline_mean=50.0,
        candidate_mean=50.0 - mean, mean_drop=mean, ci_lower=None, ci_upper=upper, drop_nats=None, recovery=None,
        drops_over=0, gains_over=0, direction_p=1.0, flagged_raw=0, n_conversations=1, beyond_p=1.0, further_turns=0,
    )  # fmt: skip


def _measured(first: ScoreResult, second: ScoreResult) -> Pass:
    gating = ScorePolicy(role=ScoreRole.GATE, margin=2.0)
    policy = Policy(name="p", rule=Rule.DEFAULT, hardest="a", scores={"a": {"gl": gating}, "b": {"gl": gating}})
    classes = {
        name: ClassResult(
            verdict=Verdict.PASS, reasons=(), n_turns=10, n_headroom=10, n_unscored=0, n_missing=0, scores={"gl": score}
        )
        for name, score in (("a", first), ("b", second))
    }
    result = CandidateResult(decision=Decision.PROMOTE, reasons=(), classes=classes)
    return measured("x", result, policy, kl=0.1, shares=(0.1,), size=50.0, plain=100.0)


def test_a_pass_names_the_score_that_goes_furthest() -> None:
    found = _measured(_score(0.2, 0.6), _score(0.5, 1.1))
    assert found.worst == "b gl"
    assert found.reach == pytest.approx(1.1 / 2)
    assert found.predicted == pytest.approx((0.5 + 2 * 0.6) / 2)
    assert found.drop == pytest.approx(0.35)
    assert found.compression == 2.0


def test_a_score_without_a_bound_reaches_beyond_every_margin() -> None:
    found = _measured(_score(0.2, None), _score(0.5, 1.1))
    assert found.worst == "a gl"
    assert found.reach is None
    assert found.worst_bound is None


def test_kept_units_are_named_in_the_passes() -> None:
    kept: set[Kept] = {each.kept for each in find(NVFP4, LAYERS, LAYERS, world({}, 1.0), 1).curve["sensitive"]}
    assert kept == {()}
