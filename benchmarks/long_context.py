"""Three turns of more than 100,000 tokens through every stage: nothing is cut, and the parent's memory stays flat.

``python -m benchmarks.long_context [folder]``: gates a random two-layer model with a context of 131,072 tokens on real
vLLM, once over a conversation of three turns that share a document of 100,000 tokens and once over three short turns;
then checks the stored replays and prints seconds an arm and the parent's memory. Times are of this machine, at this
moment. Exit status 1 when a check fails.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvquant_eval.core.records import Measure, Prepared
from kvquant_eval.io.golden import MANIFEST, pin
from kvquant_eval.io.runfolder import RunFolder
from tests.fakes.fp8 import E4M3
from tests.fakes.model import write_model

CONTEXT = 131_072
LONG, SHORT = 100_000, 20  # tokens that each prompt has at least
TOKENS_A_LINE = 21  # at least
TURNS = 3
BYTES_A_TOKEN = 200  # of prompt, that the parent may take more; a token id and its place in a list are 36
REPLY = "7" * 24  # the model repeats its last token, so this has a likelihood
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
ENGINE = {
    "max_model_len": CONTEXT,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 8192,
    "kv_cache_memory_bytes": 256 << 20,
}
POLICY = ("gate.hardest=long_context", "gate.min_turns=3", "gate.min_headroom=3", "gate.allow_underpowered=true")


@dataclass(frozen=True)
class Sample:
    """The gate's own process at one moment: what it does, and its resident memory in MB, now and at most so far."""

    phase: str
    now: float
    peak: float


def document(tokens: int) -> str:
    """Lines of a log, at least ``tokens`` tokens in all."""
    lines = range(tokens // TOKENS_A_LINE + 1)
    return "\n".join(f"Entry {n:06}: the lamp of room {n * 7919 % 10000:04} is amber." for n in lines)


def conversation(tokens: int) -> Iterator[dict[str, Any]]:
    """Golden turns of one conversation; each asks one thing more about the same document."""
    messages = [{"role": "user", "content": document(tokens)}]
    reference = {"role": "assistant", "content": REPLY}
    for index in range(TURNS):
        messages = [*messages, {"role": "user", "content": f"What is code {index}?"}]
        yield {
            "turn_id": f"long/{index}",
            "workload": "long_context",
            "conversation_id": "long",
            "turn_index": index,
            "messages": messages,
            "reference": reference,
            "decisive": [{"text": REPLY[:8], "nth": 1}],
            "expected": {"needle": [REPLY]},
            "max_tokens": 16,
        }
        messages = [*messages, reference]


def write_golden(folder: Path, tokens: int) -> Path:
    """A pinned golden set of one conversation about a document of ``tokens`` tokens."""
    turns = folder / "long_context" / "turns.jsonl"
    turns.parent.mkdir(parents=True)
    turns.write_text("".join(json.dumps(turn) + "\n" for turn in conversation(tokens)))
    (folder / MANIFEST).write_text(json.dumps(pin(folder, "long-context", "v1", {})))
    return folder


def gate(model: Path, golden: Path, runs: Path) -> tuple[RunFolder, list[Sample]]:
    """Run the gate as a user does, and watch its process. Raises SystemExit when it ends without a decision."""
    arguments = [
        *("model=folder", "model.id=random/two-layers", f"model.path={model}", f"golden.path={golden}"),
        *("workload=[long_context]", f"kv=[{E4M3}]", f"runs_dir={runs}", "tracking=none", *POLICY),
        *(f"engine.args.{name}={value}" for name, value in ENGINE.items()),
    ]
    process = subprocess.Popen([sys.executable, "-m", "kvquant_eval.cli.main", "gate", *arguments])
    samples = []
    while process.poll() is None:
        samples += [Sample(_phase(runs), *memory) for memory in _memory(process.pid)]
        time.sleep(0.2)
    decided = list(runs.glob("*/decision.json"))
    if not decided:
        raise SystemExit(f"the gate ended with status {process.returncode} and no decision")
    return RunFolder(decided[0].parent), samples


def _phase(runs: Path) -> str:
    """What the run folder shows: the plan, then how many blocks the arms have committed."""
    if not list(runs.glob("*/plan.jsonl")):
        return "start, prepare"
    return f"{sum(path.stat().st_size > 10_000 for path in runs.glob('*/arms/*/replays.jsonl'))} blocks committed"


def _memory(pid: int) -> Iterator[tuple[float, float]]:
    """(VmRSS, VmHWM) in MB; nothing of a process that has just ended."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = {
        name: int(rest.split()[0]) / 1024 for name, _, rest in (line.partition(":") for line in lines) if "kB" in rest
    }
    if "VmRSS" in found:
        yield found["VmRSS"], found["VmHWM"]


def check(run: RunFolder, least: int) -> Iterator[str]:
    """What is wrong with the run: turns cut or skipped, replies that are not the golden ones."""
    plan, decision = run.plan(), json.loads((run.path / "decision.json").read_text())
    if len(plan.turns) != TURNS or any(turn.skip for turn in plan.turns) or decision["golden"]["n_skipped"]:
        yield "a turn was skipped"
    if any(not least < len(turn.prompt_ids) <= CONTEXT for turn in plan.turns):
        yield f"prompts of {[len(turn.prompt_ids) for turn in plan.turns]} tokens"
    for name in decision["arms"]:
        yield from (f"{name}: {problem}" for problem in _check_arm(run, name, plan))
    for name in ("turns.parquet", "deltas.parquet", "fidelity.parquet", "report.md", "report.html", "junit.xml"):
        if not (run.path / name).is_file():
            yield f"no {name}"


def _check_arm(run: RunFolder, name: str, plan: Prepared) -> Iterator[str]:
    """Prompts whole, golden replies forced; what vLLM took from its prefix cache shows that it held whole prompts."""
    turns, replays = {turn.turn_id: turn for turn in plan.turns}, run.arm(name).replays()
    if len(replays) != 2 * TURNS:
        yield f"{len(replays)} replays of {2 * TURNS}"
    for replay in replays:
        turn, forced = turns[replay.turn_id], replay.measure is Measure.FORCED
        if replay.error or not replay.outcome.scored:
            yield f"{replay.turn_id}: {replay.outcome} {replay.error}"
        if replay.prompt_tokens != len(turn.prompt_ids):
            yield f"{replay.turn_id}: {replay.prompt_tokens} of {len(turn.prompt_ids)} prompt tokens"
        if forced and replay.token_ids != turn.golden_ids:
            yield f"{replay.turn_id}: not the golden reply"
        if not forced and replay.cached_tokens < len(turn.prompt_ids) - 64:
            yield f"{replay.turn_id}: only {replay.cached_tokens} of {len(turn.prompt_ids)} tokens in the cache"


def show(title: str, run: RunFolder, samples: Sequence[Sample]) -> None:
    """Seconds an arm, then the parent's memory phase by phase."""
    decision, plan = json.loads((run.path / "decision.json").read_text()), run.plan()
    print(f"\n{title}: {decision['decision']}, prompts of {[len(turn.prompt_ids) for turn in plan.turns]} tokens")
    for name, arm in decision["arms"].items():
        print(
            f"  {name:10} {arm['effective']:24} {arm['seconds']:7.1f} s, {arm['cached_tokens']:,} tokens from the cache"
        )
    for phase in dict.fromkeys(sample.phase for sample in samples):
        inside = [sample for sample in samples if sample.phase == phase]
        print(f"  parent, {phase:18} {inside[-1].now:5.0f} MB at its end, peak so far {inside[-1].peak:5.0f} MB")


def main(folder: Path) -> int:
    """Both gates, what they took, and what is wrong with them; 0 when nothing is."""
    model, problems, peaks = write_model(folder / "model", hidden=32, heads=1, context=CONTEXT), [], {}
    (model / "chat_template.jinja").write_text(TEMPLATE)
    for title, tokens in (("short", SHORT), ("long", LONG)):
        golden = write_golden(folder / f"golden-{title}", tokens)
        run, samples = gate(model, golden, folder / f"runs-{title}")
        show(title, run, samples)
        problems += [f"{title}: {problem}" for problem in check(run, tokens)]
        peaks[title] = samples[-1].peak
    grown, allowed = peaks["long"] - peaks["short"], TURNS * LONG * BYTES_A_TOKEN / 2**20
    print(f"\nthe parent's peak is {grown:.0f} MB higher with the long turns; {allowed:.0f} MB are allowed")
    if grown > allowed:
        problems.append("the parent's memory grows with the context")
    print("\n".join(problems or ["nothing cut, nothing skipped, every golden reply forced"]))
    return bool(problems)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(main(Path(sys.argv[1])))
    with tempfile.TemporaryDirectory() as scratch:
        sys.exit(main(Path(scratch)))
