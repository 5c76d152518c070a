"""Golden sets that cannot be used. Each starts from a good set of two classes; line 7 of the faq turns is broken."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kvquant_eval.io.golden import LONGEST_LINE, pin
from kvquant_eval.io.golden.manifest import LARGEST_MANIFEST, MANIFEST
from tests.bad_input.case import Case
from tests.fakes.gate import write_golden

Change = Callable[[Path], object]
"""Breaks the set in the folder."""

CALL = {"id": "call_1", "type": "function", "function": {"name": "price", "arguments": '{"item": 3}'}}
USER, CALLING = {"role": "user", "content": "hello"}, {"role": "assistant", "content": None, "tool_calls": [CALL]}
PICTURE = [{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}]
SEVENTH = 6


def _gate(folder: Path) -> Sequence[str]:
    paths = [f"golden.path={folder}/golden", f"runs_dir={folder}/runs", f"cache_dir={folder}/cache"]
    return ["gate", *paths, "tracking=none", "workload=[math_chain,faq]", "gate.hardest=math_chain"]


def _lines(change: Callable[[list[bytes]], list[bytes]]) -> Change:
    """Other lines in the file of the faq turns."""

    def apply(golden: Path) -> None:
        file = golden / "faq" / "turns.jsonl"
        file.write_bytes(b"".join(change(file.read_bytes().splitlines(keepends=True))))

    return apply


def _seventh(change: Callable[[bytes], bytes]) -> Change:
    return _lines(lambda lines: [*lines[:SEVENTH], change(lines[SEVENTH]), *lines[SEVENTH + 1 :]])


def _turn(**changes: Any) -> Change:
    """Other fields in the turn of line 7."""
    return _seventh(lambda line: json.dumps(json.loads(line) | changes).encode() + b"\n")


def _manifest(change: Callable[[Any], object]) -> Change:
    def apply(golden: Path) -> None:
        data = json.loads((golden / MANIFEST).read_text())
        change(data)
        (golden / MANIFEST).write_text(json.dumps(data))

    return apply


def _entry(**changes: Any) -> Change:
    """Other values in the manifest's entry of the faq turns."""
    return _manifest(lambda data: data["files"]["faq/turns.jsonl"].update(changes))


def _renamed(name: str) -> Change:
    """The manifest has the faq turns under another name."""
    return _manifest(lambda data: data["files"].update({name: data["files"].pop("faq/turns.jsonl")}))


def _changed_file(golden: Path) -> None:
    (golden / "faq" / "turns.jsonl").write_text("changed\n")
    _entry(sha256="0" * 64)(golden)


def _linked(golden: Path) -> None:
    outside = golden.parent / "outside.jsonl"
    (golden / "faq" / "turns.jsonl").rename(outside)
    (golden / "faq" / "turns.jsonl").symlink_to(outside)


def _linked_twice(golden: Path) -> None:
    (golden / "faq" / "link.jsonl").symlink_to("turns.jsonl")
    _manifest(lambda data: data["files"].update({"faq/link.jsonl": data["files"]["faq/turns.jsonl"]}))(golden)


def _case(what: str, change: Change, line: str, *, pinned: bool = True) -> Case:
    """``pinned``: the changed files are pinned again, so that only their content is wrong."""

    def make(folder: Path) -> Sequence[str]:
        golden = write_golden(folder / "golden")
        change(golden)
        if pinned:
            (golden / MANIFEST).write_text(json.dumps(pin(golden, "fake", "v1", {})))
        return _gate(folder)

    return Case(what=what, make=make, line=line)


def _in_file(what: str, change: Change, line: str) -> Case:
    return _case(what, change, "{folder}/golden/faq/turns.jsonl" + line)


def _in_turn(what: str, line: str, **changes: Any) -> Case:
    return _in_file(what, _turn(**changes), f":7: faq-03/0: {line}")


def _in_manifest(what: str, change: Change, line: str) -> Case:
    return _case(what, change, "{folder}/golden/MANIFEST.json: " + line, pinned=False)


FILES = (
    _in_file(
        "a line cut in the middle",
        _seventh(lambda line: b'{"turn_id": "faq-\n'),
        ":7:13: JSON, got Unterminated string; correct the line",
    ),
    _in_file(
        "a comma too few",
        _seventh(lambda line: line.replace(b", ", b" ", 1)),
        ":7:24: JSON, got Expecting ',' delimiter; correct the line",
    ),
    _in_file(
        "NaN",
        _seventh(lambda line: b'{"turn_id": "faq-03/0", "turn_index": NaN}\n'),
        ":7:39: JSON, got NaN; correct the line",
    ),
    _in_file(
        "a key twice in one object",
        _seventh(lambda line: line.replace(b'"turn_index": 0', b'"turn_index": 0, "turn_index": 1')),
        ":7: JSON, got the key 'turn_index' twice in one object; correct the line",
    ),
    _in_file(
        "text in Latin-1",
        _seventh(lambda line: '{"turn_id": "café"}\n'.encode("latin-1")),
        ":7:17: JSON, got the byte 0xe9, which is no UTF-8; correct the line",
    ),
    _in_file(
        "half a surrogate pair",
        _seventh(lambda line: line.replace(b"What", b"\\ud83d")),
        ":7: JSON, got half a surrogate pair; correct the line",
    ),
    _in_file(
        "over 100 levels of lists",
        _seventh(lambda line: b"[" * 101 + b"]" * 101 + b"\n"),
        ":7: JSON, got more than 100 levels; correct the line",
    ),
    _in_file(
        "a byte order mark",
        _lines(lambda lines: [b"\xef\xbb\xbf", *lines]),
        ":1:1: JSON, got a byte order mark; correct the line",
    ),
    _in_file(
        "Windows line ends",
        _lines(lambda lines: [line.replace(b"\n", b"\r\n") for line in lines]),
        ":1: lines that end in LF, got CR LF; convert the file",
    ),
    _in_file(
        "an empty line",
        _lines(lambda lines: [*lines[:SEVENTH], b"\n", *lines[SEVENTH:]]),
        ":7: a turn on every line, got an empty line; remove it",
    ),
    _in_file(
        "a line of over 32 MiB",
        _seventh(lambda line: b"x" * (LONGEST_LINE + 1)),
        ":7: lines of at most 32 MiB, got a longer one; shorten the turn",
    ),
    _in_file(
        "a file without turns",
        _lines(lambda lines: []),
        ": at least one turn, got an empty file; add turns, or remove it from the set",
    ),
    _case(
        "a file that is gone",
        lambda golden: (golden / "faq" / "turns.jsonl").unlink(),
        "{folder}/golden/faq/turns.jsonl: a readable file, got No such file or directory; restore it",
        pinned=False,
    ),
    _case(
        "a file changed after it was pinned",
        _changed_file,
        "{folder}/golden/faq/turns.jsonl: the pinned sha256 000000000000, got 7f8b1dfc466b; "
        "golden turns are immutable: restore the file, or pin a new version",
        pinned=False,
    ),
)

TURNS = (
    _in_file(
        "a misspelt field",
        _turn(decisve=[]),
        ":7: decisve: a known key, got 'decisve'; did you mean 'decisive'?",
    ),
    _in_file(
        "a number in quotes",
        _turn(turn_index="0"),
        ":7: turn_index: Input should be a valid integer, got '0'",
    ),
    _in_file(
        "a turn id twice",
        _turn(turn_id="math_chain-03/1"),
        ":7: turn ids must be unique, got 'math_chain-03/1' 2 times, "
        "first in {folder}/golden/math_chain/turns.jsonl:8; rename one",
    ),
    _in_file(
        "two turns at one place of a conversation",
        _turn(turn_index=1),
        ":8: faq-03/1: one turn at each turn_index of a conversation, got 1 of 'faq-03' 2 times, "
        "first in {folder}/golden/faq/turns.jsonl:7; correct one",
    ),
    _in_file(
        "a turn of another class",
        _turn(workload="math_chain"),
        ":7: workload 'faq', got 'math_chain'; move the turn",
    ),
    _in_file(
        "a turn id that clears the screen",
        _turn(turn_id="\x1b[2J"),
        r":7: turn_id: 1 to 200 printable characters, got '\x1b[2J'; rename it",
    ),
    _in_turn(
        "a negative turn index",
        "turn_index: a number from 0 to 1000000000, got '-1'; correct it",
        turn_index=-1,
    ),
    _in_turn(
        "a reply of no token",
        "max_tokens: a number from 1 to 1000000000, got '0'; correct it",
        max_tokens=0,
    ),
    _in_turn(
        "an empty decisive span",
        "decisive.0.text: a part of the reply, got ''; write what decides, or remove the span",
        decisive=[{"text": ""}],
    ),
    _in_turn(
        "no messages",
        "messages: at least one message, got none; add what comes before the reply",
        messages=[],
    ),
    _in_turn(
        "an unknown role",
        "messages.0.role: one of system, developer, user, assistant, tool, got 'human'; correct it",
        messages=[{"role": "human", "content": "hello"}],
    ),
    _in_turn(
        "a picture",
        "messages.0.content: a string, got a list of parts; join its text, a picture cannot be replayed",
        messages=[{"role": "user", "content": PICTURE}],
    ),
    _in_turn(
        "a reference by the user",
        "reference.role: 'assistant', got 'user'; correct it",
        reference={"role": "user", "content": "hello"},
    ),
    _in_turn(
        "a reference that says nothing",
        "reference: content or tool_calls, got neither; add the golden reply",
        reference={"role": "assistant", "content": ""},
    ),
    _in_turn(
        "a tool call without its result",
        "messages.1.tool_calls: a tool result for every call, got none for 'call_1'; add the tool message",
        messages=[USER, CALLING, USER],
    ),
    _in_turn(
        "a tool result without its call",
        "messages.2: a tool result of a call before it, got 'call_2'; add the call",
        messages=[USER, CALLING, {"role": "tool", "tool_call_id": "call_2", "content": "3.10"}],
    ),
    _in_turn(
        "tool arguments that are no JSON",
        "reference.tool_calls.0.function.arguments: a JSON object, got Expecting value at line 1, column 1; correct it",
        reference={"role": "assistant", "tool_calls": [{"function": {"name": "price", "arguments": "item=3"}}]},
    ),
    _in_turn(
        "a tool of another kind",
        "tools.0.type: 'function', got 'custom'; no other kind can be replayed",
        tools=[{"type": "custom", "function": {"name": "price"}}],
    ),
    _in_turn(
        "an answer where a list of answers is due",
        "expected: answers: Input should be a valid tuple, got '10.00'; correct it",
        expected={"answers": "10.00"},
    ),
    _in_turn(
        "an accepted value where a list of them is due",
        "expected: calls.0.accept.item: Input should be a valid tuple, got '3'; correct it",
        expected={"calls": [{"name": "price", "arguments": {"item": 3}, "accept": {"item": "3"}}]},
    ),
    _in_turn(
        "a pattern that looks ahead",
        "expected.regex: a pattern that compiles, of at most 1000 characters, without look-around or references, "
        "got look-around, including look-ahead and look-behind, is not supported; simplify it",
        expected={"regex": "^(?=.*yes)"},
    ),
    _in_turn(
        "a hidden test that is no Python",
        "expected.tests.1: statements of Python, got \"'(' was never closed in line 1\"; correct them",
        expected={"tests": ["assert total([2]) == 2", "assert total("]},
    ),
    _in_turn(
        "a hidden test that tests nothing",
        "expected.tests.0: statements of Python, got 'nothing that does anything'; correct them",
        expected={"tests": ["# total of nothing"]},
    ),
    _in_turn(
        "a schema that refers to another file",
        "expected.json_schema: a plain schema of draft 2020-12, got a reference to 'order.json'; simplify it",
        expected={"json_schema": {"$ref": "order.json"}},
    ),
)

MANIFESTS = (
    _case(
        "a folder without a manifest",
        lambda golden: (golden / MANIFEST).unlink(),
        "golden.path: a folder with a MANIFEST.json, got {folder}/golden; correct the path",
        pinned=False,
    ),
    _case(
        "a class without turns",
        _manifest(lambda data: data["files"].pop("faq/turns.jsonl")),
        "golden: turns for every workload class, got none for 'faq' in {folder}/golden; the set has math_chain",
        pinned=False,
    ),
    _in_manifest(
        "a manifest that is no JSON",
        lambda golden: (golden / MANIFEST).write_text('{"name": "fake",\n "version": v1}'),
        "a manifest in JSON, got Expecting value at line 2, column 13; restore it",
    ),
    _in_manifest(
        "a manifest in UTF-16",
        lambda golden: (golden / MANIFEST).write_bytes("{}".encode("utf-16")),
        "a manifest in JSON, got the byte 0xff, which is no UTF-8 at line 1, column 1; restore it",
    ),
    _in_manifest(
        "a manifest of over 16 MiB",
        lambda golden: (golden / MANIFEST).write_bytes(b" " * (LARGEST_MANIFEST + 1)),
        "a manifest of at most 16 MiB, got a larger one; restore it",
    ),
    _in_manifest(
        "a list for a manifest",
        lambda golden: (golden / MANIFEST).write_text("[]"),
        "a manifest with name, version and files, got '[]'; restore it",
    ),
    _in_manifest(
        "a manifest without a version",
        _manifest(lambda data: data.pop("version")),
        "a manifest with name, version and files, got no version; restore it",
    ),
    _in_manifest(
        "a wrong count of turns",
        _entry(turns=19),
        "faq/turns.jsonl: turns: 20, got 19; pin the set again",
    ),
    _in_manifest(
        "a hash cut short",
        _entry(sha256="98cd9a5cf8b5"),
        "faq/turns.jsonl: sha256: 64 hex digits in lower case, got '98cd9a5cf8b5'; restore it",
    ),
    _in_manifest(
        "a class that is a path",
        _entry(workload="../../x"),
        "faq/turns.jsonl: workload: letters, digits, _ . and -, no dot first, got '../../x'; rename the class",
    ),
    _in_manifest(
        "a file outside the folder",
        _renamed("../outside.jsonl"),
        "files inside the golden folder, got '../outside.jsonl'; remove the entry",
    ),
    _in_manifest(
        "an absolute path",
        _renamed("/etc/passwd"),
        "files inside the golden folder, got '/etc/passwd'; remove the entry",
    ),
    _in_manifest(
        "a link that leads out of the folder",
        _linked,
        "files inside the golden folder, got 'faq/turns.jsonl'; remove the entry",
    ),
    _in_manifest(
        "a file under two names",
        _linked_twice,
        "every file once, got it as 'faq/turns.jsonl' and 'faq/link.jsonl'; remove one",
    ),
)

CASES: tuple[Case, ...] = (*FILES, *TURNS, *MANIFESTS)
