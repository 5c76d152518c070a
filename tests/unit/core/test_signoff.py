"""The terms of a decision, what bars one, and what to give vLLM."""

from __future__ import annotations

from typing import Any

import pytest

from kvquant_eval.core.signoff import barred, terms, vllm_flags
from tests.fakes.decided import document


def test_the_terms_are_those_of_the_document() -> None:
    made = document("org/model", "run")
    made["engine"]["attention_backend"] = "CPU_ATTN (amx)"
    found = terms(made, made["candidates"][0])
    assert (found.model, found.revision, found.kv_effective) == ("org/model", "r1", "fp8_e4m3")
    assert (found.engine_version, found.attention_backend) == ("0.32.0", "CPU_ATTN (amx)")
    assert (found.policy, found.policy_sha256, found.bytes_per_token) == ("default", "p" * 64, 48.0)
    assert found.golden == f"agents 1 {'a' * 64}"


@pytest.mark.parametrize(
    ("change", "bar"),
    [
        ({}, ""),
        ({"self_test": True}, "self_test"),
        ({"post_hoc": True}, "post_hoc"),
        ({"realisation": "reference"}, "reference"),
    ],
)
def test_what_bars_a_decision(change: dict[str, Any], bar: str) -> None:
    made = document("org/model", "run", **change)
    assert barred(made, made["candidates"][0]) == bar


def test_a_part_of_the_golden_set_bars() -> None:
    made = document("org/model", "run")
    made["golden"]["folds"] = [0]
    assert barred(made, made["candidates"][0]) == "part_of_the_golden_set"


def test_flags_for_vllm() -> None:
    kv = {"requested": "fp8_e4m3", "effective": "fp8_e4m3", "realisation": "native"}
    assert vllm_flags(kv) == ""
    assert vllm_flags({**kv, "layers_skipped": []}) == "--kv-cache-dtype fp8_e4m3"
    skipping = "--kv-cache-dtype fp8_e4m3 --kv-cache-dtype-skip-layers 0 29"
    assert vllm_flags({**kv, "layers_skipped": [0, 29]}) == skipping
    assert vllm_flags({**kv, "layers_skipped": [], "realisation": "reference"}) == ""
