"""What every arm was asked for and what ran, as its workers said, and how each of them fared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kvquant_eval.core.codec import canonical
from kvquant_eval.core.text import head
from kvquant_eval.io.report.blocks import DIFFERS, Block, Facts, Items, Section, Table
from kvquant_eval.io.report.names import NONE, layers, number

Data = Mapping[str, Any]
VALUE_CHARS = 80
SHOWN = ("attention_backend", "engine", "model_dtype")
"""Settings that have a row of their own; the others have one together."""
SAID = (
    "Read back from the running workers of each arm, layer by layer; out of the configuration are role, baseline, "
    f"'KV requested' and realisation alone. {DIFFERS.strip()} marks what differs from the arm's baseline and is not "
    "its KV treatment, or went wrong."
)


def attestation_section(document: Data) -> Section:
    """A column an arm; then the findings against them, and what they have in common."""
    arms = document["arms"]
    findings = dict.fromkeys(_findings(document))
    table = Table(("", *arms), "l" + "m" * len(arms), tuple(_rows(arms, findings)))
    said = [f"{'invalid' if invalid else 'noted'}: {where}: {what}" for where, what, invalid in findings]
    blocks: tuple[Block, ...] = (
        Items((SAID,)),
        table,
        Items(tuple(said) or ("no findings",)),
        Facts(_common(document)),
    )
    return Section(2, "Attestation", blocks)


def _findings(document: Data) -> Iterator[tuple[str, str, bool]]:
    """(Arm, what, whether it makes a decision invalid) over all arms."""
    for judged in (*document["controls"].values(), *document["candidates"]):
        for finding in judged["findings"]:
            yield finding["where"], finding["what"], finding["invalid"]


def _rows(arms: Data, findings: Mapping[tuple[str, str, bool], None]) -> Iterator[tuple[str, ...]]:
    wrong = {arm for arm, what, invalid in findings if invalid and what.startswith("requested")}
    yield "role", *(arm["role"] for arm in arms.values())
    yield "baseline", *(arm["baseline"] if arm["baseline"] != name else NONE for name, arm in arms.items())
    yield "KV requested", *(arm["requested"] for arm in arms.values())
    yield "KV effective", *(_marked(arm["effective"], name in wrong) for name, arm in arms.items())
    yield "realisation", *(arm["realisation"] for arm in arms.values())
    for label, say in ATTESTED:
        yield label, *(NONE if arm["attested"] is None else say(arm["attested"]) for arm in arms.values())
    for label, key, say in SETTINGS:
        yield label, *(_setting(arm, key, say) for arm in arms.values())
    yield "other settings", *(_others(arm) for arm in arms.values())
    for label, tell in RAN:
        yield label, *(tell(arm) for arm in arms.values())


def _scales(kv: Data) -> str:
    found = kv["scales"]
    ranges = [f"{half} {found[half][0]:g} to {found[half][1]:g}" for half in "kv" if found[half]]
    if not kv["layers_quantized"]:
        return NONE
    return ", ".join([found["kind"], *(ranges if found["kind"] != "unit" else ())])


ATTESTED: tuple[tuple[str, Callable[[Data], str]], ...] = (
    ("layers quantized", lambda kv: f"{kv['layers_quantized']} of {kv['layers']}"),
    ("layers skipped", lambda kv: layers(kv["layers_skipped"])),
    ("bytes per token", lambda kv: f"{kv['bytes_per_token']:,.0f}"),
    ("capacity, tokens", lambda kv: f"{kv['capacity_tokens']:,}"),
    ("scales", _scales),
)
"""What the KV treatment may change, and how it is written."""
SETTINGS: tuple[tuple[str, str, Callable[[Data], str]], ...] = (
    ("attention backend", "attention_backend", lambda kv: kv["attention_backend"] or NONE),
    ("engine", "engine", lambda kv: f"{kv['engine']} {kv['version']}"),
    ("model dtype", "model_dtype", lambda kv: kv["model_dtype"]),
)
"""What must be the same in all arms: (label, name of the setting, how it is written)."""
RAN: tuple[tuple[str, Callable[[Data], str]], ...] = (
    ("prefix cache", lambda arm: f"{arm['prefix_cache_share']:.1%}"),
    ("preemptions", lambda arm: _marked(f"{arm['preemptions']:g}", arm["preemptions"] > 0)),
    ("decoded tokens/s", lambda arm: number(arm["decoded_tokens_per_s"], ",.1f")),
    ("seconds", lambda arm: number(arm["seconds"], ",.1f")),
    ("replays", lambda arm: f"{arm['replays']:,}"),
    ("outcomes", lambda arm: ", ".join(f"{o} {n:,}" for o, n in arm["outcomes"].items()) or "did not run"),
    ("error", lambda arm: _marked(arm["error"], True) if arm["error"] else NONE),
)
"""How an arm fared."""


def _marked(text: str, on: bool) -> str:
    return f"{DIFFERS}{text}" if on else text


def _setting(arm: Data, key: str, say: Callable[[Data], str]) -> str:
    return "not read back" if arm["attested"] is None else _marked(say(arm["attested"]), key in arm["differs"])


def _others(arm: Data) -> str:
    if arm["attested"] is None:
        return "not read back"
    told = [f"{key} {_value(own)} (baseline {_value(base)})" for key, (base, own) in arm["differs"].items()]
    told = [text for key, text in zip(arm["differs"], told, strict=True) if key not in SHOWN]
    return _marked("; ".join(told), True) if told else "as the baseline's" if arm["role"] != "baseline" else NONE


def _value(value: Any) -> str:
    return head(value if isinstance(value, str) else canonical(value), VALUE_CHARS)


def _common(document: Data) -> tuple[tuple[str, str], ...]:
    model = document["model"]
    return (
        ("device", document["engine"]["device"]),
        ("model provenance", model["provenance"] or NONE),
        ("trust_remote_code", "on: code of the model folder was run" if model["trust_remote_code"] else "off"),
    )
