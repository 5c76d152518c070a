"""JSON values, and small changes to a JSON document that mostly leave it one."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st

WORDS = ("role", "content", "tool_calls", "tool_call_id", "id", "function", "name", "arguments", "text", "nth", "type")
ODD = ("", "x" * 300, "\x1b[2J", "a\nb", "\u202e", "\x00", "../../x", "{}", '{"a": NaN}', "[", "null", "%s", ".", "é")
BYTES = (b'"', b"{", b"]", b"\r\n", b"\n", b"\\ud800", b"NaN", b"1e999", b"\xef\xbb\xbf")
Path = tuple[str | int, ...]

text = st.sampled_from((*WORDS, *ODD, "user", "assistant", "tool", "call_0", "0" * 64)) | st.text(max_size=8)
numbers = st.sampled_from((-1, 0, 1, 2**31, 2**63, 10**40, 1e300)) | st.integers() | st.floats(allow_nan=False)
scalars = st.none() | st.booleans() | numbers | text
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3), max_leaves=6
)


def paths(value: Any, here: Path = ()) -> list[Path]:
    """Where every value inside ``value`` stands."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path for key, inner in items for path in ((*here, key), *paths(inner, (*here, key)))]


@st.composite
def changed(draw: st.DrawFn, document: Any) -> Any:
    """The document with one value replaced, removed, doubled, wrapped, renamed or put in another place."""
    made = copy.deepcopy(document)
    places = paths(made)
    if not places:
        return draw(values)
    *way, key = draw(st.sampled_from(places))
    outer = made
    for step in way:
        outer = outer[step]
    inner = outer[key]
    match draw(st.sampled_from(("replace", "remove", "add", "wrap", "rename", "move"))):
        case "replace":
            outer[key] = draw(values)
        case "remove":
            del outer[key]
        case "add" if isinstance(outer, list):
            outer.insert(key, draw(st.just(inner) | values))
        case "add":
            outer[draw(text)] = draw(values)
        case "wrap":
            outer[key] = draw(st.sampled_from(([inner], {"content": inner}, [inner, inner], str(inner))))
        case "rename" if isinstance(outer, dict):
            outer[draw(text)] = outer.pop(key)
        case _:
            *other, last = draw(st.sampled_from(places))
            outer[key] = copy.deepcopy(_at(document, (*other, last)))
    return made


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """The bytes with a few of them changed, cut out or put in."""
    made = bytearray(data)
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(made)))
        end = start + draw(st.integers(0, 3))
        made[start:end] = draw(st.binary(max_size=3) | st.sampled_from(BYTES))
    return bytes(made)


def _at(value: Any, path: Path) -> Any:
    for step in path:
        value = value[step]
    return value
