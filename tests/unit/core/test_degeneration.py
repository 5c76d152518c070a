"""Signs of degenerate replies, and when more of them than the baseline's are a reason to hold."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvquant_eval.core.degeneration import Degeneration, Sign, Signs, contrast, judge_rise, shown, signs
from kvquant_eval.core.outcome import loops
from kvquant_eval.core.records import Measure, Outcome
from tests.fakes.records import forced, golden_turn, rendered_turn, reply

SPEECH = tuple(range(1000, 1100))
GOLDEN = "Step 1: 3 + 2 = 5"


def found(
    text: str = "fine", ids: tuple[int, ...] = (), finish: str = "length", golden: str = GOLDEN, **rendered: Any
) -> set[str]:
    """The signs of a reply; by default one of a turn whose golden reply has 100 tokens."""
    turn = golden_turn(reference={"role": "assistant", "content": golden})
    place = rendered_turn(**{"golden_ids": SPEECH, **rendered})
    return {str(sign) for sign in signs(reply(text, token_ids=ids, finish_reason=finish), turn, place)}


@pytest.mark.parametrize(
    ("ids", "sign"),
    [
        (SPEECH, set()),
        ((), set()),
        ((7,) * 15, set()),
        ((7,) * 16, {"same_token"}),
        (SPEECH[:20] + (7,) * 16, {"same_token"}),
        ((1, 2) * 11, set()),
        ((1, 2) * 12, {"loop"}),
        (SPEECH[:10] * 3, set()),
        (SPEECH[:10] * 4 + SPEECH[:5], {"loop"}),  # cut in the middle of the phrase
        (SPEECH[:20] + (7,) * 20 + SPEECH[:20], set()),  # left again: longer ones count
        (SPEECH[:20] + (7,) * 64 + SPEECH[:20], {"same_token"}),
        (SPEECH[:20] + (1, 2, 3) * 32 + SPEECH[:20], {"loop"}),
        (SPEECH[:20] + SPEECH[:10] * 20 + SPEECH[20:40], {"loop"}),
    ],
)
def test_loops_and_same_tokens(ids: tuple[int, ...], sign: set[str]) -> None:
    assert found(ids=ids, golden_ids=tuple(range(1000))) == sign


def test_the_end_of_turn_token_hides_no_loop() -> None:
    assert found(ids=((1, 2) * 12) + (99,), finish="stop") == {"loop"}
    assert found(ids=(7,) * 16 + (99,), finish="stop") == {"same_token"}


@pytest.mark.parametrize("ending", ["!!!", "| --- | --- | --- |", "=" * 12, "}" * 12, "1" + "0" * 12])
def test_ordinary_endings_are_none_of_it(ending: str) -> None:
    text = "The totals of the four teams: " + ending
    assert found(text, tuple(map(ord, text)), "stop") == set()


@pytest.mark.parametrize(
    ("text", "finish", "sign"),
    [
        ("2 \ufffd 3", "stop", {"invalid_utf8"}),
        ("costs 3 \ufffd", "stop", {"invalid_utf8"}),
        ("costs 3 \ufffd", "length", set()),  # a character cut at the limit
        ("costs 3 \ufffd\ufffd\ufffd", "length", set()),
        ("costs 3 \ufffd\ufffd\ufffd\ufffd", "length", {"invalid_utf8"}),
        ("\ufffd costs 3 \ufffd", "length", {"invalid_utf8"}),
        ("<think>so", "length", {"unclosed_think"}),
        ("[THINK]so", "stop", {"unclosed_think"}),
        ("<think>so</think> 5", "stop", set()),
        ("<think>so</think>\n", "stop", {"empty"}),
        (" \n", "stop", {"empty"}),
        ("", "length", {"empty"}),
        ("\ufffd", "length", set()),
    ],
)
def test_what_the_text_shows(text: str, finish: str, sign: set[str]) -> None:
    assert found(text, finish=finish) == sign


@pytest.mark.parametrize(
    ("tokens", "finish", "sign"),
    [(199, "length", set()), (200, "length", {"runaway"}), (200, "stop", set())],
)
def test_runaway_is_the_limit_at_twice_the_golden_length(tokens: int, finish: str, sign: set[str]) -> None:
    assert found(ids=tuple(range(tokens)), finish=finish) == sign


def test_what_the_golden_reply_shows_is_no_sign() -> None:
    assert found("a \ufffd b", finish="stop", golden="a \ufffd b") == set()
    assert found("write <think>", finish="stop", golden="write <think> first") == set()
    assert found(ids=(7,) * 20, golden_ids=(5, *(7,) * 20)) == set()


PUBLIC = {
    "omlx#3777, vllm#13035, vllm#14126: token 0 from the first token on": ("!" * 40, (0,) * 40, {"same_token"}),
    "vllm#45540: FP8 KV, after some time": ("It is" + "!" * 30, (*SPEECH[:4], *(0,) * 30), {"same_token"}),
    "the same, where token 0 is a special token that no text shows": ("", (0,) * 40, {"same_token", "empty"}),
    "mlx-vlm#1322: quantized KV": ("9" * 40, (24,) * 40, {"same_token"}),
    "osaurus#998: 4-bit KV": ("So, " + "idea " * 30, (*SPEECH[:9], *(612,) * 30), {"same_token"}),
    "private-mind#255": ("shirts, " + "caps, " * 20, (*SPEECH[:4], *(311, 11) * 20), {"loop"}),
    "vllm-ascend#15166: in its think block, up to the limit": (
        "<think>so " + "I'll use \\boxed{460}. " * 9,
        (*SPEECH[:9], *SPEECH[20:30] * 9),
        {"loop", "unclosed_think"},
    ),
    "vllm#45736, vllm#41902: a normal finish reason": ("", (2,), {"empty"}),
    "omlx#3772: cut while it thinks": ("<think>and ", SPEECH, {"unclosed_think"}),
}


@pytest.mark.parametrize("thread", PUBLIC)
def test_public_failures_are_caught(thread: str) -> None:
    text, ids, sign = PUBLIC[thread]
    assert found(text, ids) == sign


@given(st.lists(st.integers(0, 4), max_size=80))
def test_what_outcome_calls_a_loop_is_one_here(ids: list[int]) -> None:
    if loops(ids):
        assert found(ids=tuple(ids)) & {"loop", "same_token"}


@given(st.lists(st.integers(0, 9), min_size=1, max_size=7), st.integers(0, 50), st.integers(0, 50))
def test_a_long_loop_is_found_wherever_it_stands(phrase: list[int], before: int, after: int) -> None:
    ids = (*range(100, 100 + before), *(phrase * 96)[: 96 + len(phrase) * 16], *range(200, 200 + after))
    assert found(ids=ids) & {"loop", "same_token"}


@pytest.mark.parametrize("left_out", ["skipped", "infra_error", "forced"])
def test_only_scored_generated_replies_are_evidence(left_out: str) -> None:
    other = reply("", turn_id="t") if left_out != "forced" else forced([-1.0])
    if left_out != "forced":
        other = reply("", outcome=Outcome(left_out))
    assert shown([other], {"t": (golden_turn(), rendered_turn())}) == {}


LOOP, FINE = frozenset({Sign.LOOP}), frozenset[Sign]()


def counted(before: list[bool], after: list[bool], turns_each: int = 1, epochs: int = 1) -> Degeneration:
    """Arms in which these turns are degenerate, ``turns_each`` turns a conversation."""
    ids = [f"t{i:04}" for i in range(len(before))]
    places = {
        t: (golden_turn(t), rendered_turn(t, conversation_id=f"c{i // turns_each:04}")) for i, t in enumerate(ids)
    }

    def arm(there: list[bool]) -> dict[tuple[str, Measure, int], Signs]:
        return {
            (t, Measure.GENERATED, e): LOOP if x else FINE
            for t, x in zip(ids, there, strict=True)
            for e in range(epochs)
        }

    return contrast(arm(before), arm(after), places)


def test_counts_and_p_of_a_rise() -> None:
    made = counted([True, *[False] * 99], [False] * 92 + [True] * 8)
    assert (made.n, made.degenerate, made.baseline, made.rise, made.share) == (100, 8, 1, 7, 0.07)
    assert made.p == pytest.approx(10 / 512)  # at most one of nine changed signs
    assert (made.signs[Sign.LOOP], made.baseline_signs[Sign.LOOP], made.signs[Sign.EMPTY]) == (8, 1, 0)
    assert made.classes == {"math_chain": (100, 8, 1)}


def test_seven_of_one_conversation_prove_nothing() -> None:
    before, after = [False] * 70, [True] * 7 + [False] * 63
    assert counted(before, after).p == pytest.approx(2**-7)
    assert counted(before, after, turns_each=7).p == 0.5


def test_epochs_are_averaged_first() -> None:
    once, thrice = (counted([False] * 70, [True] * 7 + [False] * 63, epochs=n) for n in (1, 3))
    assert (once.p, once.share) == (thrice.p, thrice.share)
    assert (once.rise, thrice.rise) == (7, 21)


def test_replies_without_a_pair_do_not_count() -> None:
    places = {"t": (golden_turn(), rendered_turn())}
    made = contrast({("t", Measure.GENERATED, 0): FINE}, {("t", Measure.GENERATED, 1): LOOP}, places)
    assert (made.n, made.rise, made.share, made.p) == (0, 0, 0.0, 1.0)


@pytest.mark.parametrize(
    ("more", "control", "held"),
    [(6, 0, False), (7, 0, True), (7, 6, True), (7, 7, False), (7, 8, False), (-7, 0, False)],
)
def test_a_rise_beyond_chance_and_beyond_the_controls_holds(more: int, control: int, held: bool) -> None:
    def moved(by: int) -> Degeneration:
        worse = [True] * abs(by) + [False] * (100 - abs(by))
        return counted([False] * 100, worse) if by >= 0 else counted(worse, [False] * 100)

    findings = judge_rise(moved(more), [moved(0), moved(control)], 0.01)
    assert [finding.holds for finding in findings] == [True] * held
    if held:
        assert findings[0].where == "degenerate replies"
        assert findings[0].what == (
            f"7 of 100 against the baseline's 0 (p = 0.0078), the controls rise by at most {control}; loop 7"
        )


@settings(max_examples=10)
@given(st.integers(0, 2**32), st.integers(1, 4))
def test_the_order_of_the_replies_changes_nothing(seed: int, turns_each: int) -> None:
    rng = random.Random(seed)
    ids = [f"t{i}" for i in range(30)]
    places = {t: (golden_turn(t), rendered_turn(t, conversation_id=f"c{i // turns_each}")) for i, t in enumerate(ids)}
    arms = [{(t, Measure.GENERATED, 0): LOOP if rng.random() < p else FINE for t in ids} for p in (0.1, 0.4)]
    again = [dict(rng.sample(list(arm.items()), len(arm))) for arm in arms]
    assert contrast(again[0], again[1], places) == contrast(arms[0], arms[1], places)
