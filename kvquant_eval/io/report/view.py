"""A decision document and its judgement to the sections of a report, in reading order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvquant_eval.core.judge import Judgement
from kvquant_eval.core.records import GoldenSet, Prepared
from kvquant_eval.io.report.attestation import attestation_section
from kvquant_eval.io.report.attribution import attribution_sections
from kvquant_eval.io.report.blocks import Items, Report, Section, Verdicts, clean
from kvquant_eval.io.report.classes import class_blocks, score_section
from kvquant_eval.io.report.compounding import compounding_sections
from kvquant_eval.io.report.conditions import policy_section, power_section
from kvquant_eval.io.report.confirmations import confirmation_sections
from kvquant_eval.io.report.degenerate import degenerate_section
from kvquant_eval.io.report.fidelity import fidelity_sections
from kvquant_eval.io.report.gains import gains_section
from kvquant_eval.io.report.names import baseline_name, candidate_mark, identity, kv_name
from kvquant_eval.io.report.plots import figures
from kvquant_eval.io.report.ranges import range_sections
from kvquant_eval.io.report.reproduce import reproduce_section
from kvquant_eval.io.report.signoff import signoff_section
from kvquant_eval.io.report.strata import strata_sections
from kvquant_eval.io.report.turns import flagged_sections

Data = Mapping[str, Any]


def build(
    document: Data,
    judgement: Judgement,
    golden: GoldenSet,
    prepared: Prepared,
    signatures: Sequence[Mapping[str, Any]] = (),
) -> Report:
    """The whole report; every string in it is safe to show, though not yet escaped for a format."""
    model = document["model"]
    names = [identity(model, candidate["kv"]) + candidate_mark(candidate) for candidate in document["candidates"]]
    named = list(zip(names, document["candidates"], strict=True))
    sections = [signoff_section(document, signatures)]
    for name, candidate in named:
        sections += _candidate(name, candidate, document, judgement, prepared)
    sections += [_controls(document), degenerate_section(document), *fidelity_sections(document)]
    sections += [*attribution_sections(document), *_labelled(range_sections(document), "Range of K and V")]
    sections += [attestation_section(document), power_section(document.get("power"))]
    sections += [policy_section(document), reproduce_section(document)]
    for name, candidate in named:
        baseline = baseline_name(model["kv"][candidate["baseline"]])
        flagged = flagged_sections(candidate, name, baseline, judgement, golden, prepared, document["policy"])
        sections += _labelled(flagged, f"{candidate['name']}: flagged turns")
    return clean(
        Report(
            title=f"{document['decision']}: {'; '.join(names)}",
            heading=f"KV cache sign-off: {document['decision']}",
            sections=tuple(sections),
        )
    )


def _candidate(
    identified: str, candidate: Data, document: Data, judgement: Judgement, prepared: Prepared
) -> Iterator[Section]:
    name, kv = candidate["name"], document["model"]["kv"][candidate["baseline"]]
    baseline = baseline_name(kv)
    against = f"candidate {name}, compared with arm {candidate['baseline']}: {kv_name(kv)}"
    title = f"{candidate['decision']}: {identified}"
    blocks = (Items((against,)), *class_blocks(candidate, baseline))
    yield Section(2, title, blocks, label=f"{name}: {candidate['decision']}")
    yield gains_section(candidate, document, baseline, prepared)
    yield Section(3, f"{name}: findings", (Items(_found(candidate)),))
    yield score_section(candidate, baseline)
    yield from strata_sections(candidate)
    yield from confirmation_sections(candidate, document["policy"]["hold_level"])
    plots = figures(candidate, identified, kv_name(kv), judgement, prepared, document["policy"]["headroom_points"])
    yield Section(3, f"{name}: drops turn by turn", plots or (Items(("no turn could be paired",)),))
    yield from _labelled(compounding_sections(candidate, identified, baseline, document), f"{name}: free running")


def _labelled(sections: Sequence[Section], label: str) -> Iterator[Section]:
    """The first of them under a label that the list of sections has room for."""
    for number, section in enumerate(sections):
        yield section if number else replace(section, label=label)


def _said(result: Data) -> tuple[str, ...]:
    """Reasons, then findings: what is invalid, and what is only noted (accepted differences, unsettled controls)."""
    sentences = {f"{finding['where']}: {finding['what']}": finding["invalid"] for finding in result["findings"]}
    findings = [
        f"{'invalid' if invalid else 'noted'}: {sentence}"
        for sentence, invalid in sentences.items()
        if sentence not in result["reasons"]
    ]
    return (*result["reasons"], *(findings or ["no further findings"]))


def _found(candidate: Data) -> tuple[str, ...]:
    """What is said of the candidate beyond its classes, whose reasons stand by their verdicts."""
    told = {
        f"{workload}: {reason}" for workload, judged in candidate["classes"].items() for reason in judged["reasons"]
    }
    return tuple(sentence for sentence in _said(candidate) if sentence not in told)


def _controls(document: Data) -> Section:
    rows = [
        (f"{name}: {kv_name(control['kv'])}", control["decision"], "; ".join(_said(control)))
        for name, control in document["controls"].items()
    ]
    return Section(2, "Controls", (Verdicts(tuple(rows)),))
