"""What stands behind the folder in ``regate`` and ``rescore``: the run's own configuration, in part said otherwise."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from kvquant_eval.cli import config
from kvquant_eval.cli.plain import mapping, one_line, shown, unknown_key
from kvquant_eval.core.codec import DataError, nearest

_log = logging.getLogger(__name__)

SECTIONS = ("gate", "workloads", "scorer")
"""Of the configuration: what decides, and what scores. All the rest needs new replays, or decides nothing."""
HOW = ("placebo", "confirm_epochs", "allow_underpowered", "repair", "max_minutes")
"""Keys of ``gate`` that say how a run is made. It is made."""
ABOUT = ("hardest", "critical_turns", "require", "accept_differences", "modes", "early_stop")
"""Keys of ``gate`` about this run's classes, turns, candidates and arms. A policy by name leaves them as they were."""
LIMIT = re.compile(r"gate(\.[^.]+)+|workloads\.[^.]+\.(tier|scores\.[^.]+\.(role|margin|flag_over))")
SCORING = re.compile(r"scorer\.(code|judge)\..+|workloads\.[^.]+\.scores(\..+)?|workload")
PLACED = re.compile(r"scorer@workloads\.[^.]+\.scores\.[^.]+\.scorer")
DECIDES_NOTHING = ("tracking", "report", "calibrate", "search", "resume", "runs_dir", "cache_dir")


def restated(
    stored: Mapping[str, Any], overrides: Sequence[str], config_dir: str | None, scoring: bool
) -> dict[str, Any]:
    """The configuration of a run, which has been built once, with ``overrides`` of its policy; with ``scoring`` of its
    scores and scorers too.

    ``gate=NAME`` brings that file's rule and limits; what is about the run stays (``ABOUT``, ``HOW``) unless it is
    named. ``workload=[...]`` brings the files of the run's classes as they are now. Raises DataError for anything else,
    as a stored run cannot answer it.
    """
    asked = [(text, *config.parsed(text)) for text in overrides]
    for _, key, value, is_left_out in asked:
        _check(key, value, is_left_out, stored, scoring)
    named = {key: value for _, key, value, _ in asked}
    over = {part: stored[part] for part in SECTIONS if part in stored}
    if "workload" in named:
        over["workloads"] = {}
    made = config.compose([_opened(text, key, left_out) for text, key, _, left_out in asked], config_dir, over)
    if "gate" in named:
        made["gate"] = _by_name(stored["gate"], made["gate"], named)
    if (classes := sorted(made["workloads"])) != sorted(stored["workloads"]):
        rule = f"the run's own classes ({', '.join(sorted(stored['workloads']))})"
        raise DataError(f"workload: {rule}, got {shown(classes)}; others need new replays: gate with them")
    return {**stored, **_same_judge(stored, made)}


def _check(key: str, value: Any, is_left_out: bool, stored: Mapping[str, Any], scoring: bool) -> None:
    """Raise DataError for what a stored run cannot answer."""
    where, (top, *rest) = one_line(key, 120), re.split(r"[.@]", key)
    rule = "a key of the policy" if not scoring else "a key of the policy or of a score"
    if top not in config.KEYS and top != "workload":
        raise unknown_key(where, top, (*config.KEYS, "workload"))
    if is_left_out and not (scoring and re.fullmatch(r"workloads\.[^.]+\.scores\.[^.]+", key)):
        raise DataError(f"{where}: a value, got ~, which leaves it out; set it")
    if top in DECIDES_NOTHING:
        raise DataError(f"{where}: {rule}, got one that decides nothing; leave it out")
    if top == "gate" and rest[:1] and rest[0] in HOW:
        raise DataError(f"{where}: {rule}, got one of how a run is made; leave it out, or gate with it")
    if key == "gate" and not isinstance(value, str):
        raise DataError(f"gate: the name of one of the files in conf/gate, got {shown(value)}; or set gate.KEY=...")
    if top == "workloads" and rest:
        _check_place(where, rest, stored["workloads"], scoring)
    if key == "gate" or LIMIT.fullmatch(key) or (scoring and (SCORING.fullmatch(key) or PLACED.fullmatch(key))):
        return
    if SCORING.fullmatch(key) or PLACED.fullmatch(key) or top == "scorer":
        raise DataError(f"{where}: {rule}, got one of what scores; {'correct it' if scoring else 'use rescore'}")
    raise DataError(f"{where}: {rule}, got one that needs new replays; gate with it")


def _check_place(where: str, rest: Sequence[str], workloads: Mapping[str, Any], scoring: bool) -> None:
    """Raise DataError for a class that the run has not; without ``scoring`` for a score that it has not either."""
    workload, *more = rest
    if workload not in workloads:
        raise unknown_key(where, workload, workloads)
    if not scoring and len(more) > 1 and more[1] not in (scores := mapping(workloads[workload]["scores"], where)):
        raise DataError(f"{where}: a score of the run, got {shown(more[1])}; {nearest(more[1], sorted(scores))}")


def _opened(text: str, key: str, is_left_out: bool) -> str:
    """The argument for Hydra, over data without a defaults list and perhaps without the key; what is built of it is
    checked then.
    """
    bare = text.lstrip("+")
    if is_left_out:
        return bare
    return f"+{bare}" if key in ("gate", "workload") or "@" in key else f"++{bare}"


def _by_name(own: Mapping[str, Any], made: dict[str, Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """The limits that ``gate=NAME`` made, and what is about the run as it was; where the file has something else it is
    said.
    """
    said = {key.split(".")[1] for key in named if key.startswith("gate.")}
    for key in sorted({*ABOUT, *HOW} - said):
        if key in own and key in ABOUT and made.get(key) != own[key]:
            line = "gate.%s stays %s, as the run has it, where gate=%s has %s; set it to change that"
            _log.info(line, key, shown(own[key]), named["gate"], shown(made.get(key)))
        if key in own:
            made[key] = own[key]
        else:
            made.pop(key, None)
    return made


def _same_judge(stored: Mapping[str, Any], made: dict[str, Any]) -> dict[str, Any]:
    """What was made, with scorers that had the judge's model from ``scorer.judge.model`` having it from there again."""
    then, now = (each.get("scorer", {}).get("judge", {}).get("model") for each in (stored, made))
    if then and then != now:
        for workload, own in made["workloads"].items():
            for name, rule in mapping(own["scores"], f"workloads.{workload}.scores").items():
                scorer = mapping(rule, f"workloads.{workload}.scores.{name}").get("scorer")
                if isinstance(scorer, dict) and scorer.get("model") == then:
                    scorer["model"] = now
    return made
