"""Scorers by name. A configuration may come from anywhere: it can name a scorer, and nothing else that would run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from importlib import import_module
from inspect import signature
from typing import Any, cast

from kvquant_eval.cli.plain import mapping, missing, one_line, shown
from kvquant_eval.core.codec import DataError
from kvquant_eval.core.records import Measure
from kvquant_eval.core.score import Scorer

TARGET = "_target_"


def build_scorers(workloads: Mapping[str, Any], known: Callable[[], Iterable[str]]) -> dict[str, dict[str, Scorer]]:
    """The scorers of all classes, by class and score. Raises DataError as ``build_scorer``, and for a score without."""
    return {
        name: {
            score: _of_rule(rule, f"workloads.{name}.scores.{score}", known)
            for score, rule in workload["scores"].items()
        }
        for name, workload in workloads.items()
    }


def _of_rule(rule: Mapping[str, Any], where: str, known: Callable[[], Iterable[str]]) -> Scorer:
    if "scorer" not in rule:
        raise missing(f"{where}.scorer")
    return build_scorer(rule["scorer"], f"{where}.scorer", known)


def build_scorer(node: Any, where: str, known: Callable[[], Iterable[str]]) -> Scorer:
    """The scorer that ``node`` names in ``_target_``, constructed with the other keys as plain keyword arguments.

    ``known`` gives targets to suggest. Raises DataError for a name that is no scorer class, and for a class that does
    not take the arguments.
    """
    arguments = dict(mapping(node, where))
    target = arguments.pop(TARGET, None)
    if target is None:
        raise missing(f"{where}.{TARGET}")
    kind = _scorer_class(target, f"{where}.{TARGET}", known)
    try:
        signature(kind).bind(**arguments)  # says what is wrong without naming __init__
        scorer = kind(**arguments)
    except Exception as error:  # noqa: BLE001 - whatever a user's own scorer raises
        raise _refused(where, f"arguments that {kind.__name__} takes", arguments, error) from None
    if not isinstance(scorer.measure, Measure):
        raise DataError(f"{where}.measure: forced or generated, got {shown(scorer.measure)}; leave it to the scorer")
    return scorer


def _scorer_class(target: Any, where: str, known: Callable[[], Iterable[str]]) -> type[Scorer]:
    """The class at ``module.Class``. Modules of the standard library and private ones are not even imported: some act
    as soon as they are.
    """
    parts = target.split(".") if isinstance(target, str) else []
    public = all(part.isidentifier() and not part.startswith("_") for part in parts)
    if len(parts) < 2 or not public or parts[0] in sys.stdlib_module_names:
        raise _no_scorer(where, target, _near(target, known))
    try:
        found = getattr(import_module(".".join(parts[:-1])), parts[-1], None)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a user's own module raises
        reason = one_line(f"{type(error).__name__}: {error}")
        raise _no_scorer(where, target, f"{_near(target, known)} ({reason})") from None
    if not _is_scorer(found):
        raise _no_scorer(where, target, _near(target, known))
    return cast("type[Scorer]", found)


def _is_scorer(found: Any) -> bool:
    """A class with a ``measure`` and a ``__call__`` of its own or of its bases (every class can itself be called)."""
    return (
        isinstance(found, type)
        and isinstance(getattr(found, "measure", None), Measure | property)
        and any("__call__" in vars(base) for base in found.__mro__)
    )


def _near(target: Any, known: Callable[[], Iterable[str]]) -> str:
    near = get_close_matches(str(target), list(known()), 1)
    return f"did you mean {near[0]!r}?" if near else "those of the project are in conf/scorer"


def _no_scorer(where: str, target: Any, remedy: str) -> DataError:
    return DataError(f"{where}: a scorer class as module.Class, got {shown(target)}; {remedy}")


def _refused(where: str, rule: str, arguments: Mapping[str, Any], error: Exception) -> DataError:
    return DataError(f"{where}: {rule}, got {shown(dict(arguments))} ({one_line(str(error))}); correct them")
