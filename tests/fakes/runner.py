"""GitHub's runner, as far as it reads what a step prints (actions/runner, ``ActionCommand`` and its manager)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote

V2 = re.compile(r"::([^\s:]+)(?: ([^:]*))?::(.*)")
V1 = re.compile(r"##\[([^\s\]]+)(?: ([^\]]*))?\](.*)")


def executed(output: str) -> list[tuple[str, str, str]]:
    """The commands that the runner would carry out: (command, its title, its message), unescaped."""
    token, found = "", []
    for line in output.split("\n"):
        match = V2.match(line.strip()) or V1.search(line)
        if match is None:
            continue
        command, properties, message = match[1], match[2] or "", match[3]
        if token:
            token = "" if command == token else token
        elif command == "stop-commands":
            token = message
        else:
            found.append((command, unquote(properties.removeprefix("title=")), unquote(message)))
    return found


def outputs(lines: Iterable[str]) -> dict[str, str]:
    """What a file of ``name<<mark`` blocks or ``name=value`` lines sets; the last value of a name stands."""
    found, rest = {}, iter(lines)
    for line in rest:
        name, mark = re.match(r"([\w-]+)(?:<<(.*))?", line).groups()  # type: ignore[union-attr]
        if mark is None:
            found[name] = line.partition("=")[2]
            continue
        value = []
        while (each := next(rest)) != mark:
            value.append(each)
        found[name] = "\n".join(value)
    return found
