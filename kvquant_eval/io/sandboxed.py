"""What runs inside the sandbox, as ``python -c``: shuts itself in, then executes a reply's code against hidden tests.

It stands alone: the standard library, nothing of the project. Arguments: seconds of CPU time, bytes of memory, bytes of
a file, then either nothing (bubblewrap's mounts say what is there) or the folders that may be read (Landlock does).

A reply's code shares this process with its tests. It gets no file, argument or output that holds them: each test comes
in only after the code was loaded, and its verdict counts only with the token that came with it. So printing, leaving
early, patching ``builtins`` or defining names anew forge nothing. What cannot be prevented in one process: code that is
written against this file can walk the stack or the heap to a test and its token, and an object may claim to be equal to
everything. No reply of a model that never saw this gate does that by chance.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import json
import os
import resource
import signal
import struct
import sys
import types
from typing import Any

globals()["__builtins__"] = dict(vars(builtins))  # the functions below keep their own, whatever a reply patches

LONGEST_ERROR = 300
LIBC = ctypes.CDLL(None, use_errno=True)

_CLONE, _CLONE3, _THREAD = {"x86_64": 56, "aarch64": 220}, 435, 0x00010000
_EPERM, _ENOSYS = 1, 38
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""As Linux's audit names them."""
_SHARED = (424, 425, 426, 427, 428, 429, 430, 431, 432, 433, 434, 438, 442, 447)
"""Calls that have one number everywhere: pidfd_*, io_uring_*, the new mount calls, memfd_secret."""
_FORBIDDEN: dict[str, tuple[int, int | None]] = {
    "socket": (41, 198),
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "execveat": (322, 281),
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "prlimit64": (302, 261),
    "setrlimit": (160, 164),
    "setpriority": (141, 140),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setaffinity": (203, 122),
    "ioprio_set": (251, 30),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "memfd_create": (319, 279),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "personality": (135, 92),
    "syslog": (103, 116),
    "reboot": (169, 142),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "iopl": (172, None),
    "ioperm": (173, None),
    "vhangup": (153, 58),
}
"""What no code that is scored needs: x86-64's number and AArch64's. Threads stay, as they share memory and CPU time."""
_FILES: dict[str, tuple[int, int | None]] = {
    "mknod": (133, None),
    "mknodat": (259, 33),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "utime": (132, None),
    "utimes": (235, None),
    "utimensat": (280, 88),
    "futimesat": (261, None),
}
"""What changes files and is no business of Landlock's: forbidden where no mount holds it off."""


def limit(cpu_s: int, memory: int, file: int) -> None:
    """One process, and no other (``forbid``), so that limits a process are limits of all of it."""
    for kind, soft, hard in (
        (resource.RLIMIT_CPU, cpu_s, cpu_s + 1),
        (resource.RLIMIT_AS, memory, memory),
        (resource.RLIMIT_FSIZE, file, file),
        (resource.RLIMIT_NOFILE, 64, 64),
        (resource.RLIMIT_CORE, 0, 0),
    ):
        resource.setrlimit(kind, (soft, hard))


def forbid(calls: dict[str, tuple[int, int | None]]) -> bool:
    """None of the system calls from here on, and no new process; whether the kernel holds to it (seccomp)."""
    machine = os.uname().machine
    if machine not in _ARCHITECTURES or sys.maxsize < 2**32:
        return False
    column = 0 if machine == "x86_64" else 1
    numbers = sorted({*_SHARED, *(number for row in calls.values() if (number := row[column]) is not None)})
    deny = (0x06, 0, 0, 0x00050000 | _EPERM)
    program = [(0x20, 0, 0, 4), (0x15, 1, 0, _ARCHITECTURES[machine]), (0x06, 0, 0, 0x80000000), (0x20, 0, 0, 0)]
    if machine == "x86_64":
        program += [(0x35, 0, 1, 0x40000000), deny]  # the numbers of x32
    for number in numbers:
        program += [(0x15, 0, 1, number), deny]
    program += [(0x15, 0, 1, _CLONE3), (0x06, 0, 0, 0x00050000 | _ENOSYS)]  # its flags are out of sight: use clone
    program += [(0x15, 0, 3, _CLONE[machine]), (0x20, 0, 0, 16), (0x45, 1, 0, _THREAD), deny]
    program += [(0x06, 0, 0, 0x7FFF0000)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in program))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(code)))
    return bool(LIBC.prctl(38, 1, 0, 0, 0) == 0 and LIBC.prctl(22, 2, header, 0, 0) == 0)


def confine(readable: list[str]) -> bool:
    """Nothing is written from here on, and nothing read but what lies in ``readable``; whether Landlock holds to it."""
    version = LIBC.syscall(444, None, 0, 1)
    if version < 1:
        return False
    handled = (1 << (13 + min(version - 1, 2))) - 1
    rules = LIBC.syscall(444, ctypes.create_string_buffer(struct.pack("=Q", handled)), 8, 0)
    for folder in readable:
        place = os.open(folder, os.O_PATH)
        rule = ctypes.create_string_buffer(struct.pack("=Qi", 0b1100, place))
        LIBC.syscall(445, rules, 1, rule, 0)
        os.close(place)
    held = bool(LIBC.prctl(38, 1, 0, 0, 0) == 0 and LIBC.syscall(446, rules, 0) == 0)
    os.close(rules)
    return held


class Channel:
    """JSON lines with the process outside."""

    def __init__(self) -> None:
        self._reader, self._writer = os.dup(0), os.dup(1)
        null = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(null, standard)
        self._rest = b""

    def say(self, message: dict[str, Any], write: Any = os.write, dumps: Any = json.dumps) -> None:
        line = dumps(message).encode() + b"\n"
        while line:
            line = line[write(self._writer, line) :]

    def hear(self, read: Any = os.read, loads: Any = json.loads) -> Any:
        while b"\n" not in self._rest:
            if not (piece := read(self._reader, 65536)):
                os._exit(0)
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        return loads(line)


def attempt(text: str, name: str, space: dict[str, Any]) -> str:
    """Execute ``text``; how it failed, in a line (empty: it did not)."""
    try:
        exec(compile(text, name, "exec", dont_inherit=True), space)  # noqa: S102 - what the sandbox is for
    except BaseException as error:  # noqa: BLE001 - SystemExit too
        said = ""
        with contextlib.suppress(BaseException):
            said = str(error)[:LONGEST_ERROR]
        return f"{type(error).__name__}: {said}" if said else f"{type(error).__name__}"
    return ""


def load(program: dict[str, str]) -> tuple[dict[str, Any], str, str]:
    """A fresh module in which setup and code were executed; which of both failed, and how (empty: none)."""
    module = types.ModuleType("reply")  # not __main__: the demonstration at the end of a script is not run
    module.__dict__["__builtins__"] = dict(globals()["__builtins__"])
    sys.modules["reply"] = module
    for part in ("setup", "code"):
        if error := attempt(program[part], part, module.__dict__):
            return module.__dict__, part, error
    return module.__dict__, "", ""


def main(cpu_s: int, memory: int, file: int, readable: list[str]) -> None:
    """Every test gets a module of its own, so that none sees what another one left."""
    LIBC.prctl(1, signal.SIGKILL, 0, 0, 0)  # when the parent dies
    channel = Channel()
    limit(cpu_s, memory, file)
    if readable:
        confine(readable)
    if not forbid({**_FORBIDDEN, **(_FILES if readable else {})}):
        resource.setrlimit(resource.RLIMIT_NPROC, (64, 64))
    channel.say({"ready": True})
    program = channel.hear()
    token = program["token"]
    while True:
        space, failed, error = load(program)
        channel.say({"token": token, "failed": failed, "error": error})
        if failed:
            return
        task = channel.hear()
        token = task["token"]
        channel.say({"token": token, "error": attempt(task["test"], "test", space)})


if __name__ == "__main__":
    given, sys.argv[:] = sys.argv[1:], [""]
    main(int(given[0]), int(given[1]), int(given[2]), given[3:])
