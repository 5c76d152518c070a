"""Any data set that Hugging Face's ``datasets`` loads, from the hub or a local csv or parquet file, and local json and
jsonl files, with a mapping that says what the columns are.

JSON is read without ``datasets``: pyarrow's reader of it ends the process on some damaged lines (25.0).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ConfigDict
from tqdm import tqdm

from kvquant_eval.core.chat import Unusable
from kvquant_eval.core.codec import DataError, from_data, nearest, quoted
from kvquant_eval.core.conversation import Conversation, LeftOut
from kvquant_eval.core.records import Json
from kvquant_eval.core.strict_json import BadJson, parse
from kvquant_eval.io.golden.importers._files import conversations, expect, json_files, json_lines, numbered

_LOADERS = {".csv": "csv", ".parquet": "parquet"}


@dataclass(frozen=True, kw_only=True)
class Columns:
    """What the columns are: either ``messages``, or ``prompt`` and ``response``. Empty: there is no such column.

    In ``messages``, ``role`` and ``content`` are the keys of a message, and ``roles`` translates its roles (``{human:
    user, gpt: assistant}``). ``answers`` holds what else is right. ``config``, ``split`` and ``revision`` say what is
    loaded.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    messages: str = ""
    prompt: str = ""
    response: str = ""
    system: str = ""
    tools: str = ""
    id: str = ""
    answers: str = ""
    role: str = "role"
    content: str = "content"
    roles: Mapping[str, str] = field(default_factory=dict)
    config: str | None = None
    split: str = "train"
    revision: str | None = None

    def named(self) -> list[str]:
        """The columns that must be there."""
        columns = (self.messages, self.prompt, self.response, self.system, self.tools, self.id, self.answers)
        return [column for column in columns if column]


def read(source: str, mapping: Mapping[str, Json]) -> Iterator[Conversation | LeftOut]:
    """One conversation a row. Raises DataError for a data set that cannot be loaded and a mapping that does not fit."""
    columns = from_data(Columns, dict(mapping), "--mapping")
    if not columns.messages and not (columns.prompt and columns.response):
        raise DataError("--mapping: a column for messages, or for prompt and response, got neither; add it")

    def make(row: Json, place: str) -> Conversation:
        row = expect(row, dict, "a row with columns")
        missing = next((column for column in columns.named() if column not in row), None)
        if missing is not None and place == f"{source}:1":
            raise DataError(f"--mapping: a column of {source}, got {quoted(missing)}; {nearest(missing, row)}")
        if missing is not None:
            raise Unusable(f"a row with all columns, got none {quoted(missing)}")
        return _conversation(row, columns, place)

    return conversations(_rows(source, columns), make)


def _rows(source: str, columns: Columns) -> Iterator[tuple[str, Json] | LeftOut]:
    """Every row and its place."""
    path = Path(source)
    if path.suffix == ".jsonl":
        yield from json_lines(path)
    elif path.suffix == ".json":
        for found in json_files(path):
            if isinstance(found, LeftOut) or not isinstance(found[1], list):
                yield found
            else:
                yield from ((f"{source}:{number}", row) for number, row in enumerate(found[1], 1))
    else:
        yield from ((f"{source}:{number}", row) for number, row in enumerate(_loaded(source, columns), 1))


def _loaded(source: str, columns: Columns) -> Iterator[Mapping[str, Any]]:
    import datasets  # late: it takes a second

    loader = _LOADERS.get(Path(source).suffix)
    if loader and not Path(source).is_file():
        raise DataError(f"{source}: a readable file, got none; correct the path")
    files = {"data_files": source} if loader else {"revision": columns.revision}
    try:
        rows: Iterable[Mapping[str, Any]] = datasets.load_dataset(
            loader or source, columns.config, split=columns.split, streaming=True, **files
        )
        yield from tqdm(rows, unit="row", disable=None)
    except (DataError, GeneratorExit):
        raise
    except Exception as error:  # what loaders and the hub raise has no common base
        said = f"{type(error).__name__}: {error}"
        raise DataError(f"source: a data set that loads, got {quoted(source)} ({said:.300}); correct it") from error


def _conversation(row: Mapping[str, Any], columns: Columns, place: str) -> Conversation:
    if columns.messages:
        given = _json(row[columns.messages])
        messages = [_message(message, columns) for message in expect(given, list, "messages as a list")]
    else:
        prompt, response = row[columns.prompt], row[columns.response]
        messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": response}]
    if columns.system and row[columns.system]:
        messages = [{"role": "system", "content": row[columns.system]}, *messages]
    last = max((i for i, message in enumerate(messages) if message["role"] == "assistant"), default=None)
    answers = _texts(row[columns.answers]) if columns.answers else []
    replies: dict[int, dict[str, Json]] = {i: {} for i, m in enumerate(messages) if m["role"] == "assistant"}
    if last is not None and answers:
        replies[last] = {"answers": answers}
    tools = _json(row[columns.tools]) if columns.tools else None
    return Conversation(
        conversation_id=str(row[columns.id]) if columns.id else numbered(place),
        place=place,
        messages=messages,
        tools=expect(tools or [], list, "tools as a list"),
        replies=replies,
    )


def _message(message: Json, columns: Columns) -> dict[str, Json]:
    """A message under the usual keys; what a table fills up with nulls is left out."""
    given = {key: value for key, value in expect(message, dict, "a message as an object").items() if value is not None}
    role = given.pop(columns.role, None)
    return {**given, "role": columns.roles.get(str(role), role), "content": given.get(columns.content)}


def _json(value: Json) -> Json:
    """A column that holds JSON as text, read."""
    if not isinstance(value, str):
        return value
    try:
        return parse(value.encode("utf-8", "surrogatepass"))
    except BadJson as error:
        raise Unusable(f"a column of JSON, got {error}") from None


def _texts(value: Json) -> list[str]:
    given = value if isinstance(value, list) else [value]
    return [str(text) for text in given if text is not None and str(text)]
