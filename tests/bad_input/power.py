"""Gates that could hardly promote anything: refused before an engine starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.bad_input.case import Case
from tests.fakes.cli import arguments

RULE = "gate: at least an even chance to promote a candidate that loses nothing, got"
NEEDED = (
    "at least 149 are needed before a break in an unseen one can be ruled out to 2 points, or set gate.largest_break"
)
REMEDY = "add conversations, lower gate.largest_break, or set gate.allow_underpowered=true"


def _case(what: str, *overrides: str, line: str, verb: str = "gate") -> Case:
    def make(folder: Path) -> Sequence[str]:
        return [verb, *arguments(folder, *overrides)[1:]]

    return Case(what=what, make=make, line=line)


CASES = (
    _case(
        "too few conversations to rule out a break in others",
        "gate.largest_break=100",
        line=f"{RULE} 0% under default (faq: 10 conversations; {NEEDED}); {REMEDY}",
    ),
    _case(
        "too few turns",
        "gate.min_turns=200",
        line=f"{RULE} 0% under default (golden set: at least 200 turns compared, got 40); {REMEDY}",
    ),
    _case(
        "a rule that noise breaks",
        "gate=zero_flags",
        line=(
            f"{RULE} 17% under zero_flags (math_chain: a candidate that loses nothing has no flag with a chance of "
            "17%, and more turns make it less); raise flag_over, or set gate.allow_underpowered=true"
        ),
    ),
    _case(
        "a search whose confirming conversations are too few",
        "gate.largest_break=100",
        verb="search",
        line=f"{RULE} 0% under default (faq: 5 conversations; {NEEDED}); {REMEDY}",
    ),
    _case(
        "a turn that may never regress and is none",
        "gate.critical_turns=[math_chain-00/00]",
        line="gate.critical_turns: ids of golden turns, got 'math_chain-00/00'; did you mean 'math_chain-00/0'?",
    ),
    _case("a plan for a run", "resume=RUN_DIR", verb="plan", line="resume: auto for plan, got RUN_DIR; leave it out"),
)
