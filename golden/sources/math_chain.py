"""Golden turns of the class ``math_chain``: an agent keeps a running number, one step a turn or all in one reply.

Every step needs a number out of the context: the result before it, and an operand from the message, from the list of
quantities in the system prompt or from an earlier step. Most of the arithmetic has no carry, so that retrieval decides.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from golden.sources.common import Message, marked, turn
from golden.sources.math_settings import CHAIN_RULES, RULES, SETTINGS, Setting

WORKLOAD = "math_chain"
SEED = 4127
STEP_TOKENS = 40
CHAIN_TOKENS_PER_STEP = 24
STEPWISE_LENGTHS = (8, 8, 10, 10, 12, 12, 12, 14, 14, 14, 16, 16, 16, 16)
GOLDEN_PER_CONVERSATION = 4
CHAIN_LENGTHS = (4, 8, 12, 16, 4, 8, 12, 16)
GOLDEN_KINDS = ("given", "named", "given", "given", "operand", "given", "given", "double", "given", "result")
OTHER_KINDS = ("given", "named", "given", "named", "double")
CHAIN_KINDS = ("given", "named")
MAY_CARRY = ("double", "result")
SMALLEST, LARGEST = 100, 999
UPWARD = 0.75
ADDED = (*range(20, 70, 10), *(number for number in range(11, 56) if number % 10))
TAKEN = (*range(2, 9), 20, 100)
QUANTITIES = (12, 21, 23, 31, 34, 42, 45, 53)
CHAIN_EXAMPLE: tuple[Message, ...] = (
    {"role": "user", "content": "Opening number: 314\nStep 1: add 43.\nStep 2: add 20.\nStep 3: take 5."},
    {
        "role": "assistant",
        "content": "Step 1: 314 + 43 = 357\nStep 2: 357 + 20 = 377\nStep 3: 377 - 5 = 372\nAnswer: 372",
    },
)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step: the instruction as the user words it, its ``kind``, and the numbers of the golden line."""

    kind: str
    instruction: str
    left: int
    operator: str
    operand: int

    @property
    def result(self) -> int:
        """The running number after the step."""
        if self.operator == "*":
            return self.left * self.operand
        return self.left + self.operand if self.operator == "+" else self.left - self.operand

    @property
    def numbers(self) -> dict[str, Any]:
        """The step as the task scorer expects it."""
        return {"left": self.left, "operator": self.operator, "operand": self.operand, "result": self.result}


def turns() -> list[dict[str, Any]]:
    """All golden turns, in file order."""
    rng = random.Random(SEED)
    kinds = itertools.cycle(GOLDEN_KINDS)
    built: list[dict[str, Any]] = []
    for number, length in enumerate(STEPWISE_LENGTHS, start=1):
        built += _stepwise(rng, number, length, kinds)
    for number, length in enumerate(CHAIN_LENGTHS, start=1):
        built.append(_whole_chain(rng, number, length))
    return built


def _stepwise(rng: random.Random, number: int, length: int, kinds: Iterator[str]) -> list[dict[str, Any]]:
    """The golden turns of one conversation with one step a turn; turn 0 opens the books, turn N is step N."""
    setting = SETTINGS[number % len(SETTINGS)]
    quantities, opening = _quantities(rng, setting), _opening(rng)
    golden = {3 + (length - 3) * part // 3 for part in range(GOLDEN_PER_CONVERSATION)}
    history: list[Message] = [
        {"role": "system", "content": _system(RULES, setting, quantities)},
        {"role": "user", "content": f"Step 0: open with {opening} {setting.units}."},
        {"role": "assistant", "content": f"Step 0: opening = {opening}"},
    ]
    steps: list[Step] = []
    built: list[dict[str, Any]] = []
    for index in range(1, length + 1):
        kind = next(kinds) if index in golden else rng.choice(OTHER_KINDS)
        step = _draw(rng, setting, quantities, steps, steps[-1].result if steps else opening, kind)
        steps.append(step)
        history.append({"role": "user", "content": f"Step {index}: {step.instruction}."})
        content, decisive = marked(_line(index, step))
        reference = {"role": "assistant", "content": content}
        if index in golden:
            built.append(
                turn(
                    workload=WORKLOAD,
                    conversation=f"{setting.slug}-{number:02d}",
                    index=index,
                    messages=history,
                    reference=reference,
                    decisive=decisive,
                    expected={"steps": [step.numbers], "final": step.result},
                    max_tokens=STEP_TOKENS,
                    tags=["step", step.kind, f"steps-{length}"],
                )
            )
        history.append(reference)
    return built


def _whole_chain(rng: random.Random, number: int, length: int) -> dict[str, Any]:
    """One conversation whose only reply is the whole chain."""
    setting = SETTINGS[number % len(SETTINGS)]
    quantities, opening = _quantities(rng, setting), _opening(rng)
    steps: list[Step] = []
    for _ in range(length):
        left = steps[-1].result if steps else opening
        steps.append(_draw(rng, setting, quantities, steps, left, rng.choice(CHAIN_KINDS)))
    tasks = "\n".join(f"Step {index}: {step.instruction}." for index, step in enumerate(steps, start=1))
    lines = [_line(index, step) for index, step in enumerate(steps, start=1)]
    decided = {length // 2 - 1, length - 1}
    lines = [line if index in decided else marked(line)[0] for index, line in enumerate(lines)]
    content, decisive = marked("\n".join([*lines, f"Answer: [[{steps[-1].result}]]"]))
    return turn(
        workload=WORKLOAD,
        conversation=f"{setting.slug}-chain-{number:02d}",
        index=0,
        messages=[
            {"role": "system", "content": _system(CHAIN_RULES, setting, quantities)},
            *CHAIN_EXAMPLE,
            {"role": "user", "content": f"Opening number: {opening}\n{tasks}"},
        ],
        reference={"role": "assistant", "content": content},
        decisive=decisive,
        expected={"steps": [step.numbers for step in steps], "final": steps[-1].result},
        max_tokens=CHAIN_TOKENS_PER_STEP * length,
        tags=["chain", f"steps-{length}"],
    )


def _line(index: int, step: Step) -> str:
    """The golden line of a step with its decisive parts marked."""
    return f"Step {index}: [[{step.left}]] [[{step.operator} {step.operand}]] = [[{step.result}]]"


def _system(rules: str, setting: Setting, quantities: dict[str, int]) -> str:
    listed = "\n".join(f"- one {name} = {size} {setting.units}" for name, size in quantities.items())
    verbs = f'"{setting.add}" adds, "{setting.take}" subtracts.'
    return f"{rules}\n\nThe number is {setting.place}; {verbs} Quantities:\n{listed}"


def _quantities(rng: random.Random, setting: Setting) -> dict[str, int]:
    """A size for every named quantity, no two alike."""
    return dict(zip(setting.quantities, rng.sample(QUANTITIES, len(setting.quantities)), strict=True))


def _opening(rng: random.Random) -> int:
    return int(rng.choice("234") + rng.choice("1234") + rng.choice("123456"))


def _draw(
    rng: random.Random, setting: Setting, quantities: dict[str, int], steps: Sequence[Step], left: int, kind: str
) -> Step:
    """A random step of ``kind`` from ``left`` on; a step with a given number where none of that kind fits."""
    for wanted in (kind, "given"):
        choices = [step for step in _choices(setting, quantities, steps, left, wanted) if _fits(step)]
        upward = [step for step in choices if step.operator != "-"]
        if choices:
            return rng.choice(upward if upward and rng.random() < UPWARD else choices)
    raise ValueError(f"no step leads on from {left}")


def _choices(
    setting: Setting, quantities: dict[str, int], steps: Sequence[Step], left: int, kind: str
) -> Iterator[Step]:
    """Every step of ``kind`` from ``left`` on, whether or not it fits."""
    if kind == "double":
        yield Step(kind=kind, instruction=setting.double, left=left, operator="*", operand=2)
        return
    for operator, verb, given in (("+", setting.add, ADDED), ("-", setting.take, TAKEN)):
        for words, operand in _operands(setting, quantities, steps, given, kind):
            yield Step(kind=kind, instruction=f"{verb} {words}", left=left, operator=operator, operand=operand)


def _operands(
    setting: Setting, quantities: dict[str, int], steps: Sequence[Step], given: Sequence[int], kind: str
) -> list[tuple[str, int]]:
    """The operands of ``kind``, each with the words that lead to it."""
    earlier = list(enumerate(steps[:-1], start=1))
    if kind == "named":
        return [(f"one {name}", size) for name, size in quantities.items()]
    if kind == "operand":
        return [(f"the operand of step {number}", step.operand) for number, step in earlier]
    if kind == "result":
        return [(f"the result of step {number}", step.result) for number, step in earlier]
    return [(f"{number} {setting.units}", number) for number in given]


def _fits(step: Step) -> bool:
    """Whether the result stays in range and, but for the rare kinds, comes about without carry and borrow."""
    if not SMALLEST <= step.result <= LARGEST:
        return False
    if step.kind in MAY_CARRY:
        return True
    pairs = [(int(a), int(b)) for a, b in zip(reversed(str(step.left)), reversed(str(step.operand)), strict=False)]
    return all(a + b < 10 if step.operator == "+" else a >= b for a, b in pairs)
