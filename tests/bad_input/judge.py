"""Judges that are not set up, or not safely. Addresses and keys that may hold a secret are not shown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.bad_input.case import Case
from tests.bad_input.config import BASE

USED = (
    "+scorer@workloads.faq.scores.judge.scorer=judge",
    "+workloads.faq.scores.judge={role:report,margin:5.0}",
)
SET_UP = ("scorer.judge.url=http://127.0.0.1:8000/v1", "scorer.judge.model=judge-1")


def _case(what: str, *overrides: str, line: str) -> Case:
    """A gate with a judge's score in the class faq."""
    said = {override.partition("=")[0] for override in overrides}

    def make(folder: Path) -> Sequence[str]:
        kept = [item for item in SET_UP if item.partition("=")[0] not in said]
        return ["gate", *(item.format(folder=folder) for item in BASE), *USED, *kept, *overrides]

    return Case(what=what, make=make, line=line)


CASES = (
    _case(
        "a judge without an endpoint",
        "scorer.judge.url=''",
        line="scorer.judge.url: a value for workloads.faq.scores.judge, got none; set it, or leave the score out",
    ),
    _case(
        "a judge without a model",
        "scorer.judge.model=''",
        line="scorer.judge.model: a value for workloads.faq.scores.judge, got none; set it, or leave the score out",
    ),
    _case(
        "a key's variable that is not set",
        "scorer.judge.api_key_env=KVQUANT_NOT_SET",
        line="scorer.judge.api_key_env: the name of a variable that is set, got one that is not; export it",
    ),
    _case(
        "a key where its variable belongs",
        "scorer.judge.api_key_env=sk-0123456789",
        line=(
            "scorer.judge.api_key_env: the name of an environment variable, got something else, not shown: it may be a "
            "key; export the key and name its variable here"
        ),
    ),
    _case(
        "an endpoint that is no address",
        "scorer.judge.url=judge:8000",
        line="scorer.judge.url: a base address such as http://host:8000/v1, got 'judge:8000'; correct it",
    ),
    _case(
        "a password in the address",
        "scorer.judge.url=http://me:secret@judge:8000/v1",
        line=(
            "scorer.judge.url: a base address such as http://host:8000/v1, got one with a user, a password, a query or "
            "a fragment, not shown; a key goes into scorer.judge.api_key_env; correct it"
        ),
    ),
    _case(
        "no time to answer",
        "scorer.judge.timeout_s=0",
        line="scorer.judge.timeout_s: above 0 and up to 3600, got 0.0; such as scorer.judge.timeout_s=60",
    ),
    _case(
        "nobody asked at a time",
        "scorer.judge.at_once=0",
        line="scorer.judge.at_once: at least 1 and up to 64, got 0; such as scorer.judge.at_once=4",
    ),
    _case(
        "a misspelt setting of the judge",
        "scorer.judge.modle=x",
        line="scorer.judge.modle: a known key, got 'modle'; did you mean 'model'?",
    ),
)
