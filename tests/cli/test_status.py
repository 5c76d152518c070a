"""Exit statuses and one-line errors of the command line. No engine starts here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from kvquant_eval.cli.config import compose
from kvquant_eval.cli.main import main


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own: what it exits with is what ``main`` returns."""
    where = [f"runs_dir={folder}/runs"] if arguments[:1] == ("gate",) else []
    command = [sys.executable, "-m", "kvquant_eval.cli.main", *arguments, *where]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("overrides", "needles"),
    [
        (["kv=[nvfp4]"], ["kv.nvfp4.dtype", "CPU backend"]),
        (["kv=[int4_per_token_head]"], ["int4_per_token_head"]),
        (["kv=[fp8_e4m4]"], ["kv", "fp8_e4m3"]),
        (["kv.fp8_e4m3.dtype=fp9"], ["kv.fp8_e4m3.dtype", "fp9", "fp8"]),
        (["kv=[]"], ["kv", "at least one"]),
        (["gate=defualt"], ["defualt", "did you mean 'default'"]),
        (["gate.min_turn=3"], ["gate.min_turn"]),
        (["gate.min_turns=many"], ["gate", "min_turns", "many"]),
        (["workload=[faq]"], ["gate.hardest", "math_chain"]),
        (["sampling.temperature=0.001"], ["sampling.temperature", "0.001"]),
        (["sampling.epochs=4"], ["sampling.epochs"]),
        (["model=hub"], ["model.id", "set it"]),
        (["golden.path=/nowhere"], ["/nowhere", "MANIFEST.json"]),
        (["nonsense"], ["nonsense"]),
        (["gate.require=[fp8_e5m2]"], ["gate.require", "fp8_e5m2"]),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    overrides: list[str], needles: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(["gate", *overrides, f"runs_dir={tmp_path}/runs"])
    out, err = capsys.readouterr()
    assert status == 2, err
    (line,) = err.strip().splitlines()
    for needle in needles:
        assert needle in line
    assert out == ""
    assert not list(tmp_path.glob("runs/*/arms")), "no engine was to start"


def test_a_process_says_one_line_and_ends_with_status_2(tmp_path: Path) -> None:
    done = run("gate", "kv=[]", folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


@pytest.mark.parametrize("verb", [["gate", "kv=[fp8_e4m3]"], ["regate", "{run}"]])
def test_an_option_may_stand_between_overrides(
    verb: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({**compose([]), "pinned": {}}))
    given = [item.format(run=tmp_path) for item in verb]
    assert main([*given, "--config-dir", "/nowhere", "gate=strict"]) == 2
    assert capsys.readouterr().err == "kvquant-eval: --config-dir: a folder, got '/nowhere'; correct the path\n"


@pytest.mark.parametrize("arguments", [["relog", "run", "gate=strict"], ["regate", "run", "gate=strict", "--engine"]])
def test_what_a_verb_does_not_know_is_status_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    assert capsys.readouterr().err.endswith(f"kvquant-eval: error: unrecognized arguments: {arguments[-1]}\n")


def test_unknown_verb_is_status_2(tmp_path: Path) -> None:
    assert run("gaet", folder=tmp_path).returncode == 2


def test_regate_of_no_run_folder_is_status_2(tmp_path: Path) -> None:
    done = run("regate", str(tmp_path), folder=tmp_path)
    assert done.returncode == 2
    assert "config.yaml" in done.stderr


def test_cfg_prints_what_an_override_makes(tmp_path: Path) -> None:
    done = run("gate", "--cfg", "engine.args.tensor_parallel_size=4", folder=tmp_path)
    assert done.returncode == 0
    assert "tensor_parallel_size: 4" in done.stdout
