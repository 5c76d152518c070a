"""Score a stored run again, with today's scorers: what they ask is asked anew, and no engine starts."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from kvquant_eval.core.codec import digest
from kvquant_eval.core.judge import asked, asked_once
from kvquant_eval.core.records import Json
from kvquant_eval.core.score import is_error
from kvquant_eval.core.settings import Settings
from kvquant_eval.decision import DECISION, Decided, Stored, decide, load_stored
from kvquant_eval.evidence import executable, gather, oracles, refuse_unready
from kvquant_eval.io.answers import AnswerFile
from kvquant_eval.io.decisions import read_decision
from kvquant_eval.io.runfolder import TEMPORARY, RunFolder
from kvquant_eval.pipeline import GateRun, as_run, by_policy, name_left_out, written

SCORING = ("workloads", "scorer")
"""What of a configuration says how replies are scored."""


def rescore(run: RunFolder, settings: Settings) -> tuple[GateRun, bool]:
    """Decide a stored run from new scores; and whether they, the answers and the decision are the run's own.

    Where they are nothing is written. Else the decision is post hoc, whatever the policy, and stands beside the run's
    own with the answers that it was made from. Raises DataError as a gate does before its first engine, and as
    ``decision.load_stored``.
    """
    refuse_unready(settings)
    settings = executable(settings)
    name_left_out(settings)
    with run.locked():
        stored = load_stored(run, settings)
        scoring = {part: settings.config.get(part) for part in SCORING}
        asking = AnswerFile(run.post_hoc(f"asked-{digest(scoring)[:8]}.jsonl{TEMPORARY}").path)
        decided, answers = _decided(stored, asking)
        same = decided.is_in(run.path) and _is_own(run, scoring, answers)
        done = as_run(decided, run, dict(read_decision(run.path / DECISION))) if same else None
        if done is None:
            decided = replace(decided, document={**decided.document, "post_hoc": True, "rescored": True})
            name = f"{by_policy(decided.settings.policy)}-rescored-{digest([scoring, answers])[:8]}"
            done = written(decided, run, run.post_hoc(name))
            asking.settle(done.folder.answers.path)
        if not any(map(is_error, answers.values())):  # else the same command asks for what is missing
            asking.path.unlink(missing_ok=True)
        with suppress(OSError):  # there is something in it
            asking.path.parent.rmdir()
        return done, same


def _decided(stored: Stored, asking: AnswerFile) -> tuple[Decided, dict[str, Json]]:
    """The decision from answers that are asked for now, and the answers."""
    settings, prepared, turns = stored.settings, stored.plan.prepared, stored.golden.turns
    asking.path.parent.mkdir(exist_ok=True)
    whom = oracles(settings)
    answers = gather(asked(settings, prepared, turns, stored.records), whom, asking)
    fresh = stored.second_stage(answers)
    answers = gather(asked_once(settings, prepared, turns, fresh), whom, asking)
    return decide(stored.run, settings, stored.golden, prepared, stored.records, fresh, answers), answers


def _is_own(run: RunFolder, scoring: Mapping[str, Any], answers: Mapping[str, Json]) -> bool:
    """Whether the run was scored in the same way, and had the same answers."""
    config, then = run.config(), run.answers.read()
    return scoring == {part: config.get(part) for part in SCORING} and all(
        then.get(key) == answer for key, answer in answers.items()
    )
