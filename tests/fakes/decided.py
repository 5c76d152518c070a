"""A decided run folder of one candidate over three turns, without a gate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from kvquant_eval.core.records import BlockResult, Measure, Outcome, Prepared, RenderedTurn, Replay
from kvquant_eval.io import tables
from kvquant_eval.io.journal import Journal
from kvquant_eval.io.runfolder import RunFolder

BF16 = {"requested": "bfloat16", "effective": "bfloat16", "realisation": "native"}
STORED = {"layers_quantized": 2, "layers_skipped": [], "bytes_per_token": 96.0, "capacity_tokens": 4096}
TURNS = ("faq-a/t00", "math-a/t00", "math-a/t01")
HOSTILE = "<script>alert(1)</script>\x1b[2J|"


def score(drop: float, *, bound: float | None, role: str = "gate") -> dict[str, Any]:
    return {
        "role": role, "margin": 2.0, "n_turns": 2, "n_headroom": 2,
        "baseline_mean": 80.0, "candidate_mean": 80.0 - drop,
        "mean_drop": drop, "ci_lower": None if bound is None else drop - 1, "ci_upper": bound, "drop_nats": None,
        "recovery": None if bound is None else 100 - drop, "drops_over": int(drop > 2), "gains_over": 0,
        "worst_stratum": None if bound is None else {"name": "turn index 1", "mean_drop": drop + 1},
    }  # fmt: skip


def classes(drop: float) -> dict[str, Any]:
    """``faq`` has a score without a bound, ``coding`` none at all."""
    scores = {"gl_reply": score(drop / 2, bound=drop), "gl_span": score(drop, bound=drop + 1)}
    judged = {
        "math": {"verdict": "FAIL" if drop > 2 else "PASS", "n_turns": 2, "scores": scores},
        "faq": {"verdict": "INCONCLUSIVE", "n_turns": 1, "scores": {"gl_reply": score(0.0, bound=None)}},
        "coding": {"verdict": "INCONCLUSIVE", "n_turns": 0, "scores": {}},
    }
    return {name: {"reasons": [], "n_headroom": 0, "n_missing": 0, **value} for name, value in judged.items()}


def flag(turn_id: str, name: str) -> dict[str, Any]:
    confirmed = name == "gl_span"
    return {
        "turn_id": turn_id, "class": "math", "score": name, "turn_index": 0, "drop": 7.0, "confirmed": confirmed,
    }  # fmt: skip


def document(model: str, run_id: str, **change: Any) -> dict[str, Any]:
    kv = {"requested": "fp8_e4m3", "effective": "fp8_e4m3", "realisation": change.pop("realisation", "native")}
    decision, drop = change.pop("decision", "PROMOTE"), change.pop("drop", 1.0)
    arm = {"decoded_tokens_per_s": 50.0, "prefix_cache_share": 0.75}
    candidate = {
        "name": "fp8", "self_test": change.pop("self_test", False), "baseline": "baseline",
        "kv": {**kv, **STORED, "bytes_per_token": 48.0},
        "decision": decision, "reasons": [f"math: {HOSTILE}"], "findings": [], "classes": classes(drop),
        "pooled": {"n_conversations": 2, "worse": 1, "better": 0, "p": 0.5},
        "flagged_turns": [flag("math-a/t01", "gl_span"), flag("math-a/t01", "gl_reply")] if drop > 2 else [],
    }  # fmt: skip
    repeat = {"kv": BF16, "decision": "PROMOTE", "reasons": [], "classes": classes(0.0), "flagged_turns": []}
    return {
        "schema_version": 1, "run_id": run_id, "created_at": change.pop("at", "2026-01-01T00:00:00+00:00"),
        "decision": decision, "exit_code": 0, "reasons": [], "post_hoc": change.pop("post_hoc", False),
        "model": {
            "id": model, "revision": change.pop("revision", "r1"),
            "weights_sha256": change.pop("weights", "w" * 64), "dtype": "bfloat16", "provenance": "",
            "chat_template_sha256": "t" * 64, "kv": {"baseline": BF16, "fp8": kv},
        },
        "engine": {
            "name": "vllm", "version": "0.32.0", "device": "cpu", "attention_backend": "CPU_ATTN",
            "args": {"x": "y" * 7000},
        },
        "golden": {"name": "agents", "version": "1", "sha256": "a" * 64, "n_turns": 3, "n_skipped": 0},
        "policy": {"name": "default", "sha256": change.pop("policy", "p" * 64), "rule": "default", "hardest": "math"},
        "sampling": {"temperature": 0.0, "epochs": 1}, "baseline": {"kv": {**BF16, **STORED}},
        "controls": {"repeat": repeat},
        "candidates": [candidate], "arms": {"baseline": arm, "fp8": arm},
        "fidelity": {
            "repeat": {"all": {"kl": 0.0, "top1_agreement": 1.0}},
            "fp8": {"all": {"kl": 0.015, "top1_agreement": 0.97}},
        },
    }  # fmt: skip


def run(model: str, folder: Path, **change: Any) -> Path:
    """A finished run folder of three turns; the faq turn is unscored in the candidate."""
    made = document(model, run_id=folder.name, **change)
    folder.mkdir()
    (folder / "decision.json").write_text(json.dumps(made))
    (folder / "config.yaml").write_text(yaml.safe_dump({"model": {"source": "hub"}, "pinned": {}}))
    for name in ("report.md", "report.html", "summary.md", "junit.xml"):
        (folder / name).write_text(name)
    (folder / "tracking.json").write_text("{}")
    RunFolder(folder).write_plan(_prepared())
    turns = [
        {"arm": arm, "turn_id": turn, "workload": turn.split("-")[0], "turn_index": 0, "scorer": name, "epoch": 0,
         "outcome": "ok", "points": None if (arm, turn) == ("fp8", "faq-a/t00") else 70.0, "explanation": "a text"}
        for arm in ("fp8", "baseline") for turn in reversed(TURNS) for name in ("gl_reply", "gl_span")
    ]  # fmt: skip
    tables.save(pd.DataFrame(turns), folder / "turns.parquet")
    drops = [{"arm": "fp8", "turn_id": turn, "scorer": "gl_span", "drop": 1.5} for turn in TURNS[1:]]
    tables.save(pd.DataFrame(drops), folder / "deltas.parquet")
    for arm in ("baseline", "fp8"):
        (folder / "arms" / arm).mkdir(parents=True)
        replays = tuple(
            Replay(turn_id=turn, measure=Measure.GENERATED, epoch=0, outcome=Outcome.OK, text=f"{arm} {HOSTILE}")
            for turn in TURNS
        )
        Journal(folder / "arms" / arm / "replays.jsonl").commit(
            BlockResult(index=0, replays=replays, preemptions=0, seconds=1.0)
        )
    return folder


def _prepared() -> Prepared:
    turns = [
        RenderedTurn(
            turn_id=turn, workload=turn.split("-")[0], conversation_id=turn[:-4], turn_index=0, prompt_ids=(1, 2, n),
            golden_ids=(3,), spans=(), max_tokens=8,
        )
        for n, turn in enumerate(TURNS)
    ]  # fmt: skip
    return Prepared(
        path="/model", weights_sha256="w" * 64, template_sha256="t" * 64, device="cpu", versions={},
        kv_cache_scheme=False, turns=tuple(turns),
    )  # fmt: skip
