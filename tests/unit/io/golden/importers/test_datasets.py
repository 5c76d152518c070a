from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from kvquant_eval.core.codec import DataError
from kvquant_eval.core.conversation import Conversation, LeftOut, cut
from kvquant_eval.core.records import GoldenTurn
from kvquant_eval.io.golden.importers.datasets import read

ASKED = {"prompt": "question", "response": "answer"}
CHAT = [{"from": "system", "value": "s"}, {"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]
SHARED = {
    "messages": "conversations",
    "role": "from",
    "content": "value",
    "roles": {"human": "user", "gpt": "assistant"},
}


def write(folder: Path, *rows: dict[str, Any], suffix: str = ".jsonl") -> str:
    path = folder / f"rows{suffix}"
    if suffix == ".parquet":
        pd.DataFrame(rows).to_parquet(path)
    elif suffix == ".csv":
        pd.DataFrame(rows).to_csv(path, index=False)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def turns(source: str, mapping: dict[str, Any]) -> list[GoldenTurn | LeftOut]:
    found = list(read(source, mapping))
    return [t for record in found for t in (cut(record, "x") if isinstance(record, Conversation) else [record])]


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_prompt_and_response(tmp_path: Path, suffix: str) -> None:
    source = write(tmp_path, {"question": "2 + 2?", "answer": "It is 4.", "final": "4"}, suffix=suffix)
    [turn] = turns(source, {**ASKED, "answers": "final"})
    assert isinstance(turn, GoldenTurn)
    assert turn.messages == ({"role": "user", "content": "2 + 2?"},)
    assert turn.reference == {"role": "assistant", "content": "It is 4."}
    assert turn.expected == {"answers": ["4"]}
    assert [span.text for span in turn.decisive] == ["4"]


def test_messages_under_other_keys(tmp_path: Path) -> None:
    [turn] = turns(write(tmp_path, {"conversations": CHAT, "key": "k"}), {**SHARED, "id": "key"})
    assert isinstance(turn, GoldenTurn)
    assert turn.turn_id == "k/t00"
    assert [message["role"] for message in turn.messages] == ["system", "user"]
    assert turn.reference == {"role": "assistant", "content": "hello"}


def test_columns_of_json_text_and_a_system_prompt(tmp_path: Path) -> None:
    tools = json.dumps([{"name": "f", "parameters": {}}])
    row = {"conversations": json.dumps(CHAT[1:]), "sys": "be brief", "t": tools}
    [turn] = turns(write(tmp_path, row), {**SHARED, "system": "sys", "tools": "t"})
    assert isinstance(turn, GoldenTurn)
    assert turn.messages[0] == {"role": "system", "content": "be brief"}
    assert turn.tools[0]["function"]["name"] == "f"


@pytest.mark.parametrize(
    ("mapping", "line"),
    [
        ({}, "--mapping: a column for messages, or for prompt and response, got neither; add it"),
        ({"prompt": "question"}, "--mapping: a column for messages, or for prompt and response, got neither; add it"),
        ({**ASKED, "respons": "x"}, "--mapping: respons: a known key, got 'respons'; did you mean 'response'?"),
        ({**ASKED, "prompt": "qestion"}, "--mapping: a column of {source}, got 'qestion'; did you mean 'question'?"),
    ],
)
def test_a_mapping_that_does_not_fit(tmp_path: Path, mapping: dict[str, Any], line: str) -> None:
    source = write(tmp_path, {"question": "?", "answer": "!"})
    with pytest.raises(DataError) as caught:
        list(read(source, mapping))
    assert str(caught.value) == line.format(source=source)


def test_rows_that_cannot_be_used_are_left_out(tmp_path: Path) -> None:
    rows = ({"conversations": json.dumps(CHAT)}, {"conversations": "[{"}, {"conversations": '"hello"'})
    source = write(tmp_path, *rows)
    _, broken, wrong = turns(source, SHARED)
    assert isinstance(broken, LeftOut)
    assert broken.place == f"{source}:2"
    assert broken.reason.startswith("a column of JSON, got ")
    assert wrong == LeftOut(f"{source}:3", "messages as a list, got 'hello'")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.csv: a readable file, got none; correct the path$"):
        list(read(f"{tmp_path}/none.csv", ASKED))


def test_a_file_that_does_not_load(tmp_path: Path) -> None:
    (tmp_path / "rows.parquet").write_bytes(b"no parquet")
    with pytest.raises(DataError, match=r"^source: a data set that loads, got '.*'(\.\.\.)? \(.*\); correct it$"):
        list(read(f"{tmp_path}/rows.parquet", ASKED))
