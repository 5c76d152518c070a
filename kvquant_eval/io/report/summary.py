"""``summary.md``: the decision on one page that may leave the house. Replies stand in it as hashes, never as texts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from kvquant_eval.core.judge import Judgement
from kvquant_eval.core.records import Measure, Replay
from kvquant_eval.core.text import writable
from kvquant_eval.io.report import markdown
from kvquant_eval.io.report.blocks import Block, Facts, Items, Report, Section, Table, Verdicts, clean
from kvquant_eval.io.report.names import (
    NONE,
    baseline_name,
    candidate_mark,
    class_name,
    identity,
    measured,
    number,
    why,
)

FILE = "summary.md"
MOST_REASONS = 20
MOST_FLAGS = 20
HASH_CHARS = 12
POST_HOC = {False: "the policy is not the one hashed before the run", True: "the replies were scored again after it"}
"""Why, by whether it was rescored."""

Data = Mapping[str, Any]


def render(document: Data, judgement: Judgement) -> str:
    """The page. ``document`` is ``core.document.document``'s, with id and time."""
    return markdown.render(clean(build(document, judgement)))


def build(document: Data, judgement: Judgement) -> Report:
    """The page before it is made safe and escaped."""
    model = document["model"]
    names = [identity(model, each["kv"]) + candidate_mark(each) for each in document["candidates"]]
    named = list(zip(names, document["candidates"], strict=True))
    rows = tuple((name, candidate["decision"], why(candidate["reasons"])) for name, candidate in named)
    sections = [Section(2, "Decision", (Verdicts(rows), Facts(_facts(document))))]
    for name, candidate in named:
        sections += _candidate(name, document, candidate, judgement)
    heading = f"KV cache: {document['decision']}"
    return Report(title=f"{heading}: {'; '.join(names)}", heading=heading, sections=tuple(sections))


def _facts(document: Data) -> tuple[tuple[str, str], ...]:
    golden, policy = document["golden"], document["policy"]
    facts = {
        "exit status": str(document["exit_code"]),
        "run": document["run_id"],
        "decided": document["created_at"],
        "controls": ", ".join(f"{name} {control['decision']}" for name, control in document["controls"].items()),
        "golden set": f"{golden['name']} {golden['version']}, {golden['n_turns']} turns, sha256 {golden['sha256']}",
        "policy": f"{policy['name']}, sha256 {policy['sha256']}",
    }
    if document["post_hoc"]:
        facts["post hoc"] = f"{POST_HOC[bool(document.get('rescored'))]}; this decision moves no alias"
    return tuple(facts.items())


def _candidate(name: str, document: Data, candidate: Data, judgement: Judgement) -> list[Section]:
    baseline = baseline_name(document["model"]["kv"][candidate["baseline"]])
    reasons = candidate["reasons"][:MOST_REASONS]
    if len(candidate["reasons"]) > MOST_REASONS:
        reasons = [*reasons, f"and {len(candidate['reasons']) - MOST_REASONS} reasons more, in decision.json"]
    title = f"{candidate['decision']}: {name}{', self-test' if candidate['self_test'] else ''}"
    blocks: list[Block] = [Items(tuple(reasons)), decision_table(candidate["classes"], baseline)]
    return [Section(2, title, tuple(blocks)), _flags(candidate, baseline, judgement)]


def decision_table(classes: Data, baseline: str) -> Table:
    """A row a class and score. Scores, drops and bounds are in points of 100, a drop > 0 is worse; ``drops/gains``
    count turns that move beyond the flag's threshold, also those without headroom.
    """
    columns = ("class", "verdict", "score", "turns", baseline, "candidate", "drop", "95% bounds", "drops/gains")
    rows = []
    for workload, judged in classes.items():
        first = (class_name(workload, judged), judged["verdict"])
        rows += [(*first, *_score(name, score)) for name, score in judged["scores"].items()]
        if not judged["scores"]:
            rows.append((*first, *[NONE] * (len(columns) - 2)))
    return Table(columns, "lvl" + "r" * 6, tuple(rows))


def _score(name: str, score: Data) -> tuple[str, ...]:
    return (
        *measured(name, score),
        f"{score['drops_over']}/{score['gains_over']}",
    )


def _flags(candidate: Data, baseline: str, judgement: Judgement) -> Section:
    """The flagged turns by id, the worst first, each with the score that puts it there; first epoch's replies."""
    flags = candidate["flagged_turns"]
    worst = list({flag["turn_id"]: flag for flag in reversed(flags)}.values())[::-1]
    said = f"{len(worst)} turns drop over the threshold in {len(flags)} scores"
    if len(worst) > MOST_FLAGS:
        said += f"; the worst {MOST_FLAGS} are shown, decision.json has them all"
    sides = [_replies(judgement, candidate[key]) for key in ("baseline", "name")]
    replied = (f"{baseline} reply, sha256", "candidate reply, sha256")
    columns = ("turn", "class", "turn index", "score", "drop", baseline, "candidate", "confirmed", *replied)
    rows = [
        (
            *(flag["turn_id"], flag["class"], str(flag["turn_index"]), flag["score"], number(flag["drop"], "+.2f")),
            *(number(flag[key], ".1f") for key in ("baseline", "candidate")),
            {True: "yes", False: "no"}.get(flag["confirmed"], NONE),
            *(reply_mark(replies.get(flag["turn_id"])) for replies in sides),
        )
        for flag in worst[:MOST_FLAGS]
    ]
    blocks: list[Block] = [Items((said,))]
    if rows:
        blocks.append(Table(columns, "llrlrrrlll", tuple(rows)))
    return Section(3, f"Flagged turns of {candidate['name']}", tuple(blocks))


def reply_mark(replay: Replay | None) -> str:
    """Outcome, length and start of the SHA-256 of a reply: enough to see whether two are the same."""
    if replay is None:
        return NONE
    digest = hashlib.sha256(writable(replay.text).encode()).hexdigest()[:HASH_CHARS]
    return f"{replay.outcome}, {len(replay.text):,} characters, {digest}"


def _replies(judgement: Judgement, arm: str) -> Mapping[str, Replay]:
    replays = judgement.arms[arm].replays
    return {each.turn_id: each for each in replays if each.measure is Measure.GENERATED and each.epoch == 0}
