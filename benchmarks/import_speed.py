"""Time and memory of an import: a file of OpenAI chat requests into golden turns.

``python -m benchmarks.import_speed [GIGABYTES]`` (1): writes seeded conversations of one to eight turns, with system
prompts, tools and tool calls, into a temporary folder and imports them in a process of its own. Turns, seconds, MB of
the source a second, and that process's peak memory. Exit status 1 when it takes more than ``MOST_MB``.
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MOST_MB = 500
MOST_TURNS = 8
TOOL_SHARE = 0.3  # of the turns that call a tool before they answer
WORDS = [
    f"{first}{last}" for first in ("par", "or", "deli", "caf", "ship", "") for last in ("cel", "der", "é", "ing", "a")
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name} by its number",
            "parameters": {"type": "object", "properties": {"number": {"type": "integer"}, "city": {"type": "string"}}},
        },
    }
    for name in ("find_order", "price_of", "send_again", "weather")
]


def text(draw: random.Random, most: int) -> str:
    """Ten words to ``most``, and a number."""
    return " ".join(draw.choices(WORDS, k=draw.randint(10, most))) + f" {draw.randrange(10**6)}."


def messages(draw: random.Random) -> Iterator[dict[str, Any]]:
    """One conversation: perhaps a system prompt, then questions, calls with their results, and answers."""
    if draw.random() < 0.7:
        yield {"role": "system", "content": text(draw, 150)}
    for _ in range(draw.randint(1, MOST_TURNS)):
        yield {"role": "user", "content": text(draw, 80)}
        if draw.random() < TOOL_SHARE:
            call = f"call_{draw.randrange(16**12):012x}"
            name = draw.choice(TOOLS)["function"]["name"]
            arguments = json.dumps({"number": draw.randrange(10**6), "city": draw.choice(WORDS)})
            function = {"name": name, "arguments": arguments}
            yield {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": call, "type": "function", "function": function}],
            }
            yield {"role": "tool", "tool_call_id": call, "content": json.dumps({"found": text(draw, 60)})}
        yield {"role": "assistant", "content": text(draw, 150)}


def write(path: Path, size: int) -> int:
    """Conversations of at least ``size`` bytes, one a line. Returns the bytes written."""
    draw, written = random.Random(0), 0
    with path.open("wb") as stream:
        while written < size:
            record = {"messages": list(messages(draw)), "tools": TOOLS}
            written += stream.write(json.dumps(record).encode() + b"\n")
    return written


def main(gigabytes: float = 1.0) -> int:
    """Write, import, and tell."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = write(folder / "requests.jsonl", int(gigabytes * 1e9))
        command = [sys.executable, "-m", "kvquant_eval.cli.golden", "import", str(folder / "requests.jsonl")]
        options = ["--format", "openai", "--class", "faq", "--out", str(folder / "golden")]
        began = time.monotonic()
        subprocess.run([*command, *options], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        seconds = time.monotonic() - began
        memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        target = folder / "golden" / "faq" / "requests.jsonl"
        made = target.stat().st_size
        with target.open("rb") as stream:
            turns = sum(1 for _ in stream)
    print(
        f"{size / 1e6:.0f} MB: {turns} turns ({made / 1e6:.0f} MB), {seconds:.1f} s, "
        f"{size / 1e6 / seconds:.2f} MB/s, {memory:.0f} MB of memory"
    )
    return int(memory > MOST_MB)


if __name__ == "__main__":
    sys.exit(main(*map(float, sys.argv[1:2])))
