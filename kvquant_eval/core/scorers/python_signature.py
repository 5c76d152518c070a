"""Code replies: does the Python parse, is the function the one asked for, does it use what the context gave? Never
run.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from kvquant_eval.core.python_code import UNPARSEABLE, code_of, parsed
from kvquant_eval.core.records import GoldenTurn, Measure, RenderedTurn, Replay
from kvquant_eval.core.score import Score


@dataclass(frozen=True)
class PythonSignature:
    """A quarter of the points each: it parses; it defines ``expected.function``; with ``expected.parameters``; the
    share of ``expected.uses`` (identifiers from the context) that occur in it.
    """

    measure: Measure = Measure.GENERATED

    def __call__(self, replay: Replay, turn: GoldenTurn, rendered: RenderedTurn) -> Score | None:
        name = turn.expected.get("function")
        if not name:
            return None
        try:
            tree = parsed(code_of(replay.text))
        except UNPARSEABLE as error:
            return Score(0.0, f"does not parse: {error}", parseable=False)
        defined = {
            node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        if name not in defined:
            return Score(25.0, f"no function {name}")
        arguments = defined[name].args
        parameters = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        same = parameters == list(turn.expected.get("parameters", []))
        uses = turn.expected.get("uses", [])
        missing = sorted(set(uses) - _identifiers(tree))
        used = 1 - len(missing) / len(set(uses)) if uses else 1.0
        notes = [] if same else [f"parameters {parameters}"]
        notes += [f"does not use {', '.join(missing)}"] if missing else []
        return Score(50.0 + 25.0 * same + 25.0 * used, "; ".join(notes) or "as asked")


def _identifiers(tree: ast.AST) -> set[str]:
    """Names, attributes, functions, classes, parameters, imported names and string constants of the code."""
    found: set[str] = set()
    for node in ast.walk(tree):
        for field in ("id", "attr", "name", "arg", "value", "module"):
            if isinstance(text := getattr(node, field, None), str):
                found.add(text)
    return found
