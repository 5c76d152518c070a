"""Formulas compared by SymPy in a child: what is equal, and what hostile formulas come to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kvquant_eval.io import symbolic
from kvquant_eval.io.symbolic import Symbolic


@pytest.fixture(scope="module")
def oracle() -> Iterator[Symbolic]:
    made = Symbolic(cpu_s=2)
    yield made
    made.close()


def ask(oracle: Symbolic, gold: str, answer: str) -> Any:
    return oracle({"gold": [gold], "answer": answer})


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("2x+3", "3+2x"),
        ("x^2-1", "(x-1)(x+1)"),
        (r"\sqrt{8}", r"2\sqrt{2}"),
        ("4", r"\sqrt{16}"),
        (r"\frac{\pi}{2}", r"0.5\pi"),
        (r"\{1,2\}", r"\{2,1\}"),
        (r"(-\infty,2)\cup(3,\infty)", r"(-\infty, 2) \cup (3, \infty)"),
        ("1", r"\sin^2(x)+\cos^2(x)"),
    ],
)
def test_formulas_that_are_one(oracle: Symbolic, gold: str, answer: str) -> None:
    assert ask(oracle, gold, answer) == {"same": gold}


@pytest.mark.parametrize(
    ("gold", "answer"),
    [("2x+3", "2x+5"), (r"\sqrt{8}", r"\sqrt{2}"), ("x^2", "x^3"), ("x", "y"), (r"\frac{1}{3}", "0.333")],
)
def test_formulas_that_are_two(oracle: Symbolic, gold: str, answer: str) -> None:
    assert ask(oracle, gold, answer) == {"same": None}


def test_the_first_equal_gold_is_named(oracle: Symbolic) -> None:
    assert oracle({"gold": ["y", "x+1", "1+x"], "answer": "1+x"}) == {"same": "x+1"}


HOSTILE = {
    "nested powers": "9^{9^{9^9}}",
    "nested powers of Python": "9**9**9**9",
    "a huge factorial": "99999999999!",
    "a huge power": "10^{99999999999}",
    "deep brackets": "(" * 5000 + "1" + ")" * 5000,
    "deep braces": "{" * 5000,
    "a huge text": "x" * 1_000_000,
    "a huge number": "9" * 1_000_000,
    "many fractions": r"\frac" * 2000,
    "unicode": "∑∫≈∀\U0001d7d9\u202e\x00",
    "half a surrogate pair": "\ud800",
    "a large product": "(a+b+c+d+e+f)^{40}",
    "nothing": "",
}


@pytest.mark.parametrize("formula", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_formula_ends_and_is_not_equal(oracle: Symbolic, formula: str) -> None:
    began = time.monotonic()
    answer = ask(oracle, "x+1", formula)
    assert answer["same"] is None
    assert set(answer) <= {"same", "why"}
    assert time.monotonic() - began < 200
    assert ask(oracle, "x+1", "1+x") == {"same": "x+1"}


@pytest.mark.parametrize(
    "form", ["{}", r"\text{{{}}}", r"\operatorname{{{}}}", "x + {}", r"\frac{{{}}}{{1}}", "$ {} $", "`{}`", "\n{}\n"]
)
@pytest.mark.parametrize(
    "code",
    [
        "__import__('os').system('touch {marker}')",
        "open('{marker}', 'w')",
        "[c for c in ().__class__.__base__.__subclasses__() if c.__name__ == 'Popen'][0](['touch', '{marker}'])",
        "exec(\"import os; os.system('touch {marker}')\")",
    ],
)
def test_no_text_is_run(oracle: Symbolic, form: str, code: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    for written in (code.format(marker=marker), code.format(marker=marker).replace("_", r"\_")):
        ask(oracle, "x+1", form.format(written))
        ask(oracle, form.format(written), "x+1")
    assert not marker.exists()


@pytest.mark.parametrize(
    ("work", "event"),
    [
        ("os.system('touch {marker}')", "os.system"),
        ("open('{marker}', 'w')", "open"),
        ("os.open('{marker}', os.O_CREAT | os.O_WRONLY)", "open"),
        ("subprocess.run(['touch', '{marker}'])", "subprocess.Popen"),
        ("os.posix_spawn('/bin/touch', ['touch', '{marker}'], {{}})", "os.posix_spawn"),
        ("os.execv('/bin/touch', ['touch', '{marker}'])", "os.exec"),
        ("os.fork()", "os.fork"),
        ("socket.socket()", "socket.__new__"),
        ("ctypes.CDLL(None)", "ctypes.dlopen"),
    ],
)
def test_what_no_formula_needs_is_refused_even_to_code_that_runs(work: str, event: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    code = (
        f"import sys, os, subprocess, socket, ctypes; sys.path.append({str(symbolic._INSIDE.parent)!r}); "
        f"import symbolic_child; print(symbolic_child.apart(lambda: {work.format(marker=marker)}, 5))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said == f"{{'same': None, 'why': 'SymPy was led to {event}'}}\n"
    assert not marker.exists()


@pytest.mark.parametrize(
    ("work", "why"),
    [
        ("sum(iter(int, 1))", "SymPy needs more than 1 s for it"),
        ("len(bytearray(4 << 30))", "SymPy needs more than 2 GiB for it"),
        ("os.abort()", "SymPy cannot take it (SIGABRT)"),
        ("os._exit(0)", "SymPy cannot take it (no answer)"),
        ("sys.exit('x')", "SymPy cannot take it (no answer)"),
        ("1 / 0", "SymPy cannot take it (ZeroDivisionError)"),
    ],
)
def test_whatever_work_comes_to_is_an_answer(work: str, why: str) -> None:
    code = (
        f"import sys, os; sys.path.append({str(symbolic._INSIDE.parent)!r}); "
        f"import symbolic_child; print(symbolic_child.apart(lambda: {work}, 1))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said == f"{{'same': None, 'why': '{why}'}}\n"


def test_closing_does_not_wait_for_an_answer() -> None:
    oracle = Symbolic(cpu_s=30)
    assert ask(oracle, "x", "x") == {"same": "x"}
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask, oracle, "1", "99999999999!")
        time.sleep(0.5)
        began = time.monotonic()
        oracle.close()
        assert time.monotonic() - began < 60
        assert waiting.result() == {"error": "its process ended"}


def test_a_child_that_is_killed_is_no_evidence_and_started_again() -> None:
    oracle = Symbolic()
    try:
        assert ask(oracle, "x", "x") == {"same": "x"}
        assert oracle._process is not None
        os.killpg(oracle._process.pid, signal.SIGKILL)
        assert ask(oracle, "x", "x") == {"error": "its process ended"}
        assert ask(oracle, "x", "x") == {"same": "x"}
    finally:
        oracle.close()


def test_a_child_that_does_not_start_is_not_tried_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "child.py"
    broken.write_text("raise ModuleNotFoundError(\"No module named 'math_verify'\")")
    monkeypatch.setattr(symbolic, "_INSIDE", broken)
    oracle = Symbolic()
    line = "math-verify does not start (ModuleNotFoundError: No module named 'math_verify')"
    assert [ask(oracle, "x", "x") for _ in range(3)] == [{"error": line}] * 3
    oracle.close()


def test_closing_leaves_no_process_behind() -> None:
    oracle = Symbolic()
    assert ask(oracle, "x", "x") == {"same": "x"}
    process = oracle._process
    oracle.close()
    assert process is not None
    assert process.poll() is not None
    oracle.close()
