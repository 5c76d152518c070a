"""The part of a model card that says what was promoted, as huggingface_hub reads it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt

from kvquant_eval.core.treatment import KVTreatment, Realisation
from kvquant_eval.io.report import model_card
from kvquant_eval.io.runfolder import OWN_FILES

MakeCase = Callable[..., Any]
HOSTILE = 'a: "b"\n---\n# owned <script>alert(1)</script> | `x` \u202e {{ 7*7 }} [l](javascript:a)'


def read(text: str) -> ModelCard:
    return ModelCard(text)


def test_what_the_hub_reads_is_what_was_measured(case: MakeCase, tmp_path: Path) -> None:
    made = case(0.5)
    made.write(tmp_path)
    found = read((tmp_path / model_card.NAME).read_text(encoding="utf-8"))
    data = found.data.to_dict()
    assert (data["base_model"], data["tags"]) == ("acme/tiny", ["kv-cache", "kv-cache-fp8_e4m3"])
    assert data["kv_cache_dtype"] == [
        {"requested": "fp8_e4m3", "effective": "fp8_e4m3", "realisation": "native", "layers_skipped": []}
    ]
    assert found.data.model_name == "acme/tiny"
    score = made.document["candidates"][0]["classes"]["faq"]["scores"]["gl_reply"]
    results = [each for each in found.data.eval_results if each.dataset_config == "faq"]
    assert {each.metric_type: each.metric_value for each in results} == {
        "kv_baseline_points": score["baseline_mean"],
        "kv_candidate_points": score["candidate_mean"],
        "kv_drop_points": score["mean_drop"],
        "kv_recovery_percent": score["recovery"],
    }
    assert {(each.dataset_name, each.dataset_type, each.dataset_revision) for each in results} == {
        ("tiny 3", "tiny", "ab" * 32)
    }
    assert results[0].dataset_args["kv_cache_dtype_effective"] == "fp8_e4m3"
    assert read(found.content).data.to_dict() == data, "it can be written back"


def test_it_says_what_was_gated_and_what_voids_it(case: MakeCase) -> None:
    text = read(model_card.render(case(0.5).document)).text
    assert "acme/tiny@r1 KV fp8_e4m3 (effective fp8_e4m3, native)" in text
    assert "80 golden turns (tiny 3) were replayed with BF16 and with this KV cache, under policy test: PROMOTE" in text
    assert "void as soon as one of these changes: model revision r1 (weights 111111111111…)" in text
    assert "```text\n--kv-cache-dtype fp8_e4m3\n```" in text
    assert "| faq | PASS | gl\\_reply | 40 | 81.0 |" in text.replace("gl_reply", "gl\\_reply")


@pytest.mark.parametrize(
    "arguments",
    [
        {"drop": 9.0},
        {"turns": 5},
        {"candidate": KVTreatment(name="ref", dtype="fp8_e4m3", realisation=Realisation.REFERENCE)},
        {"candidate": KVTreatment(name="same", dtype="bfloat16")},
    ],
)
def test_there_is_none_where_nothing_may_serve_and_a_stale_one_goes(
    case: MakeCase, tmp_path: Path, arguments: dict[str, Any]
) -> None:
    case(0.5).write(tmp_path)
    assert (tmp_path / model_card.NAME).exists()
    case(**arguments).write(tmp_path)
    assert not (tmp_path / model_card.NAME).exists()
    assert model_card.NAME in OWN_FILES


def test_a_policy_that_was_changed_afterwards_makes_no_card(case: MakeCase) -> None:
    assert model_card.render({**case(0.5).document, "post_hoc": True}) == ""


def test_hostile_names_break_neither_yaml_nor_markdown(case: MakeCase) -> None:
    document = case(0.5, model=HOSTILE).document
    candidate = document["candidates"][0]
    candidate["classes"] = {HOSTILE: candidate["classes"]["faq"]}
    candidate["name"] = HOSTILE
    text = model_card.render(document)
    assert "\u202e" not in text
    found = read(text)
    assert set(found.data.to_dict()) == {"base_model", "tags", "kv_cache_dtype", "model-index"}
    assert found.data.eval_results[0].dataset_config.startswith('a: "b"\\n---\\n# owned')
    page = MarkdownIt("commonmark").enable("table").render(found.text)
    assert "<script" not in page
    assert "href" not in page
    assert page.count("<h1>") == 1
