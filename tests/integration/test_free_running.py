"""Free-running conversations on real vLLM."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from kvquant_eval.cli.config import build, compose, home
from kvquant_eval.core.compare import identical
from kvquant_eval.core.records import Measure, OnDivergence, Outcome
from kvquant_eval.core.rollout import make_rollouts
from kvquant_eval.core.walk import Walk
from kvquant_eval.io import golden as golden_io
from kvquant_eval.io.runfolder import RunFolder
from tests.fakes.records import reply
from tests.integration.conftest import Run

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def free(gate: Callable[..., Run], tmp_path_factory: pytest.TempPathFactory) -> Run:
    classes = "workload=[faq,tool_calling]"
    return gate(
        tmp_path_factory.mktemp("free"), classes, "gate.hardest=tool_calling", "kv=[nvfp4_ref]",
        "replay.mode=free_running", "replay.on_divergence=error_message",
    )  # fmt: skip


def test_every_arm_has_a_curve_for_every_class(free: Run) -> None:
    assert free.status in (0, 3, 4), free.output
    found = free.decision["free_running"]
    assert set(found) == {"baseline", "repeat", "placebo", "nvfp4_ref"}
    for classes in found.values():
        assert set(classes) == {"faq", "tool_calling"}
        for scores in classes.values():
            for score in scores.values():
                assert score["curve"][0]["depth"] == 0
                assert len(score["curve"]) >= 2


def test_free_running_repeats_itself_bit_for_bit(free: Run) -> None:
    run = RunFolder(free.folder)
    replays = {arm: run.arm(arm).replays() for arm in ("baseline", "repeat", "nvfp4_ref")}
    own = {arm: [r for r in found if r.measure is Measure.FREE_RUNNING] for arm, found in replays.items()}
    assert len(own["baseline"]) > 10
    assert identical(own["baseline"], own["repeat"])
    assert not identical(own["baseline"], own["nvfp4_ref"])
    assert all(r.outcome is not Outcome.INFRA_ERROR for found in own.values() for r in found)


def test_golden_replies_lead_to_the_golden_prompts() -> None:
    """What a model says word for word as recorded is put back as the recording has it, tool calls too."""
    from kvquant_eval.worker.chat import load_tokenizer
    from kvquant_eval.worker.prepare import open_model
    from kvquant_eval.worker.render import prompt_ids, render

    settings = build(compose(["kv=[bfloat16]"]))
    golden = golden_io.load(Path(settings.golden_path), settings.policy.scores)
    folder, _, _, template = open_model(settings.model, Path(home()) / ".cache")
    tokenizer = load_tokenizer(folder, trust_remote_code=False)
    rendered = {turn.turn_id: render(tokenizer, template, turn, 8192) for turn in golden.turns}

    def prompt(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        return tuple(prompt_ids(tokenizer, template, messages, tools, "t"))

    seen = 0
    for rollout in make_rollouts(golden.turns, (), settings.sampling, OnDivergence.STOP):
        walk = Walk(rollout, prompt, 8192)
        for step in rollout.steps:
            assert walk.due is not None, rollout.conversation_id
            if step.turn_id:
                seen += 1
                assert walk.due.prompt_ids == rendered[step.turn_id].prompt_ids
                said = tokenizer.decode(rendered[step.turn_id].golden_ids)
            else:
                said = str(step.recorded["content"])
                if step.calls:
                    call = step.calls[0]
                    named = json.dumps({"name": call["name"], "arguments": call["arguments"]})
                    said = f"<tool_call>{named}</tool_call>"
            walk.take(reply(said, turn_id=walk.due.turn_id, measure=walk.due.measure))
        assert all(not r.divergence for r in walk.replays), rollout.conversation_id
    assert seen > 200
