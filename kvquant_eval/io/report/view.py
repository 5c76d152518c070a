"""A decision document and its judgement to the sections of a report, in reading order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvquant_eval.core.folds import FOLDS
from kvquant_eval.core.judge import Judgement
from kvquant_eval.core.power import LEAST
from kvquant_eval.core.records import GoldenSet, Prepared
from kvquant_eval.io.report.attribution import attribution_sections
from kvquant_eval.io.report.blocks import Block, Facts, Items, Report, Section, Table, Verdicts, clean
from kvquant_eval.io.report.compounding import compounding_sections
from kvquant_eval.io.report.confirmations import confirmation_sections
from kvquant_eval.io.report.degenerate import degenerate_section
from kvquant_eval.io.report.fidelity import fidelity_sections
from kvquant_eval.io.report.names import (
    NONE,
    baseline_name,
    class_name,
    identity,
    interval,
    kv_name,
    number,
    ranking,
    why,
)
from kvquant_eval.io.report.plots import figures
from kvquant_eval.io.report.ranges import range_sections
from kvquant_eval.io.report.strata import strata_sections
from kvquant_eval.io.report.turns import flagged_sections

Data = Mapping[str, Any]


def build(document: Data, judgement: Judgement, golden: GoldenSet, prepared: Prepared) -> Report:
    """The whole report; every string in it is safe to show, though not yet escaped for a format."""
    names = [identity(document["model"], candidate["kv"]) for candidate in document["candidates"]]
    sections = [_signoff(document, names)]
    for name, candidate in zip(names, document["candidates"], strict=True):
        sections += _candidate(name, candidate, document, judgement, prepared)
        against = baseline_name(document["model"]["kv"][candidate["baseline"]])
        sections += compounding_sections(candidate, name, against, document)
    sections += [_controls(document), degenerate_section(document), *fidelity_sections(document)]
    sections += [*attribution_sections(document), *range_sections(document), _arms(document["arms"])]
    sections += [_attestation(document), _storage(document)]
    sections += [_policy(document), _golden(document["golden"])]
    for name, candidate in zip(names, document["candidates"], strict=True):
        baseline = baseline_name(document["model"]["kv"][candidate["baseline"]])
        sections += flagged_sections(candidate, name, baseline, judgement, golden, prepared, document["policy"])
    return clean(
        Report(
            title=f"{document['decision']}: {'; '.join(names)}",
            heading=f"KV cache sign-off: {document['decision']}",
            sections=tuple(sections),
        )
    )


def _signoff(document: Data, names: list[str]) -> Section:
    rows = [
        (f"{name}{_marks(candidate)}", candidate["decision"], why(candidate["reasons"]))
        for name, candidate in zip(names, document["candidates"], strict=True)
    ]
    facts = [("decision", f"{document['decision']} (exit status {document['exit_code']})")]
    for label, key in (("run", "run_id"), ("decided", "created_at"), ("attempts", "attempts")):
        if key in document:
            facts.append((label, str(document[key])))
    if document["ranking"]:
        facts.append(("promoted, the fewest bytes a token first", ranking(document["ranking"])))
    if document["post_hoc"]:
        facts.append(("post hoc", "the policy is not the one hashed before the run; this decision moves no alias"))
    power = document.get("power")
    if power and power["chance"] < LEAST:
        chance = f"a candidate that loses nothing is promoted with a chance of {power['chance']:.0%} by this policy"
        text = f"{chance} on these turns (noise {power['noise']}): it can hold, and hardly promote"
        facts.append(("underpowered", f"{text}; gate.allow_underpowered let it run"))
    return Section(2, "Decision", (Verdicts(tuple(rows)), Facts(tuple(facts))))


def _marks(candidate: Data) -> str:
    """What sets a candidate apart from another of its dtype."""
    name = f", candidate {candidate['name']}" if candidate["name"] != candidate["kv"]["requested"] else ""
    return name + (", self-test: it stores K and V as the baseline does" if candidate["self_test"] else "")


def _candidate(
    identified: str, candidate: Data, document: Data, judgement: Judgement, prepared: Prepared
) -> list[Section]:
    name, kv = candidate["name"], candidate["kv"]
    base = document["model"]["kv"][candidate["baseline"]]
    title = f"{candidate['decision']}: {identified}"
    against = f"candidate {name}, compared with arm {candidate['baseline']}: {kv_name(base)}"
    blocks: list[Block] = [Items((against,)), _scores(candidate["classes"], baseline_name(base))]
    blocks += [_classes(candidate["classes"]), Items(_noise(candidate["classes"]))]
    plots = figures(candidate, identified, kv_name(base), judgement, prepared)
    return [
        Section(2, title, tuple(blocks)),
        Section(3, f"{name}: reasons and findings", (Items(_said(candidate)),)),
        *strata_sections(candidate),
        *confirmation_sections(candidate, document["policy"]["hold_level"]),
        Section(3, f"{name}: what it gains", (Facts(_gains(kv)),)),
        Section(3, f"{name}: drops turn by turn", plots or (Items(("no turn could be paired",)),)),
    ]


def _scores(classes: Data, baseline: str) -> Table:
    """One row a class and score; gate scores count the turns with headroom, and their conversations."""
    columns = (
        "class", "verdict", "score", "role, margin", "turns in conversations", baseline, "candidate", "mean drop",
        "bounds", "nats", "drops/gains", "placebo", "repeat", "recovery",
    )  # fmt: skip
    rows = [
        (class_name(workload, judged), judged["verdict"], name, *_score(score))
        for workload, judged in classes.items()
        for name, score in judged["scores"].items()
    ]
    rows += [
        (class_name(w, c), c["verdict"], *[NONE] * (len(columns) - 2)) for w, c in classes.items() if not c["scores"]
    ]
    return Table(columns, "lvll" + "r" * (len(columns) - 4), tuple(rows))


def _score(score: Data) -> tuple[str, ...]:
    gate = score["role"] == "gate"
    return (
        f"{score['role']}, {score['margin']:g}",
        (f"{score['n_headroom']} of " if gate else "") + f"{score['n_turns']} in {score['n_conversations']}",
        number(score["baseline_mean"], ".2f"),
        number(score["candidate_mean"], ".2f"),
        number(score["mean_drop"], "+.2f"),
        interval(score["ci_lower"], score["ci_upper"]),
        number(score["drop_nats"], "+.4f"),
        f"{score['drops_over']}/{score['gains_over']}",
        _control(score.get("placebo")),
        _control(score.get("repeat")),
        number(score["recovery"], ".1f") + ("%" if score["recovery"] is not None else ""),
    )


def _noise(classes: Data) -> tuple[str, ...]:
    """What is known of the noise of who was asked, one sentence a score."""
    said = []
    for workload, judged in classes.items():
        for name, score in judged["scores"].items():
            if (noise := score.get("noise")) and noise["n"]:
                differs = f"differs from itself by {noise['mean_difference']:.2f} points on average"
                over = f"by more than {score['flag_over']:g} in {noise['share_over']:.0%} of them"
                said.append(f"{workload}, {name}: {noise['who']} {differs} over {noise['n']} questions twice, {over}")
            elif noise:
                said.append(f"{workload}, {name}: {noise['who']} answered no question twice; its noise is not known")
    return tuple(said)


def _control(score: Data | None) -> str:
    """A control's mean drop, and its drops/gains over the threshold."""
    return (
        NONE if score is None else f"{number(score['mean_drop'], '+.2f')} ({score['drops_over']}/{score['gains_over']})"
    )


def _classes(classes: Data) -> Verdicts:
    return Verdicts(
        tuple(
            (
                f"{class_name(w, c)}: {c['n_turns']} turns, {c['n_headroom']} with headroom, {c['n_missing']} missing",
                c["verdict"],
                "; ".join(c["reasons"]),
            )
            for w, c in classes.items()
        )
    )


def _said(result: Data) -> tuple[str, ...]:
    """Reasons, then findings: what is invalid, and what is only noted (accepted differences, unsettled controls)."""
    sentences = {f"{finding['where']}: {finding['what']}": finding["invalid"] for finding in result["findings"]}
    findings = [
        f"{'invalid' if invalid else 'noted'}: {sentence}"
        for sentence, invalid in sentences.items()
        if sentence not in result["reasons"]
    ]
    return (*result["reasons"], *(findings or ["no further findings"]))


def _gains(kv: Data) -> tuple[tuple[str, str], ...]:
    if "bytes_per_token" not in kv:
        return (("KV cache", "not read back"),)
    facts = [
        ("layers", f"{kv['layers_quantized']} quantized; skipped: {_plain(kv['layers_skipped'])}"),
        ("bytes per token", f"{kv['bytes_per_token']:,.0f} ({kv['bytes_ratio']:.3f} of the baseline)"),
        ("capacity", f"{kv['capacity_tokens']:,} tokens ({kv['capacity_ratio']:.3f} of the baseline)"),
    ]
    if kv["realisation"] == "reference":
        share = f"{kv['second_rounding_share']:.4%} of K and V values"
        facts.append(("stored as", "bfloat16: a reference format shows the numerics and saves nothing here"))
        if "nominal_bytes_per_token" in kv:
            facts.append(("the format takes", f"{kv['nominal_bytes_per_token']:,.0f} bytes per token"))
        facts.append(("second rounding", f"{share} did not fit BF16 exactly"))
    return tuple(facts)


def _controls(document: Data) -> Section:
    rows = [
        (f"{name}: {kv_name(control['kv'])}", control["decision"], "; ".join(_said(control)))
        for name, control in document["controls"].items()
    ]
    return Section(2, "Controls", (Verdicts(tuple(rows)),))


def _arms(arms: Data) -> Section:
    columns = (
        "arm",
        "role",
        "KV dtype",
        "tokens/s",
        "prefix cache",
        "preemptions",
        "replays",
        "seconds",
        "outcomes",
        "error",
    )
    rows = [
        (
            name,
            arm["role"],
            kv_name(arm),
            number(arm["decoded_tokens_per_s"], ",.1f"),
            f"{arm['prefix_cache_share']:.1%}",
            f"{arm['preemptions']:g}",
            str(arm["replays"]),
            number(arm["seconds"], ",.1f"),
            ", ".join(f"{outcome} {count}" for outcome, count in arm["outcomes"].items()) or "did not run",
            arm["error"] or NONE,
        )
        for name, arm in arms.items()
    ]
    return Section(2, "Arms", (Table(columns, "llwrrrrrww", tuple(rows)),))


def _attestation(document: Data) -> Section:
    model, engine = document["model"], document["engine"]
    facts = [
        ("engine", f"{engine['name']} {engine['version'] or NONE}"),
        ("attention backend", engine["attention_backend"] or NONE),
        ("device", engine["device"]),
        ("model dtype", model["dtype"] or "not read back"),
        ("model provenance", model["provenance"] or NONE),
        ("trust_remote_code", "on: code of the model folder was run" if model["trust_remote_code"] else "off"),
        ("weights sha256", model["weights_sha256"]),
        ("chat template sha256", model["chat_template_sha256"]),
        ("versions", ", ".join(f"{name} {version}" for name, version in engine["versions"].items())),
    ]
    return Section(2, "Attestation", (Facts(tuple(facts)),))


def _storage(document: Data) -> Section:
    """What each arm's workers said about their KV cache."""
    arms = [("baseline", document["baseline"]["kv"])]
    arms += [(name, control["kv"]) for name, control in document["controls"].items()]
    arms += [(candidate["name"], candidate["kv"]) for candidate in document["candidates"]]
    columns = ("arm", "KV dtype", "layers quantized", "layers skipped", "bytes per token", "capacity", "scales")
    rows = [(name, kv_name(kv), *_layers(kv)) for name, kv in arms]
    return Section(3, "KV cache as read back", (Table(columns, "lwrwrrw", tuple(rows)),))


def _layers(kv: Data) -> tuple[str, ...]:
    if "scales" not in kv:
        return (NONE, NONE, NONE, NONE, "not read back")
    ranges = [
        f"{side} {low:g} to {high:g}" for side in "kv" for low, high in [kv["scales"][side] or (None, None)] if low
    ]
    return (
        str(kv["layers_quantized"]),
        _plain(kv["layers_skipped"]),
        f"{kv['bytes_per_token']:,.0f}",
        f"{kv['capacity_tokens']:,}",
        ", ".join([kv["scales"]["kind"], *ranges]),
    )


def _policy(document: Data) -> Section:
    policy = [(key.replace("_", " "), _plain(value)) for key, value in document["policy"].items()]
    sampling = ", ".join(f"{key} {value}" for key, value in document["sampling"].items())
    return Section(2, "Policy", (Facts((*policy, ("sampling", sampling), ("replay", _plain(document["replay"])))),))


def _golden(golden: Data) -> Section:
    turns = f"{golden['n_turns']} ({golden['n_skipped']} skipped in all arms)"
    named = [(key, str(golden[key])) for key in ("name", "version", "sha256")]
    folds = [("folds", f"{_plain(golden['folds'])} of 0 to {FOLDS - 1}")] if "folds" in golden else []
    return Section(2, "Golden set", (Facts((*named, *folds, ("turns", turns))),))


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {inner}" for key, inner in value.items())
    return (", ".join(map(str, value)) or "none") if isinstance(value, list | tuple) else str(value)
