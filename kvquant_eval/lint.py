"""A golden set looked through before it is pinned: every check, in order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kvquant_eval.core.forecast import best_case
from kvquant_eval.core.lint.duplicates import check_duplicates
from kvquant_eval.core.lint.fault import Fault, Placed, Severity, warning
from kvquant_eval.core.lint.prefix import Reuse, describe, find_poison, first_difference, reordered, reuse
from kvquant_eval.core.lint.rendering import check_references, check_rendering, reference_questions
from kvquant_eval.core.lint.secrets import check_secrets
from kvquant_eval.core.lint.shape import ClassShape, check_shape, shapes
from kvquant_eval.core.lint.tools import check_tools
from kvquant_eval.core.records import Decision, RenderedTurn
from kvquant_eval.core.results import CandidateResult
from kvquant_eval.core.score import Scorer, who_is_asked
from kvquant_eval.core.scorers.code import KIND as PYTHON
from kvquant_eval.core.scorers.judge import KIND as JUDGE
from kvquant_eval.core.settings import Settings
from kvquant_eval.core.targets import scorable
from kvquant_eval.evidence import EXECUTION_REMEDY, executing, gather, no_execution, oracles
from kvquant_eval.io.answers import AnswerFile
from kvquant_eval.io.golden.linting import read_all
from kvquant_eval.replay import inspect

Scorers = Mapping[str, Mapping[str, Scorer]]
CACHE_BLOCK = 16
"""Tokens a block of vLLM's cache, where ``engine.args.block_size`` does not say."""
WORTHWHILE = 0.01
"""Share of the prompt tokens from which another order is suggested."""


@dataclass(frozen=True, kw_only=True)
class LintReport:
    """Faults in the order of the set, errors first; what the prefix cache gives as ordered and ``best_ordered``; what
    the policy makes of a candidate that loses nothing (None: the policy's classes are not all there).
    """

    faults: tuple[Fault, ...]
    classes: Mapping[str, ClassShape]
    context: int
    as_ordered: Reuse
    best_ordered: Reuse
    best: CandidateResult | None


def lint(settings: Settings, folder: Path, log: Path) -> LintReport:
    """Look through the set in ``folder`` with the model and scorers of the settings.

    Raises DataError for a folder without turns and a model that cannot be used, EngineDied when its process ends.
    """
    turns, faults = read_all(folder)
    scorers, unasked = _askable(settings, folder)
    faults += unasked
    inspected = inspect(settings, [at.turn for at in turns], log)
    rendered = {turn.rendered.turn_id: turn.rendered for turn in inspected.turns if turn.rendered}
    faults += check_rendering(turns, inspected)
    faults += check_tools(turns)
    asked = reference_questions(turns, inspected, scorers)
    answers = gather(asked, oracles(replace(settings, scorers=scorers)), AnswerFile(log.with_name("answers.jsonl")))
    faults += check_references(turns, inspected, scorers, answers)
    faults += check_duplicates(turns)
    faults += check_secrets(turns)
    as_ordered = _reuse(settings, rendered.values())
    faults += _poison(settings, turns, rendered, as_ordered, log)
    classes = shapes(turns, {name: len(turn.prompt_ids) for name, turn in rendered.items()})
    faults += check_shape(classes, str(folder))
    known = [turn for turn in rendered.values() if turn.workload in settings.policy.scores]
    points = scorable(settings, known, [at.turn for at in turns])
    best = best_case(settings, known, points) if known else None
    if best is not None and best.decision is not Decision.PROMOTE:
        text = f"a set that can promote, got {best.decision} for a candidate that loses nothing: {best.reasons[0]}"
        faults.append(Fault(severity=Severity.WARNING, check="policy", place=str(folder), text=text))
    other = [rendered[turn.turn_id] for turn in reordered([at.turn for at in turns]) if turn.turn_id in rendered]
    return LintReport(
        faults=tuple(sorted(faults, key=lambda fault: fault.severity is Severity.WARNING)),
        classes=classes,
        context=inspected.context,
        as_ordered=as_ordered,
        best_ordered=_reuse(settings, other),
        best=best,
    )


def _askable(settings: Settings, folder: Path) -> tuple[Scorers, list[Fault]]:
    """The scorers that can say what a reference is worth: no judges, and none that execute code where it may not be
    executed here, which is said and is no error.
    """
    weakness = no_execution(settings)
    unasked = (JUDGE, PYTHON) if weakness else (JUDGE,)
    scorers = {
        workload: {name: scorer for name, scorer in scores.items() if who_is_asked(scorer) not in unasked}
        for workload, scores in settings.scorers.items()
    }
    if not weakness:
        return scorers, []
    names = ", ".join(f"{workload}.{score}" for workload, score in executing(settings))
    text = f"strong isolation to try {names}, got none ({weakness}); {EXECUTION_REMEDY}"
    return scorers, [Fault(severity=Severity.WARNING, check="execution", place=str(folder), text=text)]


def _poison(
    settings: Settings, turns: Sequence[Placed], rendered: Mapping[str, RenderedTurn], as_is: Reuse, log: Path
) -> list[Fault]:
    """What each poisoned prefix costs: the reuse of the set with it healed, less that of the set as it is."""
    found = [poison for poison in find_poison(turns) if all(at.turn.turn_id in rendered for at in poison.turns)]
    if not found:
        return []
    healed = inspect(settings, [turn for poison in found for turn in poison.healed], log)
    faults, position = [], 0
    for poison in found:
        seen = healed.turns[position : position + len(poison.healed)]
        position += len(poison.healed)
        better = {turn.rendered.turn_id: turn.rendered for turn in seen if turn.rendered}
        lost = _reuse(settings, {**rendered, **better}.values()).cached_tokens - as_is.cached_tokens
        token = first_difference([rendered[at.turn.turn_id] for at in poison.turns])
        if lost > 0:
            text = describe(poison, token, lost, as_is.prompt_tokens)
            faults += [warning("prefix-poison", at, text) for at in poison.turns]
    return faults


def _reuse(settings: Settings, rendered: Iterable[RenderedTurn]) -> Reuse:
    size = int(settings.engine.args.get("block_size") or CACHE_BLOCK)
    return reuse(list(rendered), settings.block_requests, size)
