"""Reference formats inside the real engine: a hook that changes nothing, and K and V treated apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvquant_eval.core.compare import identical
from kvquant_eval.io.runfolder import RunFolder
from tests.integration.conftest import Run

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def apart(gate: Callable[..., Run], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One class: what an arm runs does not depend on its turns."""
    return gate(
        tmp_path_factory.mktemp("apart"),
        "workload=[faq]",
        "gate.hardest=faq",
        "kv=[k8v4_ref]",
        "kv.k8v4_ref.skip_layers=['0','7.v']",
        "+kv.identity={dtype: identity, realisation: reference}",
    )


def candidate(run: Run, name: str) -> dict[str, Any]:
    (found,) = [each for each in run.decision["candidates"] if each["name"] == name]
    return found


def test_identity_leaves_every_log_probability_as_it_is(apart: Run) -> None:
    """And a candidate that changed nothing is not taken for one."""
    run = RunFolder(apart.folder)
    assert identical(run.arm("baseline").replays(), run.arm("identity").replays())
    assert apart.decision["fidelity"]["identity"]["all"]["kl"] == 0.0
    assert apart.status == 5, apart.output
    assert "identity: not applied: every token and logprob equals the baseline's, bit for bit" in " | ".join(
        f"{finding['where']}: {finding['what']}" for finding in candidate(apart, "identity")["findings"]
    )


def test_k_and_v_are_treated_apart_layer_by_layer(apart: Run) -> None:
    kv = candidate(apart, "k8v4_ref")["kv"]
    assert kv["requested"] == "k:fp8_e4m3,v:nvfp4"
    assert kv["effective"] == "bfloat16+k:fp8_e4m3,v:bfloat16 in bfloat16+k:fp8_e4m3,v:nvfp4 in bfloat16"
    assert (kv["layers_quantized"], kv["layers_skipped"]) == (29, [0])
    noted = candidate(apart, "k8v4_ref")["findings"]  # two conversations may leave a control open, which is named
    assert {finding["where"] for finding in noted} <= {"control placebo"}
    assert not any(finding["invalid"] for finding in noted)
    near = {name: panel["all"]["kl"] for name, panel in apart.decision["fidelity"].items()}
    assert near["k8v4_ref"] > near["placebo"] > near["repeat"] == 0.0
