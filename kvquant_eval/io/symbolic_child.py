"""Compares formulas with math-verify (SymPy), each question in a process of its own: what ``symbolic`` starts.

It stands alone: the standard library and math-verify, nothing of the project. SymPy may compute for ever, take all
memory or overflow the stack, and parts of it evaluate text as Python. So a question is answered in a fork with limits
on CPU time, memory and files, which is refused whatever code would need to do harm, and only LaTeX is parsed, by a
grammar.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

MEMORY, WALL_S = 2 << 30, 60.0
"""Of one question: bytes of address space, and seconds by the clock after which no answer is evidence."""
MOST_BYTES = 4096
PRECISION = 6
"""Decimals in which numbers must agree."""
REFUSED = (
    "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.kill", "os.putenv", "os.remove", "os.rename",
    "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.chmod", "os.chown", "os.truncate", "os.utime", "subprocess.",
    "socket.", "shutil.", "ctypes.", "tempfile.", "pty.",
)  # fmt: skip
"""Audit events, or how they begin, that no formula has a use for."""


class Refused(BaseException):
    """Something that no formula needs was tried. No ``Exception``: SymPy passes those over."""


def main(cpu_s: int) -> None:
    """Answer questions, one JSON line each and in ``cpu_s`` seconds of CPU time each, until there are no more."""
    from math_verify import parse, verify
    from math_verify.parser import LatexExtractionConfig, get_extraction_regexes

    config = (LatexExtractionConfig(boxed_match_priority=-1),)
    get_extraction_regexes(config)  # compiled once, for all forks

    def read(tex: str) -> list[Any]:
        return list(parse(f"${tex}$", config, fallback_mode="no_fallback", parsing_timeout=0))

    def same(gold: list[str], answer: str) -> str | None:
        found = read(answer)
        for formula in gold if found else ():
            if verify(read(formula), found, float_rounding=PRECISION, timeout_seconds=0):
                return formula
        return None

    same(["x+1"], "1+x")  # what is loaded late is loaded now
    _say({"ready": True})
    for line in sys.stdin.buffer:
        question = json.loads(line)
        _say(apart(partial(same, question["gold"], question["answer"]), cpu_s))


def apart(work: Callable[[], str | None], cpu_s: int) -> dict[str, Any]:
    """The answer of ``work`` in a fork: ``same`` is the formula that is equal (None: none), ``why`` what stopped it."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        try:
            os.write(writer, json.dumps(_within_limits(work, cpu_s)).encode()[:MOST_BYTES])
        finally:
            os._exit(0)
    os.close(writer)
    try:
        said, late = _hear(reader)
    finally:
        os.close(reader)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    if said:
        return said
    if late:
        return {"error": f"no answer within {WALL_S:g} s; the machine is too busy"}
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if number == signal.SIGXCPU:
        return {"same": None, "why": f"SymPy needs more than {cpu_s} s for it"}
    if number == signal.SIGKILL:
        return {"error": "its process was killed, by hand or for want of memory"}
    return {"same": None, "why": f"SymPy cannot take it ({signal.Signals(number).name if number else 'no answer'})"}


def _within_limits(work: Callable[[], str | None], cpu_s: int) -> dict[str, Any]:
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    for kind, most in (
        (resource.RLIMIT_AS, MEMORY),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
    ):
        resource.setrlimit(kind, (most, most))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    sys.addaudithook(_refuse)
    try:
        return {"same": work()}
    except Refused as error:
        return {"same": None, "why": f"SymPy was led to {error}"}
    except MemoryError:
        return {"same": None, "why": f"SymPy needs more than {MEMORY >> 30} GiB for it"}
    except (Exception, RecursionError) as error:  # noqa: BLE001 - whatever a library raises
        return {"same": None, "why": f"SymPy cannot take it ({type(error).__name__})"}


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if writes or event.startswith(REFUSED):
        raise Refused(event)


def _hear(reader: int) -> tuple[dict[str, Any] | None, bool]:
    """The fork's answer, and whether it took too long; None where it ended without one."""
    data, until = b"", time.monotonic() + WALL_S
    while len(data) < MOST_BYTES:
        if not select.select([reader], [], [], max(0.0, until - time.monotonic()))[0]:
            return None, True
        if not (piece := os.read(reader, MOST_BYTES)):
            break
        data += piece
    try:
        said = json.loads(data)
    except ValueError:
        return None, False
    return (said if isinstance(said, dict) else None), False


def _say(message: dict[str, Any]) -> None:
    line = json.dumps(message).encode() + b"\n"
    while line:
        line = line[os.write(1, line) :]


if __name__ == "__main__":
    main(int(sys.argv[1]))
