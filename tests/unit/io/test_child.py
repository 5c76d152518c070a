"""The child process: answers, bad input, death, silence; and nothing of it is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from kvquant_eval.core.codec import DataError, from_data, to_data
from kvquant_eval.core.engine import EngineFacts, EngineSpec
from kvquant_eval.core.plan import make_blocks
from kvquant_eval.core.records import BlockResult, Sampling
from kvquant_eval.core.treatment import KVTreatment
from kvquant_eval.io.child import Child, EngineDied
from tests.fakes.kills import wait_until
from tests.fakes.records import rendered_turn

ENGINE = "tests.fakes.engine:FakeEngine"
HELPERS = "tests.fakes.helpers"
BLOCKS = make_blocks([rendered_turn(f"t{i}", conversation_id=f"c{i}") for i in range(2)], Sampling(), 2)


def spec(name: str = "good") -> Any:
    treatment = KVTreatment(name=name, dtype="fp8_e4m3")
    return to_data(EngineSpec(model="m", revision=None, treatment=treatment, args={}))


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    with Child(tmp_path / "engine.log", 30.0) as started:
        yield started
    assert not alive(started._process.pid)


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_an_engine_answers(child: Child) -> None:
    assert child.call("open", engine=ENGINE, spec=spec()) is None
    facts = from_data(EngineFacts, child.call("facts"), "facts")
    assert {layer.kv_dtype for worker in facts.layers for layer in worker} == {"fp8_e4m3"}
    for block in BLOCKS:
        result = from_data(BlockResult, child.call("run", block=to_data(block)), "block")
        assert result.index == block.index
        assert [r.turn_id for r in result.replays] == [r.turn_id for r in block.requests]
    assert child.call("close") is None


def test_an_answer_larger_than_a_pipe(child: Child) -> None:
    turns = [rendered_turn(f"t{i}", conversation_id="c", golden_ids=tuple(range(500))) for i in range(60)]
    (block,) = make_blocks(turns, Sampling(), 200)
    child.call("open", engine=ENGINE, spec=spec())
    assert len(child.call("run", block=to_data(block))["replays"]) == 120


def test_bad_input_is_the_users(child: Child) -> None:
    with pytest.raises(DataError, match=r"^spec: treatment: "):
        child.call("open", engine=ENGINE, spec={**spec(), "treatment": 7})
    assert child.call("open", engine=ENGINE, spec=spec()) is None  # and the child goes on


@pytest.mark.parametrize("engine", ["tests.fakes.engine:Gone", "tests.fakes.gone:FakeEngine"])
def test_an_engine_that_is_not_there(child: Child, engine: str) -> None:
    with pytest.raises(EngineDied, match=r"^engine, during open: (AttributeError|ModuleNotFoundError): "):
        child.call("open", engine=engine, spec=spec())


def test_an_engine_error_has_the_last_lines_of_the_log(child: Child) -> None:
    with pytest.raises(
        EngineDied, match=r"during open: RuntimeError: no memory for the KV cache; log .*engine\.log"
    ) as died:
        child.call("open", engine=ENGINE, spec=spec("does_not_start"))
    assert "Traceback" in str(died.value)
    assert len(str(died.value).splitlines()) <= 16


def test_nothing_runs_before_an_engine_is_open(child: Child) -> None:
    with pytest.raises(EngineDied, match="run: no engine is open"):
        child.call("run", block=to_data(BLOCKS[0]))


def test_death_in_mid_call(child: Child) -> None:
    child.call("open", engine=ENGINE, spec=spec("dies_in_block_1"))
    child.call("run", block=to_data(BLOCKS[0]))
    with pytest.raises(EngineDied, match="during run: its process ended") as died:
        child.call("run", block=to_data(BLOCKS[1]))
    assert "illegal memory access" in str(died.value)
    with pytest.raises(EngineDied, match="its process ended"):
        child.call("facts")


def test_silence_longer_than_the_timeout(tmp_path: Path) -> None:
    with Child(tmp_path / "engine.log", 30.0) as child:
        child.call("open", engine=ENGINE, spec=spec("hangs"))
        child.timeout_s = 0.5
        started = time.monotonic()
        with pytest.raises(EngineDied, match=r"during run: no answer for 0\.5 s"):
            child.call("run", block=to_data(BLOCKS[0]))
        assert 0.5 <= time.monotonic() - started < 5
        pid = child._process.pid
    assert not alive(pid)


def test_silence_before_the_request_is_read(tmp_path: Path) -> None:
    def alarm(*_: Any) -> None:
        raise TimeoutError("still writing the request after 2 s")

    previous = signal.signal(signal.SIGALRM, alarm)
    try:
        with Child(tmp_path / "engine.log", 0.5) as child:
            os.kill(child._process.pid, signal.SIGSTOP)
            signal.alarm(2)
            with pytest.raises(EngineDied, match=r"no answer for 0\.5 s"):
                child.call("open", engine="x" * 1_000_000, spec=spec())
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def test_the_log_takes_what_the_engine_prints(child: Child) -> None:
    child.call("open", engine=f"{HELPERS}:Chatty", spec=spec())
    assert child.call("facts") == {"said": "hello"}
    assert "printed to stdout" in child.log.read_text()
    assert "printed to stderr" in child.log.read_text()


def test_the_environment_of_a_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_RUN_ID", "the parent's")
    monkeypatch.setenv("SOME", "inherited")
    with Child(tmp_path / "engine.log", 30.0, {"VLLM_EXTRA": "given"}) as child:
        child.call("open", engine=f"{HELPERS}:Environment", spec=spec())
        seen = child.call("facts")
    assert (seen.get("SOME"), seen.get("VLLM_EXTRA"), seen.get("MLFLOW_RUN_ID")) == ("inherited", "given", None)


def test_descriptors_are_closed(tmp_path: Path) -> None:
    before = open_descriptors()
    for _ in range(2):
        with Child(tmp_path / "engine.log", 30.0):
            pass
    assert open_descriptors() == before


def test_an_error_inside_the_context_leaves_no_child(tmp_path: Path) -> None:
    child = Child(tmp_path / "engine.log", 30.0)
    with pytest.raises(EngineDied), child:
        child.call("facts")
    assert not alive(child._process.pid)


def test_children_of_the_engine_go_with_it(tmp_path: Path) -> None:
    with Child(tmp_path / "engine.log", 30.0) as child:
        child.call("open", engine=f"{HELPERS}:Parent", spec=spec())
        grandchild = child.call("facts")["pid"]
        assert alive(grandchild)
    assert wait_until(lambda: not alive(grandchild))


def test_death_is_seen_at_once_though_a_child_of_the_engine_lives_on(tmp_path: Path) -> None:
    with Child(tmp_path / "engine.log", 30.0) as child:
        child.call("open", engine=f"{HELPERS}:Forker", spec=spec())
        child.timeout_s = 3.0
        started = time.monotonic()
        with pytest.raises(EngineDied, match="its process ended"):
            child.call("facts")
        assert time.monotonic() - started < 2.5


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_child_outlives_a_killed_parent(tmp_path: Path, number: int) -> None:
    """The parent is shot while its engine, with a child of its own, is at work."""
    program = (
        "import sys\nfrom pathlib import Path\nfrom kvquant_eval.io.child import Child\n"
        "from tests.unit.io.test_child import HELPERS, spec\n"
        "with Child(Path(sys.argv[1]) / 'engine.log', 600.0) as child:\n"
        "    child.call('open', engine=HELPERS + ':Parent', spec=spec())\n"
        "    print(child._process.pid, child.call('facts')['pid'], flush=True)\n"
        "    child.call('run', block={'index': 0, 'waves': []})\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2
    assert all(map(alive, pids))
    parent.send_signal(number)
    parent.wait()
    parent.stdout.close()
    assert wait_until(lambda: not any(map(alive, pids)))


@pytest.mark.parametrize("error", ["torch.OutOfMemoryError: no room for 4 GiB", "AssertionError"])
def test_the_engine_cores_own_error_is_named(tmp_path: Path, error: str) -> None:
    """The client of vLLM only says that its core failed; why stands further up, below errors of earlier processes."""
    log = tmp_path / "engine.log"
    at = "(EngineCore pid=7) ERROR 11-29 22:23:04 [core.py:1510]"
    log.write_text(f"{at} OSError: of an earlier start\n")
    with Child(log, 30.0) as child:
        with log.open("a") as more:
            more.write(f"{at} EngineCore failed to start.\n{at} Traceback (most recent call last):\n")
            more.write(f"{at}   File 'x.py', line 1, in y\n{at}     raise\n{at} {error}\n{at} RuntimeError: later\n")
        with pytest.raises(EngineDied) as died:
            child.call("open", engine=ENGINE, spec=spec("does_not_start"))
    assert f"no memory for the KV cache ({error}); log " in str(died.value).splitlines()[0]
