"""The run folder: one folder a run, everything needed to recompute its decision."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from kvquant_eval.core.codec import DataError, from_json, to_json
from kvquant_eval.core.engine import EngineFacts
from kvquant_eval.core.forecast import Speed
from kvquant_eval.core.records import BlockResult, Prepared, RenderedTurn, Replay
from kvquant_eval.io.answers import AnswerFile
from kvquant_eval.io.journal import Journal

TEMPORARY = ".tmp"
CONFIRM, POST_HOC = "confirm", "post_hoc"
SIGNED = "signoff.json"
"""The signatures of its candidates."""
MARK = "tracking.json"
"""What became of the tracking, written last: a run that has it is finished."""
OWN_FILES = frozenset(
    {"config.yaml", "prepared.json", "prepare.log", "plan.jsonl", "arms", "answers.jsonl"}
    | {"turns.parquet", "deltas.parquet", "fidelity.parquet", "ranges.parquet", "attribution.json", "decision.json"}
    | {"noise.json", "scales.json", "checkpoint", CONFIRM, POST_HOC, "lock", MARK, "search.json", SIGNED}
    | {"report.md", "report.html", "summary.md", "junit.xml", "model-card.md"}
)
ARM_FILES = frozenset({"arm.json", "replays.jsonl", "engine.json", "engine.log"})


@dataclass(frozen=True)
class ArmFolder:
    """``arms/<arm>/``: ``arm.json`` (fingerprint and identity), ``replays.jsonl``, ``engine.json``, ``engine.log``."""

    path: Path

    @property
    def log(self) -> Path:
        return self.path / "engine.log"

    @property
    def journal(self) -> Journal:
        return Journal(self.path / "replays.jsonl", str(self.identity().get("fingerprint", "")))

    def identity(self) -> dict[str, Any]:
        """What ``arm.json`` says; empty when there is none that can be read."""
        return _read_object(self.path / "arm.json")

    def write_identity(self, identity: dict[str, Any]) -> None:
        """The first thing that is written of an arm."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.path / "arm.json", identity)

    def facts(self) -> EngineFacts | None:
        """What the arm attested; None when its engine never got that far. Raises DataError when it is damaged."""
        path = self.path / "engine.json"
        if not path.exists():
            return None
        return from_json(EngineFacts, json.dumps(_read_object(path).get("facts")), str(path))

    def write_facts(self, facts: EngineFacts, identity: dict[str, Any]) -> None:
        write_json(self.path / "engine.json", {**identity, "facts": json.loads(to_json(facts))})

    def blocks(self) -> list[BlockResult]:
        """The committed blocks by index: the same whatever order they ran in.

        Without the most probable tokens of each step, which take twenty times the memory of all the rest: what needs
        them reads the journal block by block.
        """
        return sorted((_lean(block) for block in self.journal.blocks()), key=lambda block: block.index)

    def replays(self) -> tuple[Replay, ...]:
        """All committed replays, in the order of ``blocks``."""
        return tuple(replay for block in self.blocks() for replay in block.replays)


@dataclass(frozen=True)
class RunFolder:
    """``reports/runs/<run_id>/``."""

    path: Path

    @property
    def run_id(self) -> str:
        return self.path.name

    @property
    def finished(self) -> bool:
        return (self.path / MARK).exists()

    def finish(self, tracking: dict[str, Any]) -> None:
        write_json(self.path / MARK, tracking)

    def tracked(self) -> dict[str, Any]:
        """What ``finish`` wrote; empty when there is none that can be read."""
        return _read_object(self.path / MARK)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time. Raises DataError when another one is at work; a dead one holds nothing."""
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            raise DataError(
                f"{self.path}: one process at a time, got another one at work here; wait for it, or start a new run"
            ) from None
        finally:
            os.close(descriptor)

    def strangers(self, arms: Iterable[str]) -> list[str]:
        """Files that are of no run, as paths inside the folder: they are never read."""
        allowed = dict.fromkeys(arms, ARM_FILES)
        top = {path.name for path in self.path.iterdir()} - OWN_FILES
        found = {f"arms/{path.name}" for path in self.path.glob("arms/*") if path.name not in allowed}
        inside = {
            f"arms/{path.parent.name}/{path.name}"
            for path in self.path.glob("arms/*/*")
            if path.name not in allowed.get(path.parent.name, {path.name})
        }
        return sorted(name for name in top | found | inside if not name.endswith(TEMPORARY))

    @property
    def confirm(self) -> RunFolder:
        """``confirm/``: the arms of the second stage, which runs flagged turns again."""
        return RunFolder(self.path / CONFIRM)

    def post_hoc(self, name: str) -> RunFolder:
        """``post_hoc/<name>/``: a decision that was made afterwards and is not the run's own, with its artifacts."""
        return RunFolder(self.path / POST_HOC / name)

    @property
    def runs_dir(self) -> Path:
        """Where runs lie, whose blocks may be used again."""
        return self.path.parent.parent if self.path.name == CONFIRM else self.path.parent

    @property
    def answers(self) -> AnswerFile:
        return AnswerFile(self.path / "answers.jsonl")

    def arm(self, name: str) -> ArmFolder:
        return ArmFolder(self.path / "arms" / name)

    def write_config(self, config: dict[str, Any]) -> None:
        write_text(self.path / "config.yaml", yaml.safe_dump(config, sort_keys=False))

    def config(self) -> dict[str, Any]:
        path = self.path / "config.yaml"
        try:
            config = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, yaml.YAMLError) as error:
            reason = getattr(error, "strerror", None) or " ".join(str(error).split())
            raise DataError(f"{path}: the configuration of a run, got {reason}; name a run folder") from None
        if not isinstance(config, dict) or not isinstance(config.get("pinned"), dict):
            raise DataError(f"{path}: the configuration of a run, got one without 'pinned'; name a run folder")
        return {str(key): value for key, value in config.items()}

    def write_plan(self, prepared: Prepared) -> None:
        """``prepared.json`` without the turns, and ``plan.jsonl``: the rendered turns, one a line."""
        data = json.loads(to_json(replace(prepared, turns=())))
        write_json(self.path / "prepared.json", data)
        write_text(self.path / "plan.jsonl", "".join(to_json(turn) + "\n" for turn in prepared.turns))

    def plan(self) -> Prepared:
        path = self.path / "plan.jsonl"
        try:
            with path.open(encoding="utf-8", newline="\n") as file:  # other line ends may stand in a text
                lines = list(file)
            data = (self.path / "prepared.json").read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: the plan of a run, got {error}; name a run folder") from None
        turns = tuple(from_json(RenderedTurn, line, f"{path}:{n}") for n, line in enumerate(lines, 1))
        return replace(from_json(Prepared, data, str(self.path / "prepared.json")), turns=turns)


def new_run(runs_dir: Path, stem: str) -> RunFolder:
    """Create ``<stem>``, or ``<stem>-2``, ... where it exists."""
    runs_dir.mkdir(parents=True, exist_ok=True)
    for suffix in ("", *(f"-{n}" for n in range(2, 1000))):
        try:
            (runs_dir / f"{stem}{suffix}").mkdir()
        except FileExistsError:
            continue
        return RunFolder(runs_dir / f"{stem}{suffix}")
    raise DataError(f"{runs_dir}: room for another run named {stem}, got 999 of them; remove some")


def latest(runs_dir: Path, ending: str) -> list[RunFolder]:
    """The runs named ``<time><ending>``, the newest first."""
    found = [path for path in runs_dir.glob("*") if ending in path.name and path.is_dir()]
    return [RunFolder(path) for path in sorted(found, key=_made, reverse=True)]


def fullest(runs_dir: Path, fingerprint: str, besides: Path | None = None) -> tuple[ArmFolder | None, int]:
    """The arm of this fingerprint that has the most finished blocks, and how many; damaged arms are passed over."""
    best, most = None, 0
    for arm in _arms(runs_dir, besides):
        if arm.identity().get("fingerprint") != fingerprint:
            continue
        try:
            blocks = 0 if arm.facts() is None else sum(1 for _ in arm.journal.blocks())
        except DataError:
            continue
        if blocks > most:
            best, most = arm, blocks
    return best, most


def reuse(runs_dir: Path | None, into: ArmFolder) -> int:
    """Copy the fullest journal of the same fingerprint in ``runs_dir`` (None: look nowhere) ``into`` an arm, where it
    has more than the arm's own; return how many blocks the arm has then.
    """
    own = len(into.blocks())
    best, most = (None, 0) if runs_dir is None else fullest(runs_dir, into.identity()["fingerprint"], into.path)
    if best is None or most <= own:
        return own
    for name in ("engine.json", "engine.log", "replays.jsonl"):
        if (best.path / name).exists():
            shutil.copyfile(best.path / name, into.path / f"{name}{TEMPORARY}")
            (into.path / f"{name}{TEMPORARY}").replace(into.path / name)
    into.journal.truncate_unfinished()
    return most


def last_speed(runs_dir: Path, like: Mapping[str, Any]) -> Speed | None:
    """The speed of the last arm of the same model, device and versions as an arm's ingredients say."""
    same = ("model", "weights", "device", "versions")
    for arm in _arms(runs_dir, None):
        stored = arm.identity().get("ingredients")
        if not isinstance(stored, dict) or any(stored.get(key) != like[key] for key in same):
            continue
        with contextlib.suppress(DataError):
            counted = count(arm.journal.blocks())
            computed = counted["prompt_tokens"] - counted["cached_tokens"] + counted["decoded_tokens"]
            if computed > 0:
                return Speed(
                    seconds_per_token=counted["seconds"] / computed,
                    cached_share=counted["cached_tokens"] / max(1.0, counted["prompt_tokens"]),
                )
    return None


def _arms(runs_dir: Path, besides: Path | None) -> list[ArmFolder]:
    """Every arm of every run, the last written first."""
    found = (*runs_dir.glob("*/arms/*"), *runs_dir.glob(f"*/{CONFIRM}/arms/*"))
    folders = [path for path in found if path != besides]
    return [ArmFolder(path) for path in sorted(folders, key=lambda path: path.stat().st_mtime, reverse=True)]


def earlier_decisions(folder: Path, identity_sha256: str) -> int:
    """How many other runs beside ``folder``, made before it, decided the same question.

    Runs of one question are named alike but for the time and ``new_run``'s number, so their names say which was made
    first; the times in ``decision.json`` and of the files are those of the last time that a run was decided or copied.
    """
    return sum(
        _read_object(path).get("identity_sha256") == identity_sha256
        for path in folder.parent.glob("*/decision.json")
        if _made(path.parent) < _made(folder)
    )


def count(blocks: Iterable[BlockResult]) -> dict[str, float]:
    """Seconds, preemptions, and prompt, cached and decoded tokens over ``blocks``."""
    totals = {"seconds": 0.0, "preemptions": 0, "prompt_tokens": 0, "cached_tokens": 0, "decoded_tokens": 0}
    for block in blocks:
        totals["seconds"] += block.seconds
        totals["preemptions"] += block.preemptions
        for replay in (each for asked in block.replays for each in (asked, *asked.between)):
            totals["prompt_tokens"] += replay.prompt_tokens
            totals["cached_tokens"] += replay.cached_tokens
            totals["decoded_tokens"] += len(replay.token_ids)
    return totals


def code_sha256(files: Iterable[Path]) -> str:
    """sha256 over names and contents of source files: what runs inside an arm."""
    total = hashlib.sha256()
    for path in sorted(files):
        total.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()


def write_json(path: Path, value: Any) -> None:
    """Write strict JSON (no NaN), whole or not at all."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    temporary = path.with_name(path.name + TEMPORARY)
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty when there is none that can be read."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _made(folder: Path) -> list[str | int]:
    """A run's name with its numbers as numbers: ``-10`` comes behind ``-2``."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", folder.name)]


def _lean(block: BlockResult) -> BlockResult:
    return replace(block, replays=tuple(replace(replay, top=()) for replay in block.replays))
