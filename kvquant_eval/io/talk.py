"""A child process that is not trusted: JSON lines to and from it within a time, and its end."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, cast

from kvquant_eval.core.text import one_line

GRACE_S = 5.0
"""Between a process's last word and its end."""
LONGEST = 64 * 2**10
"""Bytes of one message from it."""


class Stopped(Exception):
    """No more can be heard from inside; ``args`` may say why."""


@dataclass
class Talk:
    """JSON lines to and from a process; a deadline is one of ``time.monotonic``."""

    reader: int
    writer: int
    rest: bytes = b""

    def say(self, message: Mapping[str, Any], until: float) -> str:
        """Send; returns the message's token. Raises TimeoutError, Stopped."""
        line = json.dumps(dict(message)).encode() + b"\n"
        while line:
            self._wait(self.writer, select.POLLOUT, until)
            try:
                line = line[os.write(self.writer, line) :]
            except BlockingIOError:
                continue
            except OSError:
                raise Stopped from None
        return str(message["token"])

    def answer(self, token: str, until: float) -> dict[str, Any]:
        """The next message, which must know ``token``: whoever does not is not the one that was asked."""
        message = self.hear(until - time.monotonic())
        if not isinstance(message, dict) or message.get("token") != token:
            raise Stopped("wrote where only verdicts belong")
        return message

    def hear(self, seconds: float) -> Any:
        """The next message. Raises TimeoutError, Stopped."""
        until = time.monotonic() + seconds
        while b"\n" not in self.rest:
            self._wait(self.reader, select.POLLIN, until)
            try:
                piece = os.read(self.reader, LONGEST)
            except BlockingIOError:
                continue
            if not piece:
                raise Stopped
            self.rest += piece
            if len(self.rest) > LONGEST:
                raise Stopped("wrote where only verdicts belong")
        line, _, self.rest = self.rest.partition(b"\n")
        try:
            return json.loads(line)
        except ValueError:
            raise Stopped("wrote where only verdicts belong") from None

    def _wait(self, file: int, event: int, until: float) -> None:
        poll = select.poll()
        poll.register(file, event)
        if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
            raise TimeoutError


@contextmanager
def started(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[tuple[subprocess.Popen[bytes], Talk]]:
    """The process in a session of its own, killed with all that belongs to it at the end."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, cwd="/", start_new_session=True
    )
    streams = [cast("IO[bytes]", stream) for stream in (process.stdin, process.stdout, process.stderr)]
    try:
        for stream in streams:
            os.set_blocking(stream.fileno(), False)
        yield process, Talk(reader=streams[1].fileno(), writer=streams[0].fileno())
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in streams:
            stream.close()


def exit_status(process: subprocess.Popen[bytes]) -> int | None:
    """The exit status of a process that has ended, or is about to; negative for a signal. It is not reaped yet: its
    group is to be killed first, while its number is nobody else's.
    """
    until = time.monotonic() + GRACE_S
    while time.monotonic() < until:
        if found := os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG):
            return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
        time.sleep(0.01)
    return None


def last_words(process: subprocess.Popen[bytes]) -> str:
    """What bubblewrap or the interpreter wrote before it gave up; the code that is run has no way to write there."""
    try:
        written = os.read(cast("IO[bytes]", process.stderr).fileno(), LONGEST)
    except OSError:
        return ""
    return one_line(written.decode(errors="replace").strip().rpartition("\n")[2])
