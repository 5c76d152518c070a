"""Records to JSON and back, canonical text, and errors that say where."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvquant_eval.core.codec import (
    DataError,
    canonical,
    digest,
    from_data,
    from_json,
    nearest,
    quoted,
    to_data,
    to_json,
)
from kvquant_eval.core.engine import EngineFacts
from kvquant_eval.core.records import GoldenTurn, Outcome, Replay, ScoreDelta
from tests.fakes.records import facts, forced, golden_turn, layer, reply

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.floats(-1e30, 0), min_size=1, max_size=5), st.text(st.characters(exclude_categories=["Cs"])))
def test_a_replay_survives_the_round_trip_bit_for_bit(logprobs: list[float], text: str) -> None:
    replay = forced(logprobs, text=text)
    again = from_json(Replay, to_json(replay), "here")
    assert again == replay
    assert [math.copysign(1, p) for p in again.logprobs] == [math.copysign(1, p) for p in logprobs]
    assert from_data(Replay, json.loads(json.dumps(to_data(replay))), "here") == replay


def test_a_record_is_one_line() -> None:
    assert "\n" not in to_json(reply("a\nb\r\nc\u2028d"))


def test_enums_come_back_as_enums() -> None:
    assert from_json(Replay, to_json(reply("x", outcome=Outcome.EMPTY)), "here").outcome is Outcome.EMPTY


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"^golden\.jsonl:7: line: .*Invalid JSON"),
        ('{"turn_id": "t"}', r"^golden\.jsonl:7: workload: .*required"),
        ('{"turn_id": "t", "workload": "w", "conversation_id": "c", "turn_index": "x"}', r"turn_index: .*got 'x'"),
    ],
)
def test_bad_json_says_where_what_and_which_value(text: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        from_json(GoldenTurn, text, "golden.jsonl:7")
    assert "\n" not in str(caught.value)


def test_bad_data_says_where() -> None:
    with pytest.raises(DataError, match=r"^delta: drop: .*got 'much'"):
        from_data(ScoreDelta, {**to_data(_delta()), "drop": "much"}, "delta")


def test_a_huge_value_is_cut_in_the_message() -> None:
    with pytest.raises(DataError) as caught:
        from_data(ScoreDelta, {**to_data(_delta()), "drop": "x" * 10_000}, "delta")
    assert len(str(caught.value)) < 300


def _delta() -> ScoreDelta:
    return ScoreDelta(
        turn_id="t",
        workload="w",
        conversation_id="c",
        turn_index=0,
        scorer="s",
        baseline=1.0,
        candidate=1.0,
        drop=0.0,
    )


def test_defaults_are_filled_in() -> None:
    data = {k: v for k, v in to_data(golden_turn()).items() if k not in ("tools", "tags", "max_tokens")}
    assert from_data(GoldenTurn, data, "here") == golden_turn()


def test_canonical_text_has_sorted_keys_and_no_spaces() -> None:
    assert canonical({"b": [1, 2.5, None], "a": "é"}) == '{"a":"é","b":[1,2.5,null]}'


@given(JSON)
def test_equal_values_have_equal_digests(value: object) -> None:
    again = json.loads(json.dumps(value))
    assert canonical(value) == canonical(again)
    assert digest(value) == digest(again)


def test_the_digest_is_sha256_of_the_canonical_text() -> None:
    assert digest({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    assert digest({"a": 1}) != digest({"a": 2})


def test_not_a_number_has_no_canonical_text() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical({"p": math.nan})


@pytest.mark.parametrize(
    ("name", "remedy"), [("fp8_e4m4", "did you mean 'fp8_e4m3'?"), ("zzz", "choose from fp8_e4m3, int8")]
)
def test_an_unknown_name_gets_the_nearest_or_all(name: str, remedy: str) -> None:
    assert nearest(name, iter(["fp8_e4m3", "int8"])) == remedy


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_lacks_is_not_changed_on_the_way(value: float) -> None:
    """What cannot be written must be refused when it is written, or come back as it was: a journal that cannot be read
    again is lost.
    """
    try:
        line = to_json(forced([value]))
    except ValueError:
        return
    again = from_json(Replay, line, "here").logprobs[0]
    assert again == value or (math.isnan(again) and math.isnan(value))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"decisve": []}, r"^here: decisve: a known key, got 'decisve'; did you mean 'decisive'\?$"),
        ({"decisive": [{"text": "5", "nht": 1}]}, r"^here: decisive\.0\.nht: .*did you mean 'nth'\?$"),
    ],
)
def test_an_unknown_key_of_a_golden_turn_is_named_with_the_nearest(change: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        from_data(GoldenTurn, {**to_data(golden_turn()), **change}, "here")


def test_unknown_keys_of_what_an_arm_wrote_are_passed_over() -> None:
    assert from_data(Replay, {**to_data(reply("x")), "later": 1}, "here") == reply("x")


def test_scales_that_are_no_numbers_stay_so_in_strict_json() -> None:
    line = to_json(facts(layer(0, k_scale=math.nan)))
    json.loads(line, parse_constant=pytest.fail)
    assert math.isnan(from_json(EngineFacts, line, "here").layers[0][0].k_scale or 0.0)


def test_an_error_is_one_line_that_prints_whatever_was_put_into_it() -> None:
    assert str(DataError("a\nb \x1b[2J \u202e \x00 \ud800 é")) == r"a\nb \x1b[2J \u202e \x00 \ud800 é"


def test_a_quoted_value_is_cut_and_escaped() -> None:
    assert quoted("a'b\n") == '"a\'b\\n"'
    assert quoted("x" * 80) == f"'{'x' * 80}'"
    assert quoted("x" * 81) == f"'{'x' * 80}'..."
    assert quoted(3) == "'3'"


def test_a_huge_or_hostile_key_is_cut_and_escaped() -> None:
    with pytest.raises(DataError) as caught:
        from_data(GoldenTurn, {**to_data(golden_turn()), "\x1b" + "k" * 10_000: 1}, "here")
    assert r"got '\x1bkkk" in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


def test_of_many_names_some_are_shown() -> None:
    names = [f"name-{i:03}" for i in range(100)]
    assert nearest("zzz", names) == f"choose from {', '.join(names[:30])} and 70 more"


@pytest.mark.parametrize("value", ["3", 3.0, True, None])
@pytest.mark.parametrize("field", ["turn_index", "max_tokens"])
def test_a_number_of_a_golden_turn_is_written_as_one(field: str, value: object) -> None:
    with pytest.raises(DataError, match=rf"^here: {field}: .*valid integer"):
        from_data(GoldenTurn, {**to_data(golden_turn()), field: value}, "here")
