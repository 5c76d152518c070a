"""What stands on the pages of a PDF that Chromium printed."""

from __future__ import annotations

import re
import unicodedata
import zlib


def page_texts(pdf: bytes) -> list[str]:
    """The text of each page, in the order in which it was drawn, without spaces."""
    objects = {int(n): body for n, body in re.findall(rb"(?:^|\n)(\d+) 0 obj\n(.*?)\nendobj", pdf, re.DOTALL)}
    pages = [body for body in objects.values() if re.search(rb"/Type /Page\b", body)]
    return [_text(page, objects) for page in pages]


def _text(page: bytes, objects: dict[int, bytes]) -> str:
    contents, fonts = re.search(rb"/Contents (\d+) 0 R", page), re.search(rb"/Font <<(.*?)>>", page, re.DOTALL)
    assert contents
    found = re.findall(rb"/(F\d+) (\d+) 0 R", fonts[1]) if fonts else []
    letters = {name: _letters(objects[int(number)], objects) for name, number in found}
    text, font = "", b""
    for name, glyphs in re.findall(rb"/(F\d+) [\d.]+ Tf|<([0-9A-Fa-f]+)>", _stream(objects[int(contents[1])])):
        font = name or font
        codes = [int(glyphs[at : at + 4], 16) for at in range(0, len(glyphs), 4)]
        text += "".join(letters.get(font, {}).get(code, "") for code in codes)
    return "".join(unicodedata.normalize("NFKC", text).split())


def _letters(font: bytes, objects: dict[int, bytes]) -> dict[int, str]:
    """What each glyph of a font stands for."""
    number = re.search(rb"/ToUnicode (\d+) 0 R", font)
    table = _stream(objects[int(number[1])]).decode("latin-1") if number else ""
    found: dict[int, str] = {}
    for part in re.findall(r"beginbfchar\n(.*?)endbfchar", table, re.DOTALL):
        for glyph, letter in re.findall(r"<(\w+)> <(\w+)>", part):
            found[int(glyph, 16)] = bytes.fromhex(letter).decode("utf-16-be")
    for part in re.findall(r"beginbfrange\n(.*?)endbfrange", table, re.DOTALL):
        for first, last, letter in re.findall(r"<(\w+)> <(\w+)> <(\w+)>", part):
            for glyph in range(int(first, 16), int(last, 16) + 1):
                found[glyph] = chr(int(letter, 16) + glyph - int(first, 16))
    return found


def _stream(body: bytes) -> bytes:
    data = body.partition(b"stream\n")[2].rpartition(b"\nendstream")[0]
    return zlib.decompress(data) if b"/FlateDecode" in body else data
