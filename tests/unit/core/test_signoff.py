"""The terms of a decision, what bars one, what to give vLLM, and the chain of signatures."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
import yaml

from kvquant_eval.cli.config import data_folder
from kvquant_eval.core.codec import digest, to_data
from kvquant_eval.core.records import Decision
from kvquant_eval.core.signoff import (
    FOLDER_REVISION,
    Signature,
    Terms,
    barred,
    dtype_name,
    extended,
    faults,
    file_stem,
    flags_of,
    seal,
    standing,
    terms,
    vllm_flags,
)
from tests.fakes.decided import document
from tests.fakes.signed import SKIPPING, TERMS, record, signature


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


def test_flags_of_what_was_signed() -> None:
    assert flags_of(SKIPPING) == "--kv-cache-dtype fp8_e4m3 --kv-cache-dtype-skip-layers 0"
    assert flags_of(replace(TERMS, bytes_per_token=None)) == ""


def test_each_signature_is_bound_to_the_one_before() -> None:
    first, second = record(signature(), signature(by="Bo")).signatures
    assert (first.previous, second.previous) == (None, first.sha256)
    data = to_data(second)
    del data["sha256"]
    assert second.sha256 == digest(data)
    assert not list(faults(record(signature(), signature(by="Bo"))))


CHANGES: dict[str, Any] = {
    "by": "Eve", "at": "2026-01-01T12:00:01+00:00", "expires": date(2030, 1, 1), "note": "x", "override": "x",
    "run_id": "x", "candidate": "x", "decision": Decision.HOLD, "barred": "self_test", "decision_sha256": "e" * 64,
    "terms": replace(TERMS, engine_version="0.33.0"), "previous": "e" * 64, "sha256": "e" * 64,
}  # fmt: skip


@pytest.mark.parametrize("name", [field.name for field in fields(Signature)])
def test_a_changed_field_is_found(name: str) -> None:
    made = record()
    changed = replace(made, signatures=(replace(made.signatures[0], **{name: CHANGES[name]}),))
    assert any(fault.startswith("signature 1: says sha256 ") for fault in faults(changed))


@pytest.mark.parametrize("name", [field.name for field in fields(Terms)])
def test_a_changed_term_is_found(name: str) -> None:
    made = record()
    value = getattr(TERMS, name)
    other = {str: "x", float: 1.5, tuple: (9,)}[type(value)]
    changed = replace(made.signatures[0], terms=replace(TERMS, **{name: other}))
    assert any("its content has" in fault for fault in faults(replace(made, signatures=(changed,))))


def test_a_changed_signature_with_its_hash_made_anew_breaks_the_chain() -> None:
    made = record(signature(), signature(by="Bo"))
    first = seal(replace(made.signatures[0], by="Eve"))
    (fault,) = faults(replace(made, signatures=(first, made.signatures[1])))
    assert fault.startswith(f"signature 2: follows {made.signatures[0].sha256[:12]}, got {first.sha256[:12]} before it")


def test_a_signature_taken_out_or_moved_is_found() -> None:
    made = record(signature(), signature(by="Bo"), signature(by="Cy"))
    one, two, three = made.signatures
    for kept in ((two, three), (one, three), (one, three, two)):
        assert list(faults(replace(made, signatures=kept)))
    assert list(faults(replace(made, signatures=()))) == ["no signature"]


@pytest.mark.parametrize("change", [{"model": "org/other"}, {"revision": "r2"}, {"kv_dtype": "fp8_e5m2"}])
def test_the_file_and_its_signatures_are_about_the_same(change: dict[str, str]) -> None:
    (fault,) = faults(replace(record(), **change))
    assert fault == "signature 1: is about another model, revision or KV dtype than the file"


@pytest.mark.parametrize(
    ("change", "what"), [({"decision": Decision.HOLD}, "HOLD"), ({"barred": "post_hoc"}, "post_hoc")]
)
def test_what_is_not_promoted_needs_an_override(change: dict[str, Any], what: str) -> None:
    assert list(faults(record(signature(**change)))) == [f"signature 1: signs {what} without an override"]
    assert not list(faults(record(signature(**change, override="a pilot"))))


def test_an_expiry_is_the_end_of_a_day() -> None:
    last = datetime(2026, 3, 31, 23, 59, 59, tzinfo=UTC)
    assert not signature(expires=date(2026, 3, 31)).expired(last)
    assert signature(expires=date(2026, 3, 31)).expired(last + timedelta(seconds=1))
    assert not signature().expired(last)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({}, "fp8_e4m3"),
        ({"layers_skipped": (0, 29)}, "fp8_e4m3-skip-0-29"),
        ({"layers_skipped": tuple(range(25))}, "fp8_e4m3-skip-0to24"),
        ({"kv_requested": "int8", "kv_realisation": "reference"}, "int8-reference"),
    ],
)
def test_another_thing_to_serve_has_another_name(change: dict[str, Any], name: str) -> None:
    assert dtype_name(replace(TERMS, **change)) == name


@pytest.mark.parametrize(
    ("change", "stem"),
    [
        ({}, "org--model--r1--fp8_e4m3"),
        ({"revision": None}, "org--model--a1a1a1a1a1a1--fp8_e4m3"),
        ({"revision": FOLDER_REVISION}, "org--model--a1a1a1a1a1a1--fp8_e4m3"),
        ({"model": "../../etc/x y", "revision": "a/b\n"}, "..--..--etc--x-y--a--b---fp8_e4m3"),
        ({"kv_requested": "k:fp8_e4m3,v:nvfp4"}, "org--model--r1--k-fp8_e4m3-v-nvfp4"),
    ],
)
def test_names_of_files(change: dict[str, Any], stem: str) -> None:
    assert file_stem(replace(TERMS, **change)) == stem


def test_every_local_folder_has_that_revision_unless_it_is_told_another() -> None:
    assert yaml.safe_load((data_folder("conf") / "model" / "folder.yaml").read_text())["revision"] == FOLDER_REVISION


def test_long_names_stay_apart_and_fit() -> None:
    names = {file_stem(replace(TERMS, model="m" * 300 + end, layers_skipped=tuple(range(99)))) for end in "ab"}
    assert len(names) == 2
    assert max(map(len, names)) < 250


def test_signatures_stand_while_the_same_is_decided() -> None:
    made = document("org/model", "run")
    mine = signature(candidate="fp8", terms=terms(made, made["candidates"][0]))
    assert standing([mine, replace(mine, candidate="other")], made) == [mine]
    assert standing([mine], document("org/model", "run", decision="HOLD")) == []
    assert standing([mine], document("org/model", "run", post_hoc=True)) == []
    assert standing([mine], document("org/model", "run", policy="q" * 64)) == []


def test_a_record_grows_at_its_end() -> None:
    one = extended(None, signature())
    two = extended(one, signature(by="Bo"))
    assert two.signatures[0] == one.signatures[0]
    assert [each.by for each in two.signatures] == ["Ada", "Bo"]
