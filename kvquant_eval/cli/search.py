"""``kvquant-eval search``: rank, choose, confirm by a gate on conversations that nothing was chosen on."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kvquant_eval.cli.config import build
from kvquant_eval.core import power
from kvquant_eval.core.attest import refuse_impossible
from kvquant_eval.core.codec import DataError
from kvquant_eval.core.folds import FOLDS, restrict
from kvquant_eval.core.mixed import in_order, keeping, native_of
from kvquant_eval.core.policy import Policy
from kvquant_eval.core.records import GoldenSet
from kvquant_eval.core.scales import ScaleSource
from kvquant_eval.core.search import REMEDIES
from kvquant_eval.core.search_document import Searched, search_document
from kvquant_eval.core.settings import Settings
from kvquant_eval.core.treatment import KVTreatment, Realisation
from kvquant_eval.io import golden as golden_io
from kvquant_eval.io.child import EngineDied
from kvquant_eval.io.report import search as report
from kvquant_eval.io.report import write as write_report
from kvquant_eval.io.runfolder import RunFolder, write_json
from kvquant_eval.io.searches import SEARCH
from kvquant_eval.pipeline import GateRun, gate, rehearse
from kvquant_eval.search import check_asked, search, share_of


def run(settings: Settings) -> tuple[dict[str, Any], Path]:
    """Search, confirm, and write ``search.json`` and its report into the folder of the run that chose: before the
    confirming gate, and again behind it, then into that gate's folder and report too. Returns the document and the
    former folder. Raises DataError, EngineDied.
    """
    began = time.monotonic()
    check_asked(settings)
    refuse_hopeless(settings)
    try:
        found, folders = search(settings)
        written = _write(settings, found, folders, began, None, ["The confirming gate has not come to its end."])
        if found.found.chosen:
            confirmed, notes = _confirm(settings, found)
            written = _write(settings, found, folders, began, confirmed.document, [*notes, *confirmed.warnings])
            _show_in(confirmed, written)
    except (DataError, EngineDied):
        raise
    except BaseException as error:
        if settings.reuse:
            error.add_note("the same command uses again what was replayed")
        raise
    return written, folders[1].path


def refuse_hopeless(settings: Settings) -> None:
    """Raise DataError where the confirming gate could hardly promote mixed precision that loses nothing, before a pass
    is made for it.
    """
    if settings.policy.allow_underpowered:
        return
    golden = golden_io.load(Path(settings.golden_path), settings.policy.scores)
    policy, _ = _counted(settings, golden)
    confirming = replace(settings, policy=policy, folds=settings.search.confirm_folds)
    power.refuse_hopeless(rehearse(confirming).power, policy)


def _write(
    settings: Settings,
    found: Searched,
    folders: Sequence[RunFolder],
    began: float,
    confirmed: Mapping[str, Any] | None,
    notes: Sequence[str],
) -> dict[str, Any]:
    document = {
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "minutes": (time.monotonic() - began) / 60,
        "runs": [each.run_id for each in folders],
        **search_document(settings, found, confirmed, notes),
    }
    write_json(folders[1].path / SEARCH, document)
    report.write(folders[1].path, document)
    return document


def _show_in(confirmed: GateRun, document: Mapping[str, Any]) -> None:
    """The search in the run folder of the gate that confirmed it, and in that gate's report."""
    with confirmed.folder.locked():
        write_json(confirmed.folder.path / SEARCH, document)
        write_report(
            confirmed.folder.path, confirmed.document, confirmed.judgement, confirmed.golden, confirmed.prepared
        )


def _confirm(settings: Settings, found: Searched) -> tuple[GateRun, list[str]]:
    """The gate that decides: what was chosen, natively too where this engine can, beside the folk remedies on the same
    bytes. Notes say what it could not do.
    """
    wanted, required, notes = _candidates(settings, found)
    policy, said = _counted(settings, found.golden)
    counts = {"min_turns": policy.min_turns, "min_headroom": policy.min_headroom}
    try:
        return gate(_confirming(settings, wanted, required, counts)), [*notes, *said]
    except DataError as error:
        natively = [name for name, each in wanted.items() if each.realisation is Realisation.NATIVE]
        if found.treatment.realisation is Realisation.NATIVE or not natively:
            raise
        fewer = {name: each for name, each in wanted.items() if name not in natively}
        confirmed = gate(_confirming(settings, fewer, [next(iter(fewer))], counts))
        return confirmed, [*notes, *said, f"Not confirmed natively: {error}"]


def _candidates(settings: Settings, found: Searched) -> tuple[dict[str, KVTreatment], list[str], list[str]]:
    """The candidates of the confirming gate, those of them that decide, and what is to be said."""
    treatment, chosen = found.treatment, found.found.chosen
    kept = chosen.kept if chosen else ()
    name, notes = treatment.name, []
    wanted = {f"{name}_mixed": keeping(treatment, kept, f"{name}_mixed")}
    required = [f"{name}_mixed"]
    if treatment.realisation is Realisation.REFERENCE:
        native = native_of(wanted[required[0]], f"{name}_mixed_native")
        if treatment.scales is ScaleSource.CALIBRATED:
            notes.append("Not confirmed natively: that takes the checkpoint that has the scales.")
        elif native is None:
            notes.append("Not confirmed natively: no engine dtype stores K and V so.")
        else:
            try:
                refuse_impossible(native, settings.engine.platform)
                wanted[native.name], required = native, [native.name]
            except DataError as error:
                notes.append(f"Not confirmed natively: {error}")
    units = in_order(each.unit for each in found.sensitivity)
    for remedy, pick in REMEDIES.items() if kept else ():
        other = keeping(treatment, pick(units, len(kept)), f"{name}_{remedy.replace(' ', '_')}")
        if other.skip_layers != wanted[f"{name}_mixed"].skip_layers:
            wanted[other.name] = other
    return wanted, required, notes


def _counted(settings: Settings, golden: GoldenSet) -> tuple[Policy, list[str]]:
    """The policy of the confirming gate: it asks for as many turns as before, where the folds have them, else for their
    share; and what is to be said of it.
    """
    policy, folds = settings.policy, settings.search.confirm_folds
    held_out = restrict(golden, folds, policy.scores)
    if len(held_out.turns) >= policy.min_turns:
        return policy, []
    part = share_of(policy, len(folds) / FOLDS)
    asked = f"{part.min_turns} turns and {part.min_headroom} with headroom a class, as the share of the folds"
    said = f"The policy asks for {policy.min_turns} and {policy.min_headroom}; here for {asked}. It moves no alias."
    return part, [said]


def _confirming(
    settings: Settings, wanted: Mapping[str, KVTreatment], required: list[str], counts: Mapping[str, int]
) -> Settings:
    """The settings of that gate, from a configuration of its own, so that its run folder can be decided again."""
    data = settings.config
    (own,) = data["kv"].values()
    return build(
        {
            **data,
            "kv": {name: _configured(own, each) for name, each in wanted.items()},
            "golden": {**data["golden"], "folds": list(settings.search.confirm_folds)},
            "gate": {**data["gate"], **counts, "require": required, "repair": False},
        }
    )


def _configured(own: Mapping[str, Any], treatment: KVTreatment) -> dict[str, Any]:
    """The candidate as a configuration says it, from what the configuration of the one that was searched says."""
    skipped = list(treatment.skip_layers)
    if treatment.realisation is Realisation.NATIVE:
        return {**own, "dtype": treatment.dtype, "realisation": "native", "skip_layers": skipped, "k": "", "v": ""}
    return {**own, "skip_layers": skipped}
