"""Two decisions side by side: what changed in what was gated, in verdicts, scores and flags. A pure function of two
``decision.json``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvquant_eval.core.records import Json

Data = Mapping[str, Any]
IDENTITY = ("model", "engine", "golden", "policy", "sampling", "replay", "baseline")
"""Parts of a document that say what was gated, with what and how."""
RULES = ("role", "margin", "flag_over")
TREATED = ("requested", "realisation", "layers_skipped")
"""What makes a candidate the same one under another name."""


@dataclass(frozen=True)
class Change:
    """A value that differs; None where one side has none."""

    key: str
    a: Json
    b: Json


@dataclass(frozen=True)
class ScoreChange:
    """One score of one class on both sides, as in ``decision.json`` (points; a drop > 0 is worse)."""

    workload: str
    score: str
    a: Data
    b: Data

    @property
    def change(self) -> float:
        """The mean drop of B minus that of A, in points: > 0 is worse in B."""
        return float(self.b["mean_drop"] - self.a["mean_drop"])

    @property
    def apart(self) -> bool:
        """Whether the bounds of the two mean drops do not even touch. Where they do, the change may be noise."""
        ends = [(side.get("ci_lower"), side["ci_upper"]) for side in (self.a, self.b)]
        (low_a, high_a), (low_b, high_b) = ends
        return (None not in (high_a, low_b) and low_b > high_a) or (None not in (high_b, low_a) and low_a > high_b)

    @property
    def same(self) -> bool:
        """Whether both sides have the same means and bounds."""
        keys = ("n_turns", "n_headroom", "baseline_mean", "candidate_mean", "mean_drop", "ci_lower", "ci_upper")
        return all(self.a.get(key) == self.b.get(key) for key in keys)


@dataclass(frozen=True)
class FlagChange:
    """A flagged turn under one score; drops in points, None where that side does not flag it."""

    turn_id: str
    score: str
    a: float | None
    b: float | None


@dataclass(frozen=True, kw_only=True)
class CandidateDiff:
    """One candidate on both sides. ``verdicts`` are of the classes that both have, changed or not; ``flags`` of the
    scores that both have, the worst first. ``only_a`` and ``only_b`` name classes and scores of one side.
    """

    a: Data
    b: Data
    verdicts: tuple[Change, ...]
    scores: tuple[ScoreChange, ...]
    flags: tuple[FlagChange, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]

    @property
    def gained(self) -> list[FlagChange]:
        return [flag for flag in self.flags if flag.a is None]

    @property
    def lost(self) -> list[FlagChange]:
        return [flag for flag in self.flags if flag.b is None]

    @property
    def same(self) -> bool:
        """Whether decision, verdicts, scores and flags are equal."""
        return (
            self.a["decision"] == self.b["decision"]
            and not (self.only_a or self.only_b)
            and all(verdict.a == verdict.b for verdict in self.verdicts)
            and all(score.same for score in self.scores)
            and all(flag.a == flag.b for flag in self.flags)
        )


@dataclass(frozen=True, kw_only=True)
class Diff:
    """``identity``: what differs in what was gated; ``decisions``: those of the whole and of the controls that differ;
    ``only_a``, ``only_b``: candidates of one side.
    """

    identity: tuple[Change, ...]
    decisions: tuple[Change, ...]
    candidates: tuple[CandidateDiff, ...]
    only_a: tuple[Data, ...]
    only_b: tuple[Data, ...]

    @property
    def same(self) -> bool:
        """Whether what was gated, decided, scored and flagged is equal; how arms ran and what controls scored is not
        looked at.
        """
        changes = (self.identity, self.decisions, self.only_a, self.only_b)
        return not any(changes) and all(each.same for each in self.candidates)

    @property
    def other_turns(self) -> bool:
        """Whether the golden turns are not the same, so that scores are of other questions."""
        return any(change.key in ("golden.sha256", "golden.folds") for change in self.identity)


def diff(a: Data, b: Data) -> Diff:
    """Set two decisions side by side. Candidates are the same by name, else by dtype, realisation and skipped layers
    where just one of each side has these.
    """
    pairs = _pairs(a["candidates"], b["candidates"])
    paired = [id(side) for pair in pairs for side in pair]
    kv = [change for x, y in pairs for change in _changes(f"kv.{x['name']}", x["kv"], y["kv"])]
    parts = [change for part in IDENTITY for change in _changes(part, _part(a, part), _part(b, part))]
    return Diff(
        identity=(*parts, *_changes("workloads", _rules(a), _rules(b), shared=True), *kv),
        decisions=tuple(_changes("", _decisions(a), _decisions(b))),
        candidates=tuple(_candidate(x, y) for x, y in pairs),
        only_a=tuple(each for each in a["candidates"] if id(each) not in paired),
        only_b=tuple(each for each in b["candidates"] if id(each) not in paired),
    )


def _pairs(a: Sequence[Data], b: Sequence[Data]) -> list[tuple[Data, Data]]:
    names = {each["name"]: each for each in b}
    found = {each["name"]: names.pop(each["name"]) for each in a if each["name"] in names}
    left = [each for each in a if each["name"] not in found]
    for each in left:
        like = [other for other in names.values() if _treated(other) == _treated(each)]
        if len(like) == 1 and [_treated(other) for other in left].count(_treated(each)) == 1:
            found[each["name"]] = names.pop(like[0]["name"])
    return [(each, found[each["name"]]) for each in a if each["name"] in found]


def _treated(candidate: Data) -> list[Any]:
    return [candidate["kv"].get(key) for key in TREATED]


def _candidate(a: Data, b: Data) -> CandidateDiff:
    shared = [(name, judged, b["classes"][name]) for name, judged in a["classes"].items() if name in b["classes"]]
    scores = [
        ScoreChange(workload, name, score, of_b["scores"][name])
        for workload, of_a, of_b in shared
        for name, score in of_a["scores"].items()
        if name in of_b["scores"]
    ]
    places = {(each.workload, each.score) for each in scores}
    sides = [{(f["turn_id"], f["score"]): f["drop"] for f in _flags(side, places)} for side in (a, b)]
    flags = [FlagChange(*key, *(side.get(key) for side in sides)) for key in {**sides[0], **sides[1]}]
    return CandidateDiff(
        a=a,
        b=b,
        verdicts=tuple(Change(workload, of_a["verdict"], of_b["verdict"]) for workload, of_a, of_b in shared),
        scores=tuple(scores),
        flags=tuple(sorted(flags, key=lambda flag: (-max(flag.a or 0, flag.b or 0), flag.turn_id, flag.score))),
        only_a=_beyond(a, b),
        only_b=_beyond(b, a),
    )


def _flags(candidate: Data, places: set[tuple[str, str]]) -> list[Data]:
    return [flag for flag in candidate["flagged_turns"] if (flag["class"], flag["score"]) in places]


def _beyond(a: Data, b: Data) -> tuple[str, ...]:
    """The classes of ``a`` that ``b`` lacks, and the scores that it lacks in the others."""
    scores = [
        f"{workload} {score}"
        for workload, judged in a["classes"].items()
        if workload in b["classes"]
        for score in judged["scores"]
        if score not in b["classes"][workload]["scores"]
    ]
    return (*(workload for workload in a["classes"] if workload not in b["classes"]), *scores)


def _part(document: Data, part: str) -> Any:
    """A part of a document that says what was gated; the dtypes of its arms stand with the arms."""
    found = document.get(part, {})
    return {key: value for key, value in found.items() if key != "kv"} if part == "model" else found


def _rules(document: Data) -> Data:
    """Role, margin and flag threshold of every score, and the tier of every class: part of the policy."""
    return {
        workload: {
            "tier": judged.get("tier"),
            "scores": {name: {key: score.get(key) for key in RULES} for name, score in judged["scores"].items()},
        }
        for candidate in document["candidates"]
        for workload, judged in candidate["classes"].items()
    }


def _decisions(document: Data) -> Data:
    controls = {f"control {name}": control["decision"] for name, control in document["controls"].items()}
    return {"decision": document["decision"], "post hoc": document["post_hoc"], **controls}


def _changes(where: str, a: Any, b: Any, shared: bool = False) -> Iterator[Change]:
    """Leaves that differ, by their place; with ``shared`` of those alone that both sides have."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for key in dict.fromkeys((*a, *b)):
            if not shared or (key in a and key in b):
                yield from _changes(f"{where}.{key}" if where else key, a.get(key), b.get(key), shared)
    elif a != b:
        yield Change(where, a, b)
