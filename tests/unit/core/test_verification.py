"""What was signed beside what is asked for and what runs: every outcome, with its line."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from typing import Any

import pytest

from kvquant_eval.core.engine import EngineFacts
from kvquant_eval.core.records import Decision
from kvquant_eval.core.signoff import Terms
from kvquant_eval.core.verification import (
    Asked,
    Check,
    Served,
    Strength,
    exit_status,
    of_asked,
    of_record,
    of_registered,
    of_server,
    of_sha256,
    settle,
)
from tests.fakes.signed import SKIPPING, TERMS, facts, labels, record, signature

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
ASKED = Asked(
    model="org/model", revision="r1", kv_dtype="fp8_e4m3", engine_version="0.32.0", backend="CPU_ATTN (amx)",
    policy="b2" * 6,
)  # fmt: skip
POLICY = (
    "not shown: policy (signed default b2b2b2b2b2b2); give --policy its sha256, 12 digits or more (its settings may be "
    "changed under a name), or --mlflow"
)
SHA256 = record().signatures[-1].sha256


def verified(
    asked: Asked = ASKED,
    served: Served | None = None,
    *,
    terms: Terms = TERMS,
    anchors: tuple[Check, ...] | None = None,
    at_least: Strength = Strength.WEAK,
    **change: Any,
) -> tuple[int, list[str]]:
    """Exit status, and the lines of all that does not match."""
    made = record(signature(terms=terms, **change))
    last = made.signatures[-1]
    checks = [*of_record(made, NOW), *of_asked(terms, asked)]
    checks += of_server(terms, served) if served else ()
    checks += (of_sha256(last, "--sha256 gives", last.sha256),) if anchors is None else anchors
    found = settle(terms, checks, served, at_least)
    return exit_status(found), [check.line for check in found if not check.agrees]


def test_everything_matches() -> None:
    assert verified() == (0, [])


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"model": "org/other"}, "refused: model: signed org/model, asked for org/other"),
        ({"revision": "r2"}, "refused: revision: signed r1, asked for r2"),
        ({"kv_dtype": "fp8_e5m2"}, "refused: kv dtype: signed fp8_e4m3, asked for fp8_e5m2"),
        ({"kv_dtype": "auto"}, "refused: kv dtype: signed fp8_e4m3, asked for auto"),
        ({"layers_skipped": (3,)}, "refused: layers skipped: signed none, asked for 3"),
        ({"engine_version": "0.33.0"}, "refused: engine version: signed 0.32.0, asked for 0.33.0"),
        ({"backend": "CPU_ATTN"}, "refused: backend: signed CPU_ATTN (amx), asked for CPU_ATTN"),
        ({"policy": "strict"}, "refused: policy: signed default b2b2b2b2b2b2, asked for strict"),
        ({"policy": "b2" * 31 + "b3"}, f"refused: policy: signed default b2b2b2b2b2b2, asked for {'b2' * 31}b3"),
        ({"policy": "b2b2"}, "refused: policy: signed default b2b2b2b2b2b2, asked for b2b2"),
    ],
)
def test_each_that_differs_is_refused(change: dict[str, Any], line: str) -> None:
    assert verified(replace(ASKED, **change)) == (3, [line])


@pytest.mark.parametrize(
    "change",
    [{"kv_dtype": "fp8"}, {"policy": "b2" * 32}, {"revision": "a1" * 6}, {"layers_skipped": ()}],
)
def test_other_names_of_the_same(change: dict[str, Any]) -> None:
    assert verified(replace(ASKED, **change)) == (0, [])


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("revision", "not shown: revision (signed r1); give --model ID@REVISION"),
        ("engine_version", "not shown: engine version (signed 0.32.0); give --engine-version, or --server"),
        ("backend", "not shown: backend (signed CPU_ATTN (amx)); give --backend, or --server in development mode"),
        ("policy", POLICY),
    ],
)
def test_what_nobody_shows_is_said(key: str, line: str) -> None:
    assert verified(replace(ASKED, **{key: None})) == (4, [line])


def test_the_name_of_a_policy_does_not_show_its_settings() -> None:
    assert verified(replace(ASKED, policy="default")) == (4, [POLICY])
    anchors = tuple(of_registered(record().signatures[-1], tags()))
    assert verified(replace(ASKED, policy="default"), anchors=anchors) == (0, [])


def test_without_an_anchor() -> None:
    status, (line,) = verified(anchors=())
    assert status == 4
    assert line.startswith("unanchored: ")


def test_another_anchor() -> None:
    wrong = of_sha256(record().signatures[-1], "--sha256 gives", "e" * 64)
    assert verified(anchors=(wrong,)) == (3, [f"refused: anchor: signed {SHA256}, --sha256 gives {'e' * 64}"])


def test_skipped_layers_must_be_shown() -> None:
    line = "not shown: layers skipped (signed 0); give --skip-layers, or --server in development mode"
    assert verified(terms=SKIPPING) == (4, [line])
    assert verified(replace(ASKED, layers_skipped=(0,)), terms=SKIPPING) == (0, [])
    line = "refused: layers skipped: signed 0, asked for none"
    assert verified(replace(ASKED, layers_skipped=()), terms=SKIPPING) == (3, [line])


@pytest.mark.parametrize("revision", [None, "local"])
def test_a_model_without_a_revision_is_known_by_its_weights(revision: str | None) -> None:
    local = replace(TERMS, revision=revision)
    line = "not shown: revision (signed weights a1a1a1a1a1a1); give --model ID@REVISION"
    assert verified(replace(ASKED, revision=None), terms=local) == (4, [line])
    assert verified(replace(ASKED, revision="a1" * 6), terms=local) == (0, [])
    line = f"refused: revision: signed weights a1a1a1a1a1a1, asked for {revision}"
    assert verified(replace(ASKED, revision=str(revision)), terms=local) == (3, [line])
    assert verified(replace(ASKED, revision="a1" * 5), terms=local)[0] == 3  # too short


def test_no_engine_serves_a_reference_format() -> None:
    reference = replace(TERMS, kv_realisation="reference", kv_effective="fp8_e4m3 in bfloat16")
    line = "refused: kv dtype: signed fp8_e4m3 (reference), asked for fp8_e4m3"
    assert verified(terms=reference, override="why not", barred="reference") == (3, [line])


def test_nothing_matches_what_was_never_read_back() -> None:
    nothing = replace(TERMS, attention_backend="", engine_version=None)
    status, lines = verified(replace(ASKED, backend="", engine_version=""), terms=nothing)
    assert status == 3
    assert lines == [
        "refused: engine version: signed none, asked for ",
        "refused: backend: signed none, asked for ",
    ]


@pytest.mark.parametrize(("expires", "status"), [("2026-06-01", 0), ("2026-05-31", 3), ("2027-01-01", 0), (None, 0)])
def test_a_signature_holds_to_the_end_of_its_last_day(expires: str | None, status: int) -> None:
    found, lines = verified(expires=expires and date.fromisoformat(expires))
    assert found == status
    if status:
        assert lines == ["refused: expiry: expired at the end of 2026-05-31, UTC"]


def test_an_override_passes() -> None:
    assert verified(decision=Decision.HOLD, override="a pilot") == (0, [])


def test_workers_that_run_what_was_signed() -> None:
    served = Served(version="0.32.0", workers=facts("fp8_e4m3", "fp8_e4m3"))
    alone = replace(ASKED, engine_version=None, backend=None)
    assert verified(alone, served, at_least=Strength.STRONG) == (0, [])


@pytest.mark.parametrize(
    ("dtypes", "change", "needle"),
    [
        (("bfloat16", "bfloat16"), {}, "running KV dtype: signed fp8_e4m3, the server's workers run bfloat16"),
        (("fp8_e5m2", "fp8_e5m2"), {}, "running KV dtype: signed fp8_e4m3, the server's workers run fp8_e5m2"),
        (("bfloat16", "fp8_e4m3"), {}, "layers skipped: signed none, the server's workers skip 0"),
        (("fp8_e4m3",), {}, "bytes per token: signed 96, the server's workers store 48"),
        (
            ("fp8_e4m3",) * 2,
            {"kernel": "vec"},
            "backend: signed CPU_ATTN (amx), the server's workers run CPU_ATTN (vec",
        ),
        (("fp8_e4m3",) * 2, {"k_scales": (0.5,)}, "k scales: signed 1 to 1, the server's workers run 0.5 to 0.5"),
        (("fp8_e4m3",) * 2, {"storage": "bfloat16"}, "running KV dtype: signed fp8_e4m3, the server's workers run bf"),
    ],
)
def test_workers_that_run_something_else(dtypes: tuple[str, ...], change: dict[str, Any], needle: str) -> None:
    status, lines = verified(served=Served(version="0.32.0", workers=facts(*dtypes, **change)))
    assert status == 3
    assert any(line.startswith(f"refused: {needle}") and line.endswith("(strong evidence)") for line in lines), lines


@pytest.mark.parametrize(
    ("terms", "good", "bad"),
    [
        (TERMS, facts("fp8_e4m3", "fp8_e4m3"), facts("fp8_e4m3", "bfloat16")),
        (TERMS, facts("fp8_e4m3", "fp8_e4m3"), facts("fp8_e4m3", "fp8_e4m3", bytes_per_token=96.0)),
        (SKIPPING, facts("bfloat16", "fp8_e4m3"), facts("bfloat16", "bfloat16")),
        (SKIPPING, facts("bfloat16", "fp8_e4m3"), facts("fp8_e4m3", "fp8_e4m3")),
    ],
)
def test_one_worker_that_runs_something_else(terms: Terms, good: EngineFacts, bad: EngineFacts) -> None:
    asked = replace(ASKED, layers_skipped=terms.layers_skipped)
    assert verified(asked, Served(workers=good), terms=terms) == (0, [])
    mixed = replace(good, layers=(good.layers[0], bad.layers[0]))
    status, lines = verified(asked, Served(workers=mixed), terms=terms)
    assert status == 3
    assert any(line.endswith("in more than one way (strong evidence)") for line in lines)


@pytest.mark.parametrize(
    ("change", "status", "needle"),
    [
        ({}, 0, ""),
        ({"kv_cache_memory_bytes": "None"}, 0, ""),
        ({"cache_dtype": "fp8"}, 0, ""),
        ({"cache_dtype": "bfloat16"}, 3, "the server's label says bfloat16 (medium evidence)"),
        ({"cache_dtype": "auto"}, 4, "not shown: running KV dtype"),
        (
            {"cache_dtype": "auto", "num_gpu_blocks": "50"},
            3,
            "bytes per token: signed 96, the server's cache has 189 to",
        ),
        ({"num_gpu_blocks": "50"}, 3, "bytes per token: signed 96"),
        ({"num_gpu_blocks": "200"}, 3, "bytes per token: signed 96"),
        ({"num_gpu_blocks": "50", "num_gpu_blocks_override": "50"}, 0, ""),
        ({"num_gpu_blocks": "0"}, 0, ""),
        ({"kv_cache_dtype_skip_layers": "['0', '1']"}, 3, "layers skipped: signed none, the server's label says 0 1"),
        ({"kv_cache_dtype_skip_layers": "['1234567']"}, 3, "the server's label says 1234567 (medium evidence)"),
        ({"kv_cache_dtype_skip_layers": "['sliding_window', '5']"}, 3, "the server's label says 5 (medium evidence)"),
        ({"kv_cache_dtype_skip_layers": "['sliding_window']"}, 4, "(signed none); the server's label says sliding_win"),
    ],
)
def test_labels(change: dict[str, str], status: int, needle: str) -> None:
    found, lines = verified(served=Served(version="0.32.0", labels=(labels(**change),)))
    assert found == status, lines
    assert any(needle in line for line in lines) or not needle


def test_every_engine_must_show_it() -> None:
    one_auto = Served(labels=(labels(), labels(cache_dtype="auto")), silence="why")
    line = "(signed fp8_e4m3); the server's label says auto, which may be anything; why"
    assert verified(served=one_auto) == (4, [f"not shown: running KV dtype {line}"])
    one_weaker = Served(labels=(labels(), labels(kv_cache_memory_bytes="None")))
    assert verified(served=one_weaker)[0] == 0
    assert verified(served=one_weaker, at_least=Strength.MEDIUM)[0] == 4


def test_one_engine_with_another_label() -> None:
    both = (labels(), labels(cache_dtype="auto", num_gpu_blocks="50"))
    assert verified(served=Served(labels=both))[0] == 3


@pytest.mark.parametrize(
    ("served", "strength"),
    [
        (Served(labels=(labels(kv_cache_memory_bytes="None"),), silence="no"), Strength.WEAK),
        (Served(labels=(labels(),), silence="no"), Strength.MEDIUM),
        (Served(workers=facts("fp8_e4m3", "fp8_e4m3")), Strength.STRONG),
    ],
)
def test_evidence_counts_from_the_strength_that_is_asked_for(served: Served, strength: Strength) -> None:
    for asked in Strength:
        stronger = list(Strength).index(asked) > list(Strength).index(strength)
        line = f"not shown: running KV dtype (signed fp8_e4m3); {strength} evidence, {asked} is asked for; no"
        assert verified(served=served, at_least=asked) == ((4, [line]) if stronger else (0, []))


def test_a_server_that_says_nothing() -> None:
    status, lines = verified(served=Served(silence="the server does not answer: refused"))
    line = "not shown: running KV dtype (signed fp8_e4m3); the server does not answer: refused"
    assert (status, lines) == (4, [line])


@pytest.mark.parametrize(
    ("models", "status"),
    [
        ((("org/model", "org/model"),), 0),
        ((("prod", "org/model"),), 0),
        ((("prod", "/models/x"),), 0),
        ((("prod", ""),), 0),
        ((("org/model", "org/other"),), 3),
        ((("org/model", "org/model"), ("more", "org/other")), 3),
    ],
)
def test_the_model_that_a_server_loaded(models: tuple[tuple[str, str], ...], status: int) -> None:
    served = Served(models=models, workers=facts("fp8_e4m3", "fp8_e4m3"))
    assert verified(served=served)[0] == status


def test_version_and_revision_of_a_server_count_beside_what_is_said() -> None:
    workers = facts("fp8_e4m3", "fp8_e4m3")
    line = "refused: engine version: signed 0.32.0, the server says 0.33.0"
    assert verified(served=Served(version="0.33.0", workers=workers)) == (3, [line])
    line = "refused: revision: signed r1, the server loaded r2 (weak evidence)"
    assert verified(served=Served(revision="r2", workers=workers)) == (3, [line])


def tags(**change: str) -> dict[str, str]:
    made = {
        "signoff_sha256": SHA256, "policy_sha256": "b2" * 32, "kv_cache_dtype_requested": "fp8_e4m3",
        "kv_cache_dtype_effective": "fp8_e4m3", "model_revision": "r1", "weights_sha256": "a1" * 32,
    }  # fmt: skip
    return {**made, **change}


def test_a_registered_version_anchors_and_shows_the_policy() -> None:
    anchors = tuple(of_registered(record().signatures[-1], tags()))
    assert verified(replace(ASKED, policy=None), anchors=anchors) == (0, [])


@pytest.mark.parametrize("tag", sorted(tags()))
def test_a_registered_version_that_says_otherwise(tag: str) -> None:
    anchors = tuple(of_registered(record().signatures[-1], tags(**{tag: "other"})))
    status, (line,) = verified(anchors=anchors)
    assert status == 3
    assert line.endswith("MLflow has other")


def test_a_registered_version_that_knows_of_a_later_signature() -> None:
    anchors = tuple(of_registered(record().signatures[-1], tags(signoff_followed_by="e" * 64)))
    line = f"refused: anchor: the last signature is {SHA256}, MLflow has {'e' * 64} after it; sign again"
    assert verified(anchors=anchors) == (3, [line])


def test_a_registered_version_that_was_never_told() -> None:
    told = tags()
    del told["signoff_sha256"]
    status, lines = verified(anchors=tuple(of_registered(record().signatures[-1], told)))
    assert status == 4
    assert lines[0] == "not shown: MLflow (its registered version has no signoff_sha256)"
    assert lines[1].startswith("unanchored: ")
