"""The simulations behind docs/operating-characteristics.md: they plant what they say, and decide as the gate does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.characteristics.cells import EVERYTHING, MARGIN, ROUNDS, Cell, Score, Where, grid
from benchmarks.characteristics.confirmation import Stage, policy
from benchmarks.characteristics.measure import measure
from benchmarks.characteristics.published import margin, sample
from benchmarks.characteristics.rules import LARGEST_BREAK, RULES, Facts, guarded, relative, zero_flags
from benchmarks.characteristics.sample import Sample, draw, generator, mean_baseline
from kvquant_eval.core.gate import decide
from kvquant_eval.core.policy import Policy, Rule, ScorePolicy, ScoreRole
from kvquant_eval.core.records import Decision, ScoreDelta
from kvquant_eval.core.stats import clustered, standard_error
from kvquant_eval.core.strata import Axis, Position
from tests.fakes.published import CASES, simulate
from tests.fakes.records import delta, grounds, one_class

CELLS = [cell for cells in grid().values() for cell in cells]
SMALL = [cell for cell in CELLS if cell.turns <= 200]
POLICIES = {
    "default": {"largest_break": LARGEST_BREAK},
    "custom": {"largest_break": 0.0},
    "strict": {"rule": Rule.STRICT, "largest_break": LARGEST_BREAK},
    "zero_flags": {"rule": Rule.ZERO_FLAGS},
}


def records(of: Sample) -> tuple[list[ScoreDelta], dict[str, Position]]:
    made = [
        delta(
            f"t{i:04}", float(d), baseline=float(b), candidate=float(b - d), conversation_id=str(c), turn_index=int(k)
        )
        for i, (b, d, c, k) in enumerate(zip(of.baseline, of.drops, of.conversation, of.index, strict=True))
    ]
    one = {Axis.CONTEXT: 1, Axis.REPLY: 1, Axis.FIRST_BLOCK: 0}
    return made, {d.turn_id: {**one, Axis.TURN_INDEX: d.turn_index} for d in made}


@pytest.mark.parametrize("rule", POLICIES)
def test_arrays_are_decided_as_records_are(rule: str) -> None:
    seen = set()
    for cell in SMALL[::2]:
        of = draw(cell, generator(cell))
        made, places = records(of)
        expected = decide(
            made, one_class(margin=cell.margin, **POLICIES[rule]), grounds(made, positions=places)
        ).decision
        assert RULES[rule](Facts(of, cell.margin)) is expected, cell.name
        seen.add(expected)
    assert len(seen) >= 2


@pytest.mark.parametrize("name", ["sglang-gptoss120b-fp4-gpqa", "vllm-qwen3-30b-thinking-fp8-gpqa"])
def test_published_cases_are_decided_as_records_are(name: str) -> None:
    made = simulate(CASES[name], 1)
    expected = decide(made, one_class(margin=margin(CASES[name])), grounds(made)).decision
    assert RULES["custom"](Facts(sample(made), margin(CASES[name]))) is expected


PLANTED = [
    Cell(score=score, turns=150_000, drop=2.0, sizes=ROUNDS, shared=0.5, disagreement=0.2, where=where, loss=loss)
    for score in Score
    for where in Where
    for loss in ((40.0, EVERYTHING) if "breaks" in where else (EVERYTHING,))
]


@pytest.mark.parametrize("cell", PLANTED, ids=lambda cell: cell.name)
def test_the_drop_is_the_planted_one(cell: Cell) -> None:
    of = draw(cell, generator(cell))
    seen = clustered(of.drops.tolist(), of.conversation.tolist())
    assert seen.mean == pytest.approx(cell.drop, abs=4 * standard_error(seen))
    assert standard_error(seen) < 0.3


@pytest.mark.parametrize(("drop", "epochs"), [(0.0, 1), (40.0, 1), (40.0, 16)])
def test_large_drops_of_binary_scores_are_not_clipped(drop: float, epochs: int) -> None:
    cell = Cell(score=Score.BINARY, turns=50_000, drop=drop, disagreement=0.1, epochs=epochs)
    of = draw(cell, generator(cell))
    assert of.drops.mean() == pytest.approx(drop, abs=0.8)
    assert of.baseline.mean() == pytest.approx(mean_baseline(cell), abs=0.8)


@pytest.mark.parametrize("disagreement", [0.05, 0.2])
@pytest.mark.parametrize("difficulty", [(0.7, 0.3), (7.0, 3.0)])
def test_the_disagreement_is_the_planted_one(disagreement: float, difficulty: tuple[float, float]) -> None:
    cell = Cell(score=Score.BINARY, turns=50_000, drop=0.0, disagreement=disagreement, difficulty=difficulty)
    assert (draw(cell, generator(cell)).drops != 0).mean() == pytest.approx(disagreement, abs=0.008)


def test_turns_of_a_conversation_are_correlated_where_they_share() -> None:
    cell = Cell(score=Score.BINARY, turns=24_000, drop=2.0, disagreement=0.2, sizes=(12, 12), shared=0.5)
    spread = {}
    for shared in (0.0, 0.5):
        of = draw(replace(cell, shared=shared), np.random.default_rng(1))
        spread[shared] = standard_error(clustered(of.drops.tolist(), of.conversation.tolist()))
    assert spread[0.5] > 1.2 * spread[0.0]


def test_every_cell_has_a_name_of_its_own_and_there_are_120_at_most() -> None:
    assert len({cell.name for cell in CELLS}) == len(CELLS) <= 120
    assert {cell.drop for cell in grid()["margins"] if cell.margin == MARGIN} == {MARGIN}


def test_a_cell_measures_the_same_twice() -> None:
    assert measure(SMALL[0], 5) == measure(SMALL[0], 5)


def test_naive_rules_by_hand() -> None:
    """40 turns from 60 points, one of which loses 3: 0.075 points on average, 0.1% of the baseline."""
    drops = np.array([3.0] + [0.0] * 39)
    facts = Facts(Sample(np.full(40, 60.0), drops, np.arange(40), np.zeros(40, dtype=int)), MARGIN)
    assert zero_flags(facts) is Decision.HOLD
    assert relative(facts) is Decision.PROMOTE
    assert guarded(facts) is Decision.INCONCLUSIVE  # 60 * (1 - 0.05 ** (1 / 40)) is 4.3 points


def test_the_policies_are_those_of_the_configuration() -> None:
    """What the rules take from ``Policy`` is what ``conf/gate/default.yaml`` has."""
    rule = policy()
    assert (rule.hold_level, rule.largest_break) == (Policy.hold_level, LARGEST_BREAK)
    assert Stage(difficulty=(1, 1), damaged=0, epochs=rule.confirm_epochs).epochs == Policy.confirm_epochs
    assert rule.scores["sampled"]["answer"] == ScorePolicy(role=ScoreRole.GATE, margin=10.0)
