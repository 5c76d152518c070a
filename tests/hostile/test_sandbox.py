"""Code that means harm, in both kinds of isolation: bubblewrap's, where it is here, and what is left without it.

Where bubblewrap does not work, its tests are skipped, each with the reason.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest

from kvquant_eval.core.settings import CodeSettings
from kvquant_eval.io import sandbox
from kvquant_eval.io.sandbox import DOORS, Isolation, Sandbox, find_isolation, probe
from tests.fakes.kills import wait_until

PROJECT = Path(__file__).parents[2]
LIMITS = CodeSettings(seconds=1, memory_mb=128 + os.getpid() % 32)
"""The odd memory tells the sandboxes of this process from those of another that runs tests of this file."""
PLAIN = Isolation(bubblewrap="", weakness="as a test wants it")


@cache
def strong() -> Isolation:
    return find_isolation()


@cache
def shut(kind: str) -> set[str]:
    """What is kept shut; without bubblewrap it depends on the kernel."""
    errors = probe(strong().bubblewrap if kind == "bubblewrap" else "")["errors"]
    return {door for door, error in zip(DOORS, errors, strict=True) if not error}


@pytest.fixture(params=["bubblewrap", "plain"])
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "bubblewrap" and not strong().strong:
        pytest.skip(f"strong isolation is not tested here: {strong().weakness}")
    return str(request.param)


@pytest.fixture
def box(kind: str) -> Sandbox:
    return Sandbox(strong() if kind == "bubblewrap" else PLAIN, LIMITS)


def need(kind: str, *doors: str) -> None:
    if missing := set(doors) - shut(kind):
        pytest.skip(f"{kind} isolation cannot keep code here from what it would do: {', '.join(sorted(missing))}")


def run(box: Sandbox, code: str, *tests: str, setup: str = "") -> dict[str, Any]:
    others = set(psutil.Process().children(recursive=True))  # another file's tests may keep a process
    found = box({"setup": setup, "code": code, "tests": list(tests) or ["assert f() == 1"]})
    assert set(psutil.Process().children(recursive=True)) <= others
    return found


def refused(box: Sandbox, attempt: str, *errors: str) -> None:
    """``attempt`` (an expression) fails."""
    errors = errors or (
        "PermissionError",
        "FileNotFoundError",
        "OSError",
        "ProcessLookupError",
        "ValueError: not allowed",
    )
    found = run(box, f"import os, socket, subprocess\ndef f(): {attempt}\n")
    assert found.get("stopped") == "", found
    assert found["errors"][0].startswith(errors), found


def test_code_that_is_right_passes_and_code_that_is_wrong_does_not(box: Sandbox) -> None:
    assert run(box, "def f(): return 1") == {"errors": [""], "stopped": ""}
    assert run(box, "def f(): return 2") == {"errors": ["AssertionError"], "stopped": ""}
    found = run(box, "def f(x): return x", "assert f(1) == 1", "assert f(1) == 2, 'two'", "f()", setup="Y = 1")
    assert found["errors"][:2] == ["", "AssertionError: two"]
    assert found["errors"][2].startswith("TypeError: f() missing")


def test_every_test_gets_a_module_of_its_own(box: Sandbox) -> None:
    found = run(box, "def f(): seen.append(1); return len(seen)", *["assert f() == 1"] * 3, setup="seen = []")
    assert found["errors"] == ["", "", ""]


def test_what_replies_may_rely_on(box: Sandbox) -> None:
    """Threads, event loops, dataclasses with late annotations; no demonstration at a script's end."""
    assert run(
        box,
        "from __future__ import annotations\nimport asyncio, threading\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass A:\n    x: int = 1\n"
        "async def g(): return A().x\n"
        "def f():\n    t = threading.Thread(target=print)\n    t.start()\n    t.join()\n    return asyncio.run(g())\n"
        "if __name__ == '__main__':\n    raise SystemExit\n",
    )["errors"] == [""]


def test_answers_repeat_themselves(box: Sandbox) -> None:
    code = "def f(): return [hash('a'), {'a', 'b', 'c', 'd'}, object()]"
    first, second = (run(box, code, "raise ValueError(f())") for _ in range(2))
    assert first == second
    assert "object at 0x...>" in first["errors"][0]


@pytest.mark.parametrize(
    "code",
    [
        "import os\nwhile True: os.fork()",
        "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass",
        "import subprocess\nwhile True:\n  try: subprocess.Popen(['sleep', '1000'])\n  except OSError: pass",
        "import os\nif os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0:\n    while True: pass",
        "import ctypes\nlibc = ctypes.CDLL(None)\nwhile True: libc.vfork()",
        "import ctypes\nlibc = ctypes.CDLL(None)\nwhile True: libc.syscall(435, None, 0)",
    ],
    ids=["fork bomb", "stubborn fork bomb", "programs", "daemon", "vfork", "clone3"],
)
def test_there_is_one_process(kind: str, box: Sandbox, code: str) -> None:
    need(kind, "start processes")
    before = set(psutil.pids())
    found = run(box, code)
    assert found["stopped"] or found["errors"] == ["PermissionError: [Errno 1] Operation not permitted"]
    assert wait_until(lambda: not _sandboxes(before))


def _sandboxes(before: set[int]) -> list[int]:
    """Processes since ``before`` that run what this process's limits run (other tests have other limits)."""
    marks = ("shuts itself in", str(LIMITS.memory_mb * 2**20))
    found = [p for p in psutil.process_iter(["cmdline", "status"]) if p.pid not in before]
    return [
        p.pid
        for p in found
        if p.info["status"] != psutil.STATUS_ZOMBIE and all(mark in repr(p.info["cmdline"]) for mark in marks)
    ]


def test_code_that_ignores_signals_is_ended(box: Sandbox) -> None:
    code = (
        "import signal\nfor n in range(1, 65):\n  try: signal.signal(n, signal.SIG_IGN)\n"
        "  except (OSError, ValueError): pass\nwhile True: pass"
    )
    assert run(box, code)["stopped"] in ("was ended by SIGKILL", "took longer than 5 s")


@pytest.mark.parametrize(
    ("code", "stopped"),
    [
        ("while True: pass", "took more than 1 s of CPU time"),
        ("def f():\n  while True: pass", "took more than 1 s of CPU time"),
        ("import time\ntime.sleep(1000)", "took longer than 5 s"),
        ("import threading\nthreading.Event().wait()", "took longer than 5 s"),
        ("input = open(3).read()", "took longer than 5 s"),
        ("while True: print('x' * 100000)", "took more than 1 s of CPU time"),
        ("import sys\nwhile True: sys.stderr.write('x' * 100000)", "took more than 1 s of CPU time"),
        ("def f(): return 10 ** 10 ** 10", "took more than 1 s of CPU time"),
    ],
)  # fmt: skip
def test_what_does_not_end_is_ended(box: Sandbox, code: str, stopped: str) -> None:
    found = run(box, code)
    assert found["errors"] == []
    assert found["stopped"] in (stopped, "took longer than 5 s")  # the clock decides where the machine is busy


def test_many_threads_and_files_end_with_it(box: Sandbox) -> None:
    """Threads share memory and CPU time, and empty files cost the kernel about 1 KiB each: both end with the time."""
    threads = (
        "import threading\nthreading.stack_size(32768)\n"
        "while True: threading.Thread(target=threading.Event().wait, daemon=True).start()"
    )
    files = "import itertools\nfor n in itertools.count(): open(f'/tmp/{n}', 'w').close()"
    for code in (threads, files):
        found = run(box, code)
        assert found["stopped"] or found["errors"][0], code


@pytest.mark.parametrize(
    "attempt",
    ["bytearray(10 * 2**30)", "[0] * 10**10", "'x' * 10**10", "b''.join([bytes(2**20)] * 10**4)",
     "[bytearray(2**20) for _ in range(10**4)]"],
)  # fmt: skip
def test_memory_is_bounded(box: Sandbox, attempt: str) -> None:
    refused(box, attempt, "MemoryError")


def test_memory_that_is_shared_is_none(kind: str, box: Sandbox) -> None:
    need(kind, "start processes")
    refused(box, "os.memfd_create('x')")


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "/etc/shadow",
        str(PROJECT / "pyproject.toml"),
        str(Path.home() / ".profile"),
        "/proc/self/environ",
        "/proc/{pid}/environ",
        "/proc/{pid}/mem",
        "/proc/1/cmdline",
        "/sys/class",
        "/dev/mem",
    ],
)
def test_nothing_is_read(kind: str, box: Sandbox, path: str) -> None:
    need(kind, "read files", "read /etc", "look at other processes")
    refused(box, f"os.open({path.format(pid=os.getpid())!r}, os.O_RDONLY)")


def test_nothing_is_written_or_deleted(kind: str, box: Sandbox, tmp_path: Path) -> None:
    need(kind, "write files", "delete files")
    canary = tmp_path / "canary"
    canary.write_text("alive")
    above = Path(tempfile.gettempdir())
    for attempt in (
        f"open({str(canary)!r}, 'w')",
        f"os.remove({str(canary)!r})",
        f"os.rename({str(canary)!r}, {str(canary)!r} + '2')",
        f"os.truncate({str(canary)!r}, 0)",
        f"os.chmod({str(canary)!r}, 0)",
        f"os.utime({str(canary)!r})",
        f"os.rmdir({str(tmp_path)!r})",
        f"os.symlink('/', {str(tmp_path / 'link')!r})",
        f"os.link({str(canary)!r}, {str(tmp_path / 'link')!r})",
        f"os.mkdir({str(tmp_path / 'new')!r})",
        f"os.mkfifo({str(tmp_path / 'pipe')!r})",
        f"os.open({str(PROJECT / 'pyproject.toml')!r}, os.O_WRONLY)",
        f"open({str(Path.home() / 'kvquant-canary')!r}, 'w')",
        f"open({str(above / '..' / 'kvquant-canary')!r}, 'w')",
        "open('/usr/kvquant-canary', 'w')",
        "open('/kvquant-canary', 'w')",
        "open('/dev/kvquant-canary', 'w')",
    ):
        refused(box, attempt)
    assert [path.name for path in tmp_path.iterdir()] == ["canary"]
    assert canary.read_text() == "alive"


def test_a_link_leads_out_of_nothing(kind: str, box: Sandbox, tmp_path: Path) -> None:
    need(kind, "read files", "write files")
    canary = tmp_path / "canary"
    canary.write_text("alive")
    refused(box, f"os.symlink({str(canary)!r}, '/tmp/link') or open('/tmp/link', 'r+')")
    assert canary.read_text() == "alive"


def test_what_is_written_is_gone_afterwards(kind: str, box: Sandbox) -> None:
    if kind == "plain":
        pytest.skip("without bubblewrap there is nowhere to write")
    before = set(Path(tempfile.gettempdir()).iterdir())
    code = "def f():\n  open('/tmp/kvquant-left', 'w').write('x')\n  return 1"
    assert run(box, code) == {"errors": [""], "stopped": ""}
    assert run(box, "import os\ndef f(): return len(os.listdir('/tmp')) + 1") == {"errors": [""], "stopped": ""}
    assert not {path for path in set(Path(tempfile.gettempdir()).iterdir()) - before if "left" in path.name}


def test_files_have_a_size(kind: str, box: Sandbox) -> None:
    where = "/tmp/large" if kind == "bubblewrap" else "/dev/shm/kvquant-large"
    refused(box, f"open({where!r}, 'wb').write(bytes(20 * 2**20))", "OSError", "PermissionError", "FileNotFoundError")
    if kind == "bubblewrap":
        many = "[open(f'/tmp/{n}', 'wb').write(bytes(2**20)) for n in range(40)]"
        refused(box, many, "OSError: [Errno 28] No space left on device")


@pytest.mark.parametrize("family", ["AF_INET", "AF_INET6", "AF_UNIX", "AF_NETLINK", "AF_PACKET", "AF_VSOCK", "AF_ALG"])
def test_no_socket_is_opened(kind: str, box: Sandbox, family: str) -> None:
    need(kind, "open sockets")
    refused(box, f"socket.socket(socket.{family}, socket.SOCK_DGRAM)")


@pytest.mark.parametrize(
    "attempt",
    [
        "os.kill({pid}, 0)",
        "os.kill(os.getppid(), 9)",
        "os.kill(-1, 9)",
        "os.killpg(0, 9)",
        "os.pidfd_open({pid})",
        "os.execv('/usr/bin/env', ['env'])",
        "os.posix_spawn('/usr/bin/env', ['env'], dict())",
        "subprocess.run(['env'])",
        "os.chroot('/tmp')",
        "__import__('resource').prlimit({pid}, 7, (1, 1))",
        "__import__('resource').setrlimit(9, (-1, -1))",
        "os.setpriority(os.PRIO_PROCESS, {pid}, 19)",
    ],
)
def test_other_processes_are_out_of_reach(kind: str, box: Sandbox, attempt: str) -> None:
    need(kind, "start processes", "reach other processes")
    refused(box, attempt.format(pid=os.getpid()))


@pytest.mark.parametrize("call", ["ptrace(16, 1)", "unshare(0x10000000)", "mount(0, 0, 0, 0, 0)", "syscall(425, 1, 0)"])
def test_the_kernels_back_doors_are_shut(kind: str, box: Sandbox, call: str) -> None:
    need(kind, "start processes")
    code = f"import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\ndef f(): return libc.{call}, ctypes.get_errno()"
    assert run(box, code, "assert f() == (-1, 1), f()")["errors"] == [""]


def test_the_environment_holds_no_secret(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVQUANT_SECRET", "hunter2")
    found = run(box, "import os\ndef f(): return dict(os.environ)", "raise ValueError(f())")
    assert "HOME" in found["errors"][0]
    assert "hunter2" not in found["errors"][0]


@pytest.mark.parametrize(
    "code",
    [
        "print('PASSED')\nprint('{\"error\": \"\"}')",
        "import os\nos._exit(0)",
        "import sys\nsys.exit(0)",
        "raise SystemExit(0)",
        "import os\nos.close(1)",
        "import builtins\nbuiltins.AssertionError = type('X', (BaseException,), {'__new__': lambda *a: None})",
        "import builtins\nbuiltins.__build_class__ = builtins.exec = builtins.compile = lambda *a, **k: None",
        "import builtins\nfor n in dir(builtins):\n  if n[0].islower(): setattr(builtins, n, lambda *a, **k: True)",
        "import json, os\njson.loads = json.dumps = os.read = lambda *a, **k: b''\nos.write = lambda *a: 1",
        "import sys\nsys.settrace(lambda *a: None)\nsys.excepthook = lambda *a: None",
        "import atexit, os\natexit.register(os._exit, 0)",
        "def assert_(*a): pass\ndef test_f(): pass\ntest = test_1 = test_f",
        "import sys\ntests = sys.argv + sys.orig_argv\nassert not [t for t in tests if 'f() == 1' in t]",
        "import os\nfor n in range(3, 64):\n  try: os.write(n, b'{\"error\": \"\"}\\n' * 9)\n  except OSError: pass",
        "import os\nfor n in range(3, 64):\n  try: os.write(n, b'\\n' * 99 + b'x' * 2**20)\n  except OSError: pass",
        "import os\nfor n in range(3, 64):\n  try: os.close(n)\n  except OSError: pass",
        "import sys\nsys.setrecursionlimit(10)",
        "import signal\nsignal.raise_signal = None\nsignal.alarm(1)",
    ],
)  # fmt: skip
def test_success_is_not_forged(box: Sandbox, code: str) -> None:
    """``f`` is not there, so no test can pass."""
    found = run(box, code)
    assert found["stopped"] or (found["errors"] and found["errors"][0])
    wrong = run(box, f"def f(): return 2\n{code}")
    assert wrong["stopped"] or (wrong["errors"] and wrong["errors"][0])


def test_a_function_that_leaves_or_patches_when_it_is_called_forges_nothing(box: Sandbox) -> None:
    for body in ("os._exit(0)", "sys.exit(0)", "builtins.__dict__.clear()", "sys.modules.clear()", "raise Forged"):
        code = (
            f"import builtins, os, sys\nclass Forged(BaseException):\n  def __str__(self): os._exit(0)\ndef f(): {body}"
        )
        found = run(box, code)
        assert found["stopped"] or found["errors"][0], body


def test_the_tests_are_not_there_before_they_run(box: Sandbox) -> None:
    """Nothing that the code can name, read or list while it is loaded holds a test."""
    code = (
        "import os, sys, gc\nos.set_blocking(3, False)\n"
        "try: early = os.read(3, 10**6)\nexcept OSError: early = b''\nos.set_blocking(3, True)\n"
        "seen = repr([early, sys.argv, sys.orig_argv, [o for o in gc.get_objects() if type(o) is dict]])\n"
        "def f(): return 1\nif 'magic-7' in seen: raise ValueError('found it')"
    )
    assert run(box, code, "assert f() == 1  # magic-7", "assert f() == 2")["errors"][1:] == ["AssertionError"]


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("def f(): return f()", "RecursionError"),
        ("def f(): raise ValueError('\\x1b[2J' + 'x\\n' * 10**6)", "ValueError: \\x1b[2Jx\\nx"),
        ("class E(Exception):\n  def __str__(self): raise E\ndef f(): raise E", "E"),
        ("class E(Exception):\n  def __str__(self): return 7\ndef f(): raise E", "E"),
        ("def f(): raise type('\\ud800', (Exception,), {})", "UnicodeEncodeError"),
    ],
)
def test_errors_are_one_short_line(box: Sandbox, code: str, error: str) -> None:
    (found,) = run(box, code)["errors"]
    assert found.startswith(error)
    assert len(found) < 2000
    assert found.isprintable()


@pytest.mark.parametrize("code", ["import ctypes\nctypes.string_at(0)", "import os\nos.abort()"])
def test_a_crash_is_the_codes_own(box: Sandbox, code: str) -> None:
    assert run(box, code)["stopped"].startswith("was ended by SIG")


def test_a_setup_that_fails_is_no_evidence(box: Sandbox) -> None:
    assert run(box, "def f(): return 1", setup="1/0") == {
        "error": "the turn's setup failed: ZeroDivisionError: division by zero"
    }


def test_a_setup_that_the_code_breaks_is_the_codes_own(box: Sandbox) -> None:
    code = "import math\ndel math.pi\ndef f(): return 1"
    found = run(box, code, "assert f() == 1", "assert f() == 1", setup="from math import pi")
    assert found["errors"][0] == ""
    assert found["errors"][1].startswith("ImportError")


@pytest.mark.parametrize("command", [["/nowhere/bwrap"], ["/bin/false"], ["/bin/sleep", "1000"]])
def test_a_sandbox_that_does_not_start_is_no_evidence(command: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sandbox, "_command", lambda self: list(command))
    monkeypatch.setattr(sandbox, "START_S", 0.5)
    found = run(Sandbox(PLAIN, LIMITS), "def f(): return 1")
    assert found["error"].startswith("the sandbox did not start: ")


def test_bubblewrap_that_cannot_isolate_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that only runs what it is given, and one that fails."""
    fake = tmp_path / "bwrap"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    fake.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift\nexec "$@"\n')
    fake.chmod(0o755)
    found = find_isolation()
    assert not found.strong
    assert found.weakness.startswith("code in bubblewrap can read files, read /etc, write files, delete files")
    fake.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    weakness = (
        "bubblewrap does not work here (the sandbox did not start: bwrap: No permissions to create new namespace)"
    )
    assert find_isolation() == Isolation(bubblewrap="", weakness=weakness)


def test_without_bubblewrap_isolation_is_weak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert find_isolation() == Isolation(bubblewrap="", weakness="bubblewrap is not installed")


ORPHAN = """
import sys
from kvquant_eval.core.settings import CodeSettings
from kvquant_eval.io.sandbox import Isolation, Sandbox
box = Sandbox(Isolation(bubblewrap=sys.argv[1], weakness=""), CodeSettings(seconds=60))
print("begins", flush=True)
box({"setup": "", "code": "import time\\ntime.sleep(1000)", "tests": [""]})
"""


def test_it_dies_with_its_parent(box: Sandbox) -> None:
    command = [sys.executable, "-c", ORPHAN, box.isolation.bubblewrap]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=PROJECT) as parent:
        assert parent.stdout
        assert parent.stdout.readline() == b"begins\n"
        time.sleep(0.5)
        inside = psutil.Process(parent.pid).children(recursive=True)
        assert inside
        os.kill(parent.pid, signal.SIGKILL)
    _, alive = psutil.wait_procs(inside, timeout=5)
    assert not alive
