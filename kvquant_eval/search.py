"""Mixed precision for one candidate: rank its layers, find the cheapest set of them whose BF16 lets it pass.

Every pass is an arm of an ordinary run folder, replayed, judged and reused like any other. What is chosen here on some
conversations is decided by a gate on others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from kvquant_eval.core.attest import bytes_per_token, layers_quantized
from kvquant_eval.core.calibration import refuse_unfit
from kvquant_eval.core.codec import DataError
from kvquant_eval.core.document import kv_names
from kvquant_eval.core.fidelity import kl_shares, summarise
from kvquant_eval.core.folds import FOLDS, restrict
from kvquant_eval.core.judge import asked, judge
from kvquant_eval.core.mixed import probes, units_of
from kvquant_eval.core.policy import Policy, ScoreRole
from kvquant_eval.core.records import Finding, GoldenSet, Measure, Prepared, Role
from kvquant_eval.core.search import FEWEST, Pass, find, measured, rank
from kvquant_eval.core.search_document import Searched
from kvquant_eval.core.settings import ReplaySettings, SearchSettings, Settings, Unit
from kvquant_eval.core.size import nominal_bytes
from kvquant_eval.core.text import one_line
from kvquant_eval.core.treatment import UNQUANTIZED, KVTreatment, Realisation
from kvquant_eval.evidence import executable, gather, oracles
from kvquant_eval.io import fidelity
from kvquant_eval.io import golden as golden_io
from kvquant_eval.io.place import Place
from kvquant_eval.io.runfolder import RunFolder, new_run
from kvquant_eval.pipeline import make_ready, named
from kvquant_eval.replay import Stage, places, plan_replay


def search(settings: Settings) -> tuple[Searched, tuple[RunFolder, RunFolder]]:
    """Rank the units and choose a set; with the runs that ranked and that chose. Raises DataError for more than one
    candidate, a budget that does not reach, and a pass that came to nothing.
    """
    plan = settings.search
    treatment, settings = check_asked(settings), _forced(executable(settings))
    ready = make_ready(replace(settings, folds=tuple(sorted({*plan.sensitivity_folds, *plan.choose_folds}))))
    ready.log.unlink(missing_ok=True)
    whole = golden_io.load(Path(settings.golden_path), settings.policy.scores)
    held_out = restrict(whole, plan.confirm_folds, settings.policy.scores)
    refuse_unfit(settings, held_out, ready.plan.prepared)  # now, and not after hours
    few, many = (restrict(whole, each, settings.policy.scores) for each in (plan.sensitivity_folds, plan.choose_folds))
    with places(settings) as engines, ExitStack() as stack:
        ranker = _begin(settings, few, ready.plan.prepared, "sensitivity", engines, stack)
        everything = ranker.run([replace(treatment, name="all")])
        units = units_of(ranker.layers, plan.unit is Unit.HALF, treatment)
        wanted = probes(treatment, units)
        _check_budget(plan, ranker.passes + len(wanted) + FEWEST, len(units))
        ranking = rank(units, [*everything, *ranker.run(wanted)])
        share = len(plan.choose_folds) / FOLDS
        settings = replace(settings, policy=share_of(settings.policy, share))
        chooser = _begin(settings, many, ready.plan.prepared, "choose", engines, stack)
        found = find(
            treatment, units, [each.unit for each in ranking], chooser.run, plan.max_passes - ranker.passes - SHARED
        )
    searched = Searched(
        treatment=treatment,
        kv=ranker.kv,
        golden=whole,
        prepared=ready.plan.prepared,
        plain=chooser.plain,
        all_kl=everything[0].kl or 0.0,
        sensitivity=tuple(ranking),
        found=found,
        floors=(ranker.floor, chooser.floor),
        passes=(ranker.passes, chooser.passes),
    )
    return searched, (ranker.folder, chooser.folder)


SHARED = 4
"""Baseline and controls of a sweep, at most (``arms.plan_arms``)."""


def share_of(policy: Policy, share: float) -> Policy:
    """The policy for a part of the golden set (0..1): that share of the turns that it asks for, at least one."""
    return replace(
        policy,
        min_turns=max(1, round(policy.min_turns * share)),
        min_headroom=max(1, round(policy.min_headroom * share)),
    )


@dataclass
class _Sweep:
    """Passes over the same golden turns, in one run folder with one baseline and its controls.

    ``floor``: the placebo's KL, nats a token; ``plain``: the baseline's bytes a token; ``layers`` and ``kv``: which are
    quantized, and as what, in the first pass.
    """

    settings: Settings
    golden: GoldenSet
    prepared: Prepared
    folder: RunFolder
    places: Sequence[Place]
    floor: float | None = None
    kv: Mapping[str, str] = field(default_factory=dict)
    plain: float = 0.0
    layers: tuple[int, ...] = ()
    done: set[str] = field(default_factory=set)

    @property
    def passes(self) -> int:
        """Arms that were run, the baseline and its controls among them."""
        return len(self.done)

    def run(self, treatments: Sequence[KVTreatment]) -> list[Pass]:
        """Replay and judge these treatments. Raises DataError for one that could not be compared."""
        settings = replace(self.settings, candidates={treatment.name: treatment for treatment in treatments})
        plan = plan_replay(settings, self.golden, self.prepared)
        self.folder.write_plan(self.prepared)
        records = Stage(settings, plan, self.folder, self.places).replay()
        self.done |= {arm.name for arm in plan.arms}
        questions = asked(settings, self.prepared, self.golden.turns, records)
        answers = gather(questions, oracles(settings), self.folder.answers)
        judgement = judge(settings, self.prepared, self.golden.turns, records, answers)
        near = fidelity.read(self.folder, plan.arms, self.prepared.turns)
        compared = {arm.name: near[arm.baseline, arm.name] for arm in plan.arms if arm.role is not Role.BASELINE}
        kl = {name: summarise(turns).means.kl for name, turns in compared.items()}
        base = judgement.arms["baseline"].facts
        if base is None:
            raise DataError(f"{self.folder.path}: a baseline to compare with, got one that died; see its engine.log")
        self.floor, self.plain = kl.get("placebo"), bytes_per_token(base)
        found = []
        for name, treatment in settings.candidates.items():
            record, result = judgement.arms[name], judgement.results[name]
            self.kv = self.kv or kv_names(record)
            why = _useless(result.findings) or ("" if record.facts and kl[name] is not None else "nothing to compare")
            if why or record.facts is None:
                raise DataError(f"{self.folder.path}: a pass for {name}, got {why}; correct that and search again")
            self.layers = self.layers or tuple(layers_quantized(record.facts)[0])
            native = treatment.realisation is Realisation.NATIVE
            size = bytes_per_token(record.facts) if native else nominal_bytes(treatment, base)
            shares = kl_shares(compared[name])
            found.append(
                measured(name, result, settings.policy, kl=kl[name], shares=shares, size=size, plain=self.plain)
            )
        return found


def _begin(
    settings: Settings, golden: GoldenSet, prepared: Prepared, name: str, engines: Sequence[Place], stack: ExitStack
) -> _Sweep:
    mine = {turn.turn_id for turn in golden.turns}
    few = replace(prepared, turns=tuple(turn for turn in prepared.turns if turn.turn_id in mine))
    what = named(settings, "+".join(settings.candidates))
    folder = new_run(Path(settings.runs_dir), f"{datetime.now(UTC):%Y%m%dT%H%M%S}{what}-{name}")
    folder.write_config(dict(settings.config))
    stack.enter_context(folder.locked())
    return _Sweep(settings, golden, few, folder, engines)


def check_asked(settings: Settings) -> KVTreatment:
    """The one candidate that is searched for. Raises DataError for a question that is none."""
    plan = settings.search
    if settings.folds:
        rule = f"all for a search, which has folds of its own, got {list(settings.folds)}"
        raise DataError(f"golden.folds: {rule}; set search.sensitivity_folds, choose_folds and confirm_folds")
    if len(settings.candidates) != 1:
        listed = ", ".join(settings.candidates)
        raise DataError(f"kv: one candidate for a search, got {listed}; such as kv=[{next(iter(settings.candidates))}]")
    (treatment,) = settings.candidates.values()
    if {*treatment.formats} <= {*UNQUANTIZED}:
        rule = "a candidate that is quantized"
        raise DataError(f"kv: {rule}, got {treatment.requested}, which has nothing to keep in BF16; name another")
    if plan.unit is Unit.HALF and treatment.realisation is Realisation.NATIVE:
        rule = "layer for a native dtype (an engine stores K and V of a layer alike)"
        raise DataError(f"search.unit: {rule}, got 'half'; choose a reference format, such as kv=[nvfp4_ref]")
    return treatment


def _forced(settings: Settings) -> Settings:
    """The gating scores alone, and no more replays than they need: a search looks many times at what can decide."""
    scores = {
        workload: {
            name: rule
            for name, rule in rules.items()
            if rule.role is ScoreRole.GATE and settings.scorers[workload][name].measure is not Measure.FREE_RUNNING
        }
        for workload, rules in settings.policy.scores.items()
    }
    scorers = {
        workload: {name: settings.scorers[workload][name] for name in rules} for workload, rules in scores.items()
    }
    forced = all(scorer.measure is Measure.FORCED for each in scorers.values() for scorer in each.values())
    return replace(
        settings,
        policy=replace(settings.policy, scores=scores, require=()),
        scorers=scorers,
        replay=ReplaySettings(),
        generate=not forced,
        left_out={},
    )


def _useless(findings: Sequence[Finding]) -> str:
    """Why a pass is none (empty: it is one): an arm of it died, is not finished, or ran another dtype. That a unit
    changes nothing is an answer, and so is a control that is held: no pass is promoted then.
    """
    return next(
        (
            one_line(f"{finding.where}: {finding.what}")
            for finding in findings
            if (finding.invalid or finding.unfinished)
            and not finding.where.startswith("control ")
            and not finding.what.startswith("not applied")
        ),
        "",
    )


def _check_budget(plan: SearchSettings, needed: int, units: int) -> None:
    if needed > plan.max_passes:
        rule = f"at least {needed} to rank {units} units and to look at the curve"
        remedy = "raise it, or set search.unit=layer" if plan.unit is Unit.HALF else "raise it"
        raise DataError(f"search.max_passes: {rule}, got {plan.max_passes}; {remedy}")
