"""A child process that serves one arm: requests in and answers out as JSON lines on two pipes.

``python -m kvquant_eval.worker IN OUT LIFE``, three file descriptors. Standard output and error belong to the engine's
log. Requests are ``{"op": "prepare" | "open" | "run" | "facts" | "close", ...}``; an answer is ``{"ok": ...}``,
``{"bad_input": line}`` for what the user must correct, or ``{"error": line}``. An empty line before it is a sign of
life. LIFE is never written to: when it closes, the parent is gone, and this process takes its whole group (engine
children too) with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

from kvquant_eval.core.codec import DataError, from_data, to_data
from kvquant_eval.core.engine import Engine, EngineSpec
from kvquant_eval.core.records import Block, GoldenTurn, ModelSpec
from kvquant_eval.core.treatment import KVTreatment

BEAT_S = 1.0


def main(argv: list[str]) -> int:
    """Serve until ``close`` or the end of input."""
    source, sink, life = (int(argument) for argument in argv)
    guard = threading.Thread(target=_die_with_parent, args=(life,), daemon=True)
    guard.start()
    with contextlib.suppress(OSError):  # where memory runs out, the system ends an engine rather than the gate
        Path("/proc/self/oom_score_adj").write_text("500", encoding="ascii")
    with (
        contextlib.suppress(BrokenPipeError),
        os.fdopen(source, encoding="utf-8") as requests,
        os.fdopen(sink, "w", encoding="utf-8", errors="replace") as answers,
    ):
        for answer in _serve(requests, _Beat(answers)):
            answers.write(json.dumps(answer, ensure_ascii=False) + "\n")  # a lone surrogate ends here, as a ?
            answers.flush()
    guard.join()  # a dead parent closes all three: leaving first would leave the engine's own children behind
    return 0


class _Beat:
    """Tells the parent, at most once a second, that the engine makes headway."""

    def __init__(self, answers: TextIO) -> None:
        self.answers, self.last = answers, 0.0

    def __call__(self) -> None:
        if time.monotonic() - self.last >= BEAT_S:
            self.last = time.monotonic()
            self.answers.write("\n")
            self.answers.flush()


def _serve(requests: TextIO, beat: Callable[[], None]) -> Iterator[dict[str, Any]]:
    engine: Engine | None = None
    for line in requests:
        request = json.loads(line)
        operation = request.pop("op")
        try:
            if operation == "close":
                if engine is not None:
                    engine.close()
                yield {"ok": None}
                return
            if operation == "prepare":
                yield {"ok": _prepare(**request)}
            elif operation == "open":
                engine = _load(request["engine"])(from_data(EngineSpec, request["spec"], "spec"))
                yield {"ok": None}
            elif engine is None:
                yield {"error": f"{operation}: no engine is open"}
            else:
                yield {"ok": _ask(engine, operation, request, beat)}
        except DataError as error:
            yield {"bad_input": str(error)}
        except Exception as error:  # noqa: BLE001 - whatever an engine raises becomes an answer; the log has the traceback
            traceback.print_exc()
            yield {"error": f"{type(error).__name__}: {str(error).strip()[:500]}"}


def _ask(engine: Engine, operation: str, request: dict[str, Any], beat: Callable[[], None]) -> Any:
    if operation == "treat":
        return engine.treat(from_data(KVTreatment, request["treatment"], "treatment"))
    if operation == "run":
        return to_data(engine.run(from_data(Block, request["block"], "block"), beat))
    return to_data(engine.facts())


def _prepare(
    preparer: str, model: Any, turns: list[Any], args: dict[str, Any], cache: str, treatments: list[Any]
) -> Any:
    spec = from_data(ModelSpec, model, "model")
    golden = [from_data(GoldenTurn, turn, "golden") for turn in turns]
    wanted = [from_data(KVTreatment, treatment, "kv") for treatment in treatments]
    return to_data(_load(preparer)(spec, golden, args, Path(cache), wanted))


def _load(path: str) -> Any:
    """``package.module:name``."""
    module, name = path.split(":")
    return getattr(import_module(module), name)


def _die_with_parent(life: int) -> None:
    os.read(life, 1)
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
