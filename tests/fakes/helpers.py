"""Small engines that show one thing about the process they run in."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

from kvquant_eval.core.engine import EngineSpec
from kvquant_eval.core.records import Block


class _Base:
    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec

    def run(self, block: Block, beat: Any) -> Any:
        time.sleep(600)

    def close(self) -> None: ...


class Chatty(_Base):
    """Prints to both streams; an engine's prints must not be taken for answers."""

    def facts(self) -> Any:
        sys.stdout.write("printed to stdout\n")
        sys.stdout.flush()
        sys.stderr.write("printed to stderr\n")
        return {"said": "hello"}


class Environment(_Base):
    """Says its environment."""

    def facts(self) -> Any:
        return dict(os.environ)


class Parent(_Base):
    """Has a process of its own, as engines do."""

    def __init__(self, spec: EngineSpec) -> None:
        super().__init__(spec)
        self.process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])

    def facts(self) -> Any:
        return {"pid": self.process.pid}


class Forker(_Base):
    """Forks a process that lives on, and dies."""

    def facts(self) -> Any:
        if os.fork() == 0:
            time.sleep(600)
        os._exit(1)
