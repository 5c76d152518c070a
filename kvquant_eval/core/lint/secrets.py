"""Keys, tokens and addresses of people, which do not belong into a set that is committed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from kvquant_eval.core.codec import from_data, to_data
from kvquant_eval.core.lint.fault import Fault, Placed, warning
from kvquant_eval.core.records import GoldenTurn

_KINDS = {
    "KEY": re.compile(
        r"(?<![\w-])(?:sk-(?:proj-|ant-|or-)?[A-Za-z0-9_-]{20,200}|AKIA[0-9A-Z]{16}|gh[pousr]_[A-Za-z0-9]{36,255}"
        r"|github_pat_\w{20,255}|glpat-[\w-]{20,64}|xox[abprs]-[\w-]{10,200}|AIza[\w-]{35}|hf_[A-Za-z0-9]{30,64}"
        r"|-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----)"
    ),
    "TOKEN": re.compile(r"eyJ[\w-]{10,2000}\.eyJ[\w-]{10,4000}\.[\w-]{10,1000}|(?<=Bearer )[\w.~+/-]{20,2000}=*"),
    "EMAIL": re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}\b"),
}
"""Formats that their issuers document (OpenAI, Anthropic, AWS, GitHub, GitLab, Slack, Google, Hugging Face), JSON web
tokens, and addresses.
"""
_RESERVED = re.compile(r"@(?:[\w-]+\.)*(?:example(?:\.(?:com|net|org))?|test|invalid|localhost)$", re.IGNORECASE)
"""Domains that belong to nobody (RFC 2606)."""


def check_secrets(turns: Sequence[Placed]) -> Iterator[Fault]:
    """One warning a turn and kind. What was found is not shown."""
    for at in turns:
        text = json.dumps(to_data(at.turn), ensure_ascii=False)
        for kind, found in _found(text).items():
            what = {"KEY": "an API key", "TOKEN": "a token", "EMAIL": "an e-mail address"}[kind]
            times = f" ({len(found)} of them)" if len(found) > 1 else ""
            yield warning("secret", at, f"texts without secrets, got {what}{times}; replace it, or lint --redact OUT")


def redact(turn: GoldenTurn, names: dict[str, str]) -> GoldenTurn:
    """The turn with every secret replaced by ``<KIND_n>``, the same in all its texts. ``names`` remembers what stands
    for what over a whole set.
    """
    text = json.dumps(to_data(turn), ensure_ascii=False)
    for kind, found in _found(text).items():
        for secret in sorted(found, key=len, reverse=True):
            name = names.setdefault(secret, f"<{kind}_{sum(v.startswith(f'<{kind}') for v in names.values()) + 1}>")
            text = text.replace(secret, name)
    return from_data(GoldenTurn, json.loads(text), turn.turn_id)


def _found(text: str) -> dict[str, list[str]]:
    found = {kind: list(dict.fromkeys(pattern.findall(text))) for kind, pattern in _KINDS.items()}
    found["EMAIL"] = [address for address in found["EMAIL"] if not _RESERVED.search(address)]
    return {kind: secrets for kind, secrets in found.items() if secrets}
