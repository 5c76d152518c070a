"""What a reasoning model says is what stands outside of its think blocks."""

from __future__ import annotations

import re

_TAG = re.compile(r"<(?P<close>/?)think>|\[(?P<shut>/?)THINK\]")


def said(text: str) -> str | None:
    """``text`` without its think blocks, ``<think>`` and ``[THINK]``; None where it ends inside one.

    A first closing tag without an opening one closes a block that the chat template opened in the prompt; a later one
    is only dropped. Blocks are not nested.
    """
    kept: list[str] = []
    since, inside, blocks = 0, False, 0
    for tag in _TAG.finditer(text):
        closes = bool(tag["close"] or tag["shut"])
        if closes and not inside and not blocks:
            kept.clear()
        elif not inside:
            kept.append(text[since : tag.start()])
        blocks += closes
        inside, since = not closes, tag.end()
    return None if inside else "".join([*kept, text[since:]])
