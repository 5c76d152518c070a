"""Golden turns of the class ``coding``: a coding agent that edits short functions in the words of its project.

``coding.yaml`` holds the hand-written part: the projects, the conversations, and per turn what the code must define
and which tests it must pass.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from golden.sources.common import marked, turn

WORKLOAD = "coding"
MAX_TOKENS = 160
_SOURCE = Path(__file__).with_suffix(".yaml")


def turns() -> list[dict[str, Any]]:
    """Expand ``coding.yaml`` into turn dicts, in file order."""
    source = yaml.safe_load(_SOURCE.read_text(encoding="utf-8"))
    built: list[dict[str, Any]] = []
    for conversation in source["conversations"]:
        project = source["projects"][conversation["project"]]
        setup = source["setup"] + project["setup"]
        built += _conversation(conversation, _system_prompt(project, source["rules"]), setup)
    return built


def _system_prompt(project: dict[str, Any], rules: str) -> str:
    """The project, the rules all projects share, and the project's conventions, one a line."""
    conventions = "\n".join(f"- {convention}" for convention in project["conventions"])
    return f"You are a coding agent in {project['name']}. {rules.strip()}\n\nConventions:\n{conventions}"


def _fenced(code: str) -> str:
    """``code`` as a Markdown block."""
    return f"```python\n{code.rstrip()}\n```"


def _request(exchange: dict[str, Any]) -> str:
    """What the user writes: the task, then the pasted code if there is any."""
    return f"{exchange['user']}\n\n{_fenced(exchange['paste'])}" if "paste" in exchange else exchange["user"]


def _conversation(conversation: dict[str, Any], system: str, setup: str) -> list[dict[str, Any]]:
    """The turns of one conversation; each sees the golden code before it.

    Its tests find the other functions of that code, but not an older version of its own: that one would pass some.
    """
    history: list[dict[str, str]] = [{"role": "system", "content": system}]
    built: list[dict[str, Any]] = []
    earlier: dict[str, str] = {}
    for index, exchange in enumerate(conversation["turns"]):
        history.append({"role": "user", "content": _request(exchange)})
        reply, decisive = marked(_fenced(exchange["code"]))
        reference = {"role": "assistant", "content": reply}
        others = [code for name, code in earlier.items() if name != exchange["function"]]
        expected = {key: exchange[key] for key in ("function", "parameters", "uses")}
        built.append(
            turn(
                workload=WORKLOAD,
                conversation=conversation["id"],
                index=index,
                messages=history,
                reference=reference,
                decisive=decisive,
                expected={
                    **expected,
                    "setup": "".join([setup, *others]),
                    "tests": [test.strip() for test in exchange["tests"]],
                },
                max_tokens=MAX_TOKENS,
                tags=[conversation["project"], exchange["kind"]],
            )
        )
        history.append(reference)
        earlier[exchange["function"]] = marked(exchange["code"])[0]
    return built
