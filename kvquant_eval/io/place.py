"""Where engines run one after the other: a slot with its environment, and the engine that is kept there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from os.path import relpath
from pathlib import Path
from typing import Self

from kvquant_eval.core.codec import to_data
from kvquant_eval.core.engine import EngineSpec
from kvquant_eval.core.treatment import Realisation
from kvquant_eval.io.child import Child, EngineDied


class Place:
    """One slot. Use as a context manager: leaving it ends the engine that is there.

    An engine with a reference treatment is a BF16 engine with hooks, so it is kept, and takes the next such treatment
    without being started again. Any other one ends with its arm: engines do not free their memory.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        self.env, self.stopped = dict(env), False
        self._child: Child | None = None
        self._spec: EngineSpec | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def engine(self, name: str, spec: EngineSpec, log: Path, timeout_s: float) -> Iterator[Child]:
        """The process of an engine (``module:Class``) as ``spec`` says, at work until the context is left. Raises
        EngineDied; an engine that failed is never used again.
        """
        try:
            yield self._take(name, spec, log, timeout_s)
        except BaseException:
            self.close()
            raise
        if spec.treatment.realisation is not Realisation.REFERENCE:
            self.close()

    def stop(self) -> None:
        """End the engine that is at work, from another thread, and let none begin; a ``call`` then raises
        EngineDied.
        """
        self.stopped = True
        if (child := self._child) is not None:
            child.kill()

    def close(self) -> None:
        """End the engine that is there, if one is."""
        child, self._child, self._spec = self._child, None, None
        if child is not None:
            child.__exit__(None, None, None)

    def _take(self, name: str, spec: EngineSpec, log: Path, timeout_s: float) -> Child:
        kept = self._child if self._changed(spec, log) else None
        if kept is None:
            self.close()
            self._child = kept = Child(log, timeout_s, self.env).__enter__()
            if self.stopped:  # it began while the others were being ended
                kept.kill()
            kept.call("open", engine=name, spec=to_data(spec))
        self._spec = spec
        return kept

    def _changed(self, spec: EngineSpec, log: Path) -> bool:
        """Whether the engine that is there has become the one that is wanted. One that died while it was kept has not:
        that is no fault of the arm which comes next. ``log`` then says in whose log the engine goes on.
        """
        if self._child is None or self._spec is None or not _exchangeable(self._spec, spec):
            return False
        try:
            self._child.call("treat", treatment=to_data(spec.treatment))
        except EngineDied:
            return False
        if self._child.log != log:
            with log.open("a", encoding="utf-8") as file:
                file.write(f"This arm took over an engine, whose log is {relpath(self._child.log, log.parent)}\n")
        return True


def _exchangeable(now: EngineSpec, wanted: EngineSpec) -> bool:
    """Whether an engine of the one can become one of the other."""
    hooked = {now.treatment.realisation, wanted.treatment.realisation} == {Realisation.REFERENCE}
    return hooked and replace(now, treatment=wanted.treatment) == wanted
