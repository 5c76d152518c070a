"""Golden turns of the class ``faq``: a help desk that answers out of the fact sheet in its system prompt.

``faq.yaml`` holds the hand-written part: the sheets, the conversations, and per turn the answers that count as right.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from golden.sources.common import marked, turn

WORKLOAD = "faq"
MAX_TOKENS = 48
_SOURCE = Path(__file__).with_suffix(".yaml")


def turns() -> list[dict[str, Any]]:
    """Expand ``faq.yaml`` into turn dicts, in file order."""
    source = yaml.safe_load(_SOURCE.read_text(encoding="utf-8"))
    built: list[dict[str, Any]] = []
    for conversation in source["conversations"]:
        sheet = source["sheets"][conversation["sheet"]]
        built += _conversation(conversation, _system_prompt(sheet, source["rules"]))
    return built


def _system_prompt(sheet: dict[str, Any], rules: str) -> str:
    """The desk, the rules all desks share, and the facts, one a line."""
    facts = "\n".join(f"- {fact}" for fact in sheet["facts"])
    return f"You are the help desk of {sheet['name']}. {rules.strip()}\n\nFact sheet:\n{facts}"


def _conversation(conversation: dict[str, Any], system: str) -> list[dict[str, Any]]:
    """The turns of one conversation; each sees the golden answers before it."""
    history: list[dict[str, str]] = [{"role": "system", "content": system}]
    built: list[dict[str, Any]] = []
    for index, exchange in enumerate(conversation["turns"]):
        history.append({"role": "user", "content": exchange["user"]})
        answer, decisive = marked(exchange["assistant"])
        reference = {"role": "assistant", "content": answer}
        built.append(
            turn(
                workload=WORKLOAD,
                conversation=conversation["id"],
                index=index,
                messages=history,
                reference=reference,
                decisive=decisive,
                expected={"answers": exchange["answers"]},
                max_tokens=MAX_TOKENS,
                tags=[conversation["sheet"], exchange.get("kind", "lookup")],
            )
        )
        history.append(reference)
    return built
