"""``action.yml`` and the snippets of docs/ci.md: sound for their platforms, and their shell does what it should."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fakes.runner import outputs

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS = {step["id"]: step for step in ACTION["runs"]["steps"] if "id" in step}
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", (ROOT / "docs" / "ci.md").read_text(encoding="utf-8"), re.DOTALL)
YAML = [yaml.safe_load(text) for language, text in BLOCKS if language == "yaml"]
(JENKINS,) = [text for language, text in BLOCKS if language == "groovy"]
STUB = """#!/usr/bin/env bash
[[ $1 != --version ]] || exec echo 1.2.3
printf '%s\\0' "$@" >"$STUB/arguments"
echo 'HOLD (exit status 3)'
if [[ $STATUS != 2 ]]; then
    mkdir -p "$STUB/runs/b c"
    for name in junit.xml summary.md decision.json; do echo "$name" >"$STUB/runs/b c/$name"; done
    echo "report: $STUB/runs/b c/report.md"
    printf 'decision=HOLD\\nrun-dir=%s\\n' "$STUB/runs/b c" >>"${GITHUB_OUTPUT:-/dev/null}"
fi
exit "$STATUS"
"""
STATUSES = (0, 3, 4, 5, 2, 130)
HARMFUL = 'golden.path=a b/$(touch "$STUB/owned")`touch "$STUB/owned"`;\'"*?'


@pytest.fixture
def stub(tmp_path: Path) -> Path:
    """A folder with a ``kvquant-eval`` that ends as ``STATUS`` says, and writes down what it was called with."""
    for name, text in (("kvquant-eval", STUB), ("python", STUB)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    return tmp_path


def bash(script: str, stub: Path, status: int = 0, **env: str) -> int:
    """Run a script as GitHub's ``shell: bash`` does; ``output`` in the folder is the step's."""
    (stub / "script").write_text(script)
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(stub / "script")]
    path = f"{stub}{os.pathsep}{os.environ['PATH']}"
    given = {**os.environ, "PATH": path, "STUB": str(stub), "STATUS": str(status), **env}
    return subprocess.run(command, cwd=stub, env=given, capture_output=True, timeout=60).returncode


def called(stub: Path) -> list[str]:
    return (stub / "arguments").read_text().split("\0")[:-1]


def gate(stub: Path, status: int = 0, **env: str) -> int:
    inputs = {"OVERRIDES": "", "CONFIG_DIR": "", "RUNS_DIR": "reports/runs", "GITHUB_OUTPUT": str(stub / "output")}
    return bash(STEPS["gate"]["run"], stub, status, **{**inputs, **env})


def test_the_action_fits_githubs_schema() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-actions"]
    done = subprocess.run([*command, str(ROOT / "action.yml")], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def test_no_expression_stands_in_a_shell_script() -> None:
    scripts = [step["run"] for step in ACTION["runs"]["steps"] if "run" in step]
    assert len(scripts) == len(STEPS) == 3
    assert all("${{" not in script and script.startswith("set -euo pipefail\n") for script in scripts)


def test_what_must_run_after_a_hold_runs_always() -> None:
    steps = ACTION["runs"]["steps"]
    behind = steps[steps.index(STEPS["gate"]) + 1 :]
    assert [step["uses"].split("@")[0] for step in behind] == ["actions/cache/save", "actions/upload-artifact"]
    assert all(step["if"].startswith("always() && ") for step in behind)
    assert {"decision", "exit-code", "report", "run-dir"} == set(ACTION["outputs"])
    assert all(each["value"].startswith("${{ steps.gate.outputs.") for each in ACTION["outputs"].values())


@pytest.mark.parametrize("status", STATUSES)
def test_the_actions_status_is_the_gates(stub: Path, status: int) -> None:
    assert gate(stub, status) == status
    found = outputs((stub / "output").read_text().splitlines())
    assert found["exit-code"] == str(status)
    assert found.get("decision") == (None if status == 2 else "HOLD")


def test_overrides_are_taken_as_they_are_one_a_line(stub: Path) -> None:
    lines = ["kv=[fp8_e4m3,fp8_e5m2]", "", f"   {HARMFUL}  ", "--cfg", "a=b\r"]
    assert gate(stub, OVERRIDES="\n".join(lines), CONFIG_DIR="my conf", RUNS_DIR="a b") == 0
    assert called(stub) == [
        "gate", "--config-dir=my conf", "--", "runs_dir=a b", "kv=[fp8_e4m3,fp8_e5m2]", HARMFUL, "--cfg", "a=b",
    ]  # fmt: skip
    assert not (stub / "owned").exists()


def test_no_override_is_fine(stub: Path) -> None:
    assert gate(stub) == 0
    assert called(stub) == ["gate", "--", "runs_dir=reports/runs"]


def test_requirements_are_taken_as_they_are(stub: Path) -> None:
    assert bash(STEPS["install"]["run"], stub, INSTALL="kvquant_eval[gpu] @ git+https://x/y\n\n$(id)") == 0
    expected = ["-m", "pip", "install", "--disable-pip-version-check", "--", "kvquant_eval[gpu] @ git+https://x/y"]
    assert called(stub) == [*expected, "$(id)"]


def test_the_caches_key_changes_with_the_overrides(stub: Path) -> None:
    def key(overrides: str) -> str:
        file = stub / "output"
        file.unlink(missing_ok=True)
        assert bash(STEPS["key"]["run"], stub, OVERRIDES=overrides, RUNNER_OS="Linux", GITHUB_OUTPUT=str(file)) == 0
        return outputs(file.read_text().splitlines())["key"]

    assert re.fullmatch(r"kvquant-eval-Linux-[0-9a-f]{16}", key("a"))
    assert key("a") == key("a") != key("b")


def script(platform: str) -> str:
    """The shell of a snippet."""
    if platform == "jenkins":
        return re.search(r"sh '''(.*?)'''", JENKINS, re.DOTALL)[1]  # type: ignore[index]
    if platform == "gitlab":
        return str(YAML[2]["kv-gate"]["script"][0])
    steps: list[dict[str, Any]] = YAML[1]["jobs"]["gate"]["steps"]
    return next(step["run"] for step in steps if "run" in step)


@pytest.mark.parametrize("platform", ["github", "gitlab", "jenkins"])
@pytest.mark.parametrize("status", STATUSES)
def test_no_pipe_hides_the_status(stub: Path, platform: str, status: int) -> None:
    assert bash(script(platform), stub, status) == status
    assert called(stub) == ["gate", "kv=[fp8_e4m3]", "golden.path=golden/support"]
    assert "HOLD" in (stub / "gate.log").read_text()
    if platform != "github":
        copied = [] if status == 2 else ["decision.json", "junit.xml", "summary.md"]
        assert sorted(path.name for path in (stub / "kv").iterdir()) == copied


def test_workflows_of_the_docs_fit_githubs_schema(tmp_path: Path) -> None:
    for number, workflow in enumerate(YAML[:2]):
        text = yaml.safe_dump({"on": ["push"], **{key: value for key, value in workflow.items() if key is not True}})
        (tmp_path / f"{number}.yml").write_text(text)
    files = [str(path) for path in tmp_path.iterdir()]
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def test_the_docs_give_the_action_only_inputs_that_it_has() -> None:
    (step,) = [step for step in YAML[0]["jobs"]["gate"]["steps"] if step.get("id") == "kv"]
    assert set(step["with"]) <= set(ACTION["inputs"])


def test_gitlabs_snippet_fits_its_schema(tmp_path: Path) -> None:
    (tmp_path / "ci.yml").write_text(yaml.safe_dump(YAML[2]))
    command = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        "vendor.gitlab-ci",
        str(tmp_path / "ci.yml"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
