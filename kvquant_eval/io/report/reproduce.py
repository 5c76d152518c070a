"""How to get this decision again: from the stored replays, and from nothing."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvquant_eval.io.report.blocks import Block, Code, Facts, Items, Section
from kvquant_eval.io.report.names import NONE

Data = Mapping[str, Any]
LINE_CHARS = 88
"""Of a command in one line; a shell reads on behind a backslash."""
REGATE = "kvquant-eval regate"
RUN_OF_POST_HOC = "../.."
"""From the folder of a decision that was made afterwards (``RunFolder.post_hoc``) to that of its run."""


def reproduce_section(document: Data) -> Section:
    """Commands, then everything that must be the same for them to give the same."""
    blocks = (*_stored(document["post_hoc"]), *_anew(document.get("command", ())), Facts(tuple(_facts(document))))
    return Section(2, "Reproduce", blocks)


def _stored(post_hoc: bool) -> Iterator[Block]:
    if post_hoc:
        yield Items((
            "this was decided after the run, otherwise than it asked; config.yaml beside this report says how",
            "decide by the run's own policy and scores, without an engine, in the folder of this report:",
        ))  # fmt: skip
        yield Code(f"{REGATE} {RUN_OF_POST_HOC}")
    else:
        yield Items(("decide again from the stored replays, without an engine, in the folder of this report:",))
        yield Code(f"{REGATE} .")


def _anew(command: Sequence[str]) -> Iterator[Block]:
    if command:
        yield Items(("ask the question of the run again, with new engines and nothing reused:",))
        yield Code(_folded([*command, "resume=never"]))
        if any("://***@" in word for word in command):
            yield Items(("*** stands for a user and a password, which are not kept",))
    else:
        told = "this run was not begun by a command that it kept"
        yield Items((f"to run it again: {told}; config.yaml in its folder is the whole configuration",))


def _folded(command: Sequence[str]) -> str:
    """As a shell takes it, in lines of ``LINE_CHARS`` where words allow it."""
    lines = [""]
    for word in map(shlex.quote, command):
        if lines[-1] and len(lines[-1]) + len(word) >= LINE_CHARS:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return " \\\n  ".join(lines)


def _facts(document: Data) -> Iterator[tuple[str, str]]:
    model, engine, golden = document["model"], document["engine"], document["golden"]
    versions = {"kvquant_eval": document.get("kvquant_eval_version"), **engine["versions"]}
    yield "run", str(document.get("run_id", NONE))
    yield "versions", ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    yield "device", engine["device"]
    yield "engine arguments", ", ".join(f"{key} {value}" for key, value in engine["args"].items()) or NONE
    yield "weights sha256", model["weights_sha256"]
    yield "chat template sha256", model["chat_template_sha256"]
    yield "golden set", f"{golden['name']} {golden['version']}"
    yield "golden set sha256", golden["sha256"]
    yield "policy sha256", document["policy"]["sha256"]
    yield "plan sha256", document.get("plan_sha256") or NONE
    yield "question sha256", document["identity_sha256"]
    yield "schema of decision.json", str(document.get("schema_version", NONE))
