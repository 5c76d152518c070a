"""Word problems with worked solutions, one a line, as GSM8K has them: ``question``, and ``answer`` that ends in
``#### <number>``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from kvquant_eval.core.chat import Unusable
from kvquant_eval.core.conversation import Conversation, LeftOut
from kvquant_eval.core.records import Json
from kvquant_eval.io.golden.importers._files import conversations, expect, json_lines, numbered

_CALCULATOR = re.compile(r"<<[^<>]*>>")
"""Annotations for a calculator, no part of what a model would write."""
_FINAL = re.compile(r"####\s*(\S.*)")


def read(source: str) -> Iterator[Conversation | LeftOut]:
    """One conversation a problem. Raises DataError for a file that cannot be read."""
    return conversations(json_lines(Path(source)), _problem)


def _problem(record: Json, place: str) -> Conversation:
    record = expect(record, dict, "a problem as a JSON object")
    question = expect(record.get("question"), str, "a problem with a question")
    answer = _CALCULATOR.sub("", expect(record.get("answer"), str, "a problem with an answer"))
    final = _FINAL.findall(answer)
    if not final:
        raise Unusable("an answer that ends in #### and a number")
    number = str(final[-1]).strip()
    return Conversation(
        conversation_id=numbered(place),
        place=place,
        messages=[{"role": "user", "content": question}, {"role": "assistant", "content": answer}],
        replies={1: {"answers": list(dict.fromkeys((number, number.replace(",", ""))))}},
    )
