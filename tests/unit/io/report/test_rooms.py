"""What is gained, what was attested, what was foreseen, and how to get it again."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvquant_eval.core.treatment import KVTreatment, Realisation
from kvquant_eval.io.report.attestation import attestation_section
from kvquant_eval.io.report.blocks import Code, Facts, Items, Section, Table
from kvquant_eval.io.report.conditions import policy_section, power_section
from kvquant_eval.io.report.gains import context_lengths, gains_section
from kvquant_eval.io.report.names import layers
from kvquant_eval.io.report.reproduce import reproduce_section

MakeCase = Callable[..., Any]


def table(section: Section) -> dict[str, tuple[str, ...]]:
    """Rows by their first cell."""
    (found,) = [block for block in section.blocks if isinstance(block, Table)]
    return {row[0]: row[1:] for row in found.rows}


def sentences(section: Section) -> tuple[str, ...]:
    return tuple(row for block in section.blocks if isinstance(block, Items) for row in block.rows)


def codes(section: Section) -> list[str]:
    return [block.text for block in section.blocks if isinstance(block, Code)]


def gains(made: Any) -> Section:
    return gains_section(made.document["candidates"][0], made.document, "BF16", made.prepared)


@pytest.mark.parametrize(
    ("indices", "expected"), [([], "none"), ([3], "3"), ([0, 1, 2], "0 to 2"), ([0, 1, 4, 7, 8], "0 to 1, 4, 7 to 8")]
)
def test_layer_indices(indices: list[int], expected: str) -> None:
    assert layers(indices) == expected


def test_contexts_are_prompt_and_reply_limit_of_turns_that_ran(case: MakeCase) -> None:
    """40 turns a class, each 3 + 8 tokens but for those that are changed here."""
    made = case()
    first, second, third, *rest = made.prepared.turns
    turns = (replace(first, max_tokens=97), replace(second, prompt_ids=(1,) * 500, skip="too long"), third, *rest)
    assert context_lengths(replace(made.prepared, turns=turns)) == {
        "all classes": (11, 100), "faq": (11, 100), "math_chain": (11, 11),
    }  # fmt: skip
    assert context_lengths(replace(made.prepared, turns=())) == {}


def test_gains_of_a_native_candidate(case: MakeCase) -> None:
    """128 bytes and room for 1,000 tokens against 64 and 2,000; 8 tokens in 2 seconds."""
    found = gains(case())
    rows = table(found)
    assert rows["bytes per token"] == ("128", "64 (0.50×)")
    assert rows["capacity, tokens"] == ("1,000", "2,000 (2.00×)")
    assert rows["sessions, all classes: 11 / 11 tokens"] == ("90 / 90", "181 / 181")
    assert any("4.0 BF16, 4.0 candidate; " in said and "no benchmark" in said for said in sentences(found))
    assert codes(found) == ["--kv-cache-dtype fp8_e4m3"]


@pytest.mark.parametrize(("drop", "change"), [(9.0, {}), (0.5, {"post_hoc": True})])
def test_flags_are_offered_to_serve_with_only_where_it_may_serve(
    case: MakeCase, drop: float, change: dict[str, Any]
) -> None:
    assert "to serve vLLM as it was gated:" in sentences(gains(case(0.5)))
    made = case(drop)
    made.document.update(change)
    assert "to serve vLLM as it was gated:" not in sentences(gains(made))
    assert any("this decision is none to serve by" in said for said in sentences(gains(made)))


def test_what_no_flag_can_say_is_said_beside_them(case: MakeCase) -> None:
    made = case()
    assert not any("scales" in said for said in sentences(gains(made)))
    made.document["candidates"][0]["kv"]["scales"] = {"kind": "checkpoint", "k": [0.5, 0.75], "v": [1.0, 1.0]}
    assert sentences(gains(made))[-1].startswith("no flag has the scales: ")


def test_a_reference_gains_nothing_and_says_what_its_format_would(case: MakeCase) -> None:
    made = case(candidate=KVTreatment(name="ref", dtype="fp8_e4m3", realisation=Realisation.REFERENCE))
    made.document["candidates"][0]["kv"]["nominal_bytes_per_token"] = 64.0
    found = gains(made)
    assert table(found)["capacity, tokens"] == ("1,000", "2,000 (2.00×)")
    assert next(block for block in found.blocks if isinstance(block, Table)).columns[-1] == "a native store would"
    assert codes(found) == []
    said = " ".join(sentences(found))
    assert "saves nothing here" in said
    assert "no flags to paste" in said


def test_nothing_read_back_nothing_gained(case: MakeCase) -> None:
    found = gains(case(run_candidate=False, error="died"))
    assert sentences(found) == ("the KV cache was not read back: nothing is known to be gained",)


def test_attestation_has_a_column_an_arm(case: MakeCase) -> None:
    rows = table(attestation_section(case().document))
    assert rows["role"] == ("baseline", "control", "control", "candidate")
    assert rows["KV requested"] == ("bfloat16", "bfloat16", "placebo", "fp8_e4m3")
    assert rows["KV effective"] == ("bfloat16", "bfloat16", "placebo in bfloat16", "fp8_e4m3")
    assert rows["layers quantized"] == ("0 of 1", "0 of 1", "1 of 1", "1 of 1")
    assert rows["capacity, tokens"] == ("1,000", "1,000", "1,000", "2,000")
    assert rows["attention backend"] == ("FAKE",) * 4
    assert rows["other settings"] == ("–", *["as the baseline's"] * 3)
    assert rows["preemptions"] == ("0",) * 4
    assert not any(cell.startswith("≠") for row in rows.values() for cell in row)


def test_what_differs_is_marked_in_words_and_by_a_sign(case: MakeCase, tmp_path: Path) -> None:
    made = case(error="the engine died")
    arm = made.document["arms"]["fp8_e4m3"]
    arm["differs"] = {"attention_backend": [["FAKE"], ["OTHER"]], "block_size": [16, 32], "graph": [None, True]}
    arm["attested"]["attention_backend"], arm["preemptions"] = "OTHER", 3
    finding = {"where": "fp8_e4m3", "what": "requested fp8_e4m3, but 1 of 1 layers run bfloat16", "invalid": True}
    made.document["candidates"][0]["findings"] = [finding]
    section = attestation_section(made.document)
    rows = table(section)
    assert rows["attention backend"] == ("FAKE", "FAKE", "FAKE", "≠ OTHER")
    assert rows["other settings"][-1] == "≠ block_size 32 (baseline 16); graph true (baseline null)"
    assert (rows["preemptions"][-1], rows["error"][-1]) == ("≠ 3", "≠ the engine died")
    assert rows["KV effective"][-1] == "≠ fp8_e4m3"
    assert sentences(section)[1] == "invalid: fp8_e4m3: requested fp8_e4m3, but 1 of 1 layers run bfloat16"
    page = made.write(tmp_path)["report.html"]
    assert "<mark>≠ OTHER</mark>" in page
    assert page.count("<mark>") == 5


def test_an_arm_that_was_not_read_back_has_its_column(case: MakeCase) -> None:
    rows = table(attestation_section(case(run_candidate=False, error="died").document))
    assert rows["bytes per token"] == ("128", "128", "128", "–")
    assert rows["engine"][-1] == rows["other settings"][-1] == "not read back"
    assert rows["outcomes"][-1] == "did not run"


def test_power_by_class() -> None:
    classes = {
        "faq": {"n_turns": 44, "n_conversations": 14, "chance": 0.0, "detectable": 2.4, "conversations": 149},
        "math": {"n_turns": 64, "n_conversations": 32, "chance": 1.0, "detectable": None, "conversations": None},
    }
    power = {"chance": 0.25, "held": 0.004, "noise": "measured", "run": "run-0", "classes": classes, "advice": ["faq"]}
    found = power_section(power)
    chances = "a candidate that loses nothing is promoted with a chance of 25%, and held with one of 0.4%"
    assert sentences(found)[:2] == (f"{chances} (noise measured in run run-0)", "faq")
    assert table(found) == {"faq": ("44", "14", "0%", "2.4", "149"), "math": ("64", "32", "100%", "–", "–")}


def test_power_of_runs_that_kept_less() -> None:
    assert sentences(power_section({"chance": 1.0, "noise": "assumed"})) == (
        "a candidate that loses nothing is promoted with a chance of 100% (noise assumed)",
    )
    assert sentences(power_section(None)) == (
        "nothing was foreseen: it was decided afterwards, or by a run from before that was kept",
    )


def test_policy_in_words(case: MakeCase) -> None:
    made = case()
    found = policy_section(made.document)
    (facts,) = [dict(block.rows) for block in found.blocks if isinstance(block, Facts)]
    assert facts["turns that a promotion needs, all classes together"] == "10"
    assert facts["candidates that count"] == "all"
    assert facts["a candidate that has surely lost is run no further"] == "no"
    assert facts["golden set"] == "tiny 3: 80 turns, 0 of them skipped in all arms as they do not fit"
    assert table(found)["faq"] == ("critical", "gl_reply (2)", "–")


def test_the_command_that_asks_again(case: MakeCase) -> None:
    command = ["kvquant-eval", "gate", "kv=[fp8_e4m3]", "name='it is'", *(f"engine.args.key_{n}=1" for n in range(9))]
    document = {**case().document, "command": command, "plan_sha256": "cd" * 32, "kvquant_eval_version": "0.1.0"}
    again, anew = codes(reproduce_section(document))
    assert again == "kvquant-eval regate ."
    assert shlex.split(anew.replace("\\\n", "")) == [*command, "resume=never"]
    assert max(map(len, anew.split("\n"))) <= 92
    (facts,) = [dict(block.rows) for block in reproduce_section(document).blocks if isinstance(block, Facts)]
    assert (facts["plan sha256"], facts["golden set sha256"]) == ("cd" * 32, "ab" * 32)
    assert facts["versions"] == "kvquant_eval 0.1.0, vllm 0.32.0"


def test_what_was_decided_afterwards_goes_back_to_its_run(case: MakeCase) -> None:
    found = reproduce_section({**case().document, "post_hoc": True})
    assert codes(found) == ["kvquant-eval regate ../.."]
    assert sentences(found)[0].startswith("this was decided after the run")


def test_a_command_without_its_password_says_so(case: MakeCase) -> None:
    document = case().document
    said = [
        sentences(reproduce_section({**document, "command": ["gate", f"uri=http://{user}host"]}))
        for user in ("***@", "")
    ]
    assert ["not kept" in " ".join(each) for each in said] == [True, False]


def test_a_run_that_kept_no_command_says_so(case: MakeCase) -> None:
    found = reproduce_section(case().document)
    assert codes(found) == ["kvquant-eval regate ."]
    assert "config.yaml in its folder is the whole configuration" in sentences(found)[-1]
