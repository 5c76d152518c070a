"""The first screen: what was decided over each candidate, why, who signed it, and what makes it void."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvquant_eval.core.power import LEAST
from kvquant_eval.core.signoff import Terms, barred, terms
from kvquant_eval.io.report.blocks import Block, Card, Cards, Facts, Section
from kvquant_eval.io.report.names import class_name, kv_name, layers, model_at, moment, ranking, short
from kvquant_eval.io.report.plain import sentence

Data = Mapping[str, Any]
BARS = {
    "self_test": "self-test: it stores K and V as the baseline does",
    "post_hoc": "post hoc: the policy is not the one hashed before the run",
    "rescored": "post hoc: the replies were scored again after the run",
    "reference": "reference: it shows the numerics; nothing is stored in this format, and nothing is saved",
    "part_of_the_golden_set": "a part of the golden set only",
}
"""What keeps a decision from being served by (``core.signoff.barred``), in words; ``rescored`` is one of
``post_hoc``."""


def signoff_section(document: Data, signatures: Sequence[Data]) -> Section:
    """A card a candidate, then what they have in common. ``signatures`` are those of ``signoff.json``."""
    cards = tuple(
        _card(document, candidate, [each for each in signatures if each.get("candidate") == candidate["name"]])
        for candidate in document["candidates"]
    )
    facts = [("decision", f"{document['decision']} (exit status {document['exit_code']})")]
    if "run_id" in document:
        facts.append(("run", document["run_id"]))
    if document["ranking"]:
        facts.append(("promoted, the fewest bytes a token first", _ranked(document)))
    blocks: tuple[Block, ...] = (Cards(cards), Facts(tuple(facts)))
    return Section(2, "Decision", blocks)


def _ranked(document: Data) -> str:
    """The ranking; a reference is there by what its format would take, which nothing here stores."""
    kinds = {each["name"]: each["kv"]["realisation"] for each in document["candidates"]}
    marked = {True: " (reference: as a native store would)", False: ""}
    return ", ".join(ranking([each]) + marked[kinds[each["name"]] == "reference"] for each in document["ranking"])


def voids(found: Terms) -> str:
    """What the decision is about. As soon as one of these is another, it says nothing."""
    skipped = f"layers {layers(found.layers_skipped)} as the model computes them"
    read_back = found.bytes_per_token is not None
    stored = skipped if found.layers_skipped else "no layer skipped" if read_back else "nothing read back"
    parts = (
        f"model revision {found.revision or 'none'} (weights {short(found.weights_sha256)})",
        f"KV dtype {found.kv_requested}, {stored}{_scaled(found)}",
        f"{found.engine} {found.engine_version or 'of unknown version'}",
        f"attention {found.attention_backend or 'not read back'}",
        f"device {found.device}",
        f"policy {found.policy} ({short(found.policy_sha256)})",
        f"golden set {' '.join(found.golden.split(' ')[:-1])} ({short(found.golden.split(' ')[-1])})",
    )
    return "; ".join(parts)


def _scaled(found: Terms) -> str:
    """The scales of the quantized layers, where they are not all 1."""
    halves = [(half, ends) for half, ends in (("K", found.k_scales), ("V", found.v_scales)) if {*ends} - {1.0}]
    return "".join(f", {half} scales {ends[0]:g} to {ends[-1]:g}" for half, ends in halves)


def _card(document: Data, candidate: Data, signatures: Sequence[Data]) -> Card:
    plain = document["arms"][candidate["baseline"]]["attested"]
    facts = [("stored", _stored(candidate["kv"], plain is not None))]
    if "created_at" in document:
        unsigned = "" if signatures else ", not signed"
        facts.append(("decided", f"{moment(document['created_at'])}{unsigned}"))
    facts.append(("void as soon as one of these changes", voids(terms(document, candidate))))
    return Card(
        decision=candidate["decision"],
        name=candidate["name"],
        model=model_at(document["model"]),
        kv=kv_name(candidate["kv"]),
        why=sentence(candidate, document["policy"]),
        marks=tuple(_marks(document, candidate)),
        classes=tuple((class_name(w, judged), judged["verdict"]) for w, judged in candidate["classes"].items()),
        signed=tuple(_signed(each) for each in signatures),
        overrides=tuple(str(each["override"]) for each in signatures if each.get("override")),
        facts=tuple(facts),
    )


def _stored(kv: Data, compared: bool) -> str:
    """``compared``: whether the baseline was read back too, so that there is a ratio."""
    if "layers_quantized" not in kv:
        return "nothing was read back"
    skipped = f", {layers(kv['layers_skipped'])} as the model computes them" if kv["layers_skipped"] else ""
    ratio = f" ({kv['bytes_ratio']:.2f} of the baseline)" if compared else ""
    size = f"{kv['bytes_per_token']:,.0f} bytes a token{ratio}"
    return f"{kv['layers_quantized']} layers quantized{skipped}; {size}"


def _marks(document: Data, candidate: Data) -> Iterator[str]:
    """Everything that sets this decision apart; the first of those that bar it decides what MLflow calls it."""
    if bar := barred(document, candidate):
        yield f"{BARS['rescored' if bar == 'post_hoc' and document.get('rescored') else bar]}; it moves no alias"
    power = document.get("power")
    if power and power["chance"] < LEAST:
        yield f"underpowered: a lossless candidate would be promoted with a chance of {power['chance']:.0%}"
    if (attempts := document.get("attempts", 1)) > 1:
        yield f"attempt {attempts} of the same question"


def _signed(signature: Data) -> str:
    until = f" (expires {signature['expires']})" if signature.get("expires") else ""
    note = f": {signature['note']}" if signature.get("note") else ""
    return f"signed by {signature.get('by', 'nobody named')} on {signature.get('at', 'an unknown date')}{until}{note}"
