"""The run folder: one folder a run, everything needed to recompute its decision."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kvquant_eval.core.codec import DataError, from_json, to_json
from kvquant_eval.core.engine import EngineFacts
from kvquant_eval.core.records import BlockResult, Prepared, RenderedTurn, Replay
from kvquant_eval.io.journal import Journal


@dataclass(frozen=True)
class ArmFolder:
    """``arms/<arm>/``: ``arm.json`` (fingerprint and identity), ``replays.jsonl``, ``engine.json``, ``engine.log``."""

    path: Path

    @property
    def log(self) -> Path:
        return self.path / "engine.log"

    @property
    def journal(self) -> Journal:
        return Journal(self.path / "replays.jsonl")

    def identity(self) -> dict[str, Any]:
        """What ``arm.json`` says; empty when there is none that can be read."""
        return _read_object(self.path / "arm.json")

    def write_identity(self, identity: dict[str, Any]) -> None:
        write_json(self.path / "arm.json", identity)

    def facts(self) -> EngineFacts | None:
        """What the arm attested; None when its engine never got that far. Raises DataError when it is damaged."""
        path = self.path / "engine.json"
        if not path.exists():
            return None
        return from_json(EngineFacts, json.dumps(_read_object(path).get("facts")), str(path))

    def write_facts(self, facts: EngineFacts, identity: dict[str, Any]) -> None:
        write_json(self.path / "engine.json", {**identity, "facts": json.loads(to_json(facts))})

    def replays(self) -> tuple[Replay, ...]:
        """All committed replays, in the order of the block index: the same whatever order they ran in."""
        blocks = sorted(self.journal.blocks(), key=lambda block: block.index)
        return tuple(replay for block in blocks for replay in block.replays)

    def counts(self) -> dict[str, float]:
        """Sums over the committed blocks: seconds, preemptions, and tokens by kind."""
        return count(self.journal.blocks())


@dataclass(frozen=True)
class RunFolder:
    """``reports/runs/<run_id>/``."""

    path: Path

    @property
    def run_id(self) -> str:
        return self.path.name

    def arm(self, name: str) -> ArmFolder:
        folder = self.path / "arms" / name
        folder.mkdir(parents=True, exist_ok=True)
        return ArmFolder(folder)

    def write_config(self, config: dict[str, Any]) -> None:
        _atomic(self.path / "config.yaml", yaml.safe_dump(config, sort_keys=False, allow_unicode=True))

    def config(self) -> dict[str, Any]:
        path = self.path / "config.yaml"
        try:
            config = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, yaml.YAMLError) as error:
            reason = " ".join(str(error).split())
            raise DataError(f"{path}: the configuration of a run, got {reason}; name a run folder") from None
        if not isinstance(config, dict) or "pinned" not in config:
            raise DataError(f"{path}: the configuration of a run, got one without 'pinned'; name a run folder")
        return {str(key): value for key, value in config.items()}

    def write_plan(self, prepared: Prepared) -> None:
        """``prepared.json`` without the turns, and ``plan.jsonl``: the rendered turns, one a line."""
        data = json.loads(to_json(prepared))
        turns = data.pop("turns")
        write_json(self.path / "prepared.json", data)
        _atomic(self.path / "plan.jsonl", "".join(json.dumps(turn) + "\n" for turn in turns))

    def plan(self) -> Prepared:
        path = self.path / "plan.jsonl"
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
            data = json.loads((self.path / "prepared.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: the plan of a run, got {error}; name a run folder") from None
        turns = [from_json(RenderedTurn, line, f"{path}:{n}") for n, line in enumerate(lines, 1)]
        return from_json(
            Prepared, json.dumps({**data, "turns": json.loads(f"[{','.join(map(to_json, turns))}]")}), str(path)
        )


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


def reuse(runs_dir: Path, fingerprint: str, into: ArmFolder) -> int:
    """Copy the fullest earlier journal of the same fingerprint ``into`` an arm; return how many blocks it has (0:
    none). Damaged arms are passed over.
    """
    best, most = None, 0
    for folder in sorted(runs_dir.glob("*/arms/*"), key=lambda path: path.stat().st_mtime, reverse=True):
        arm = ArmFolder(folder)
        if folder == into.path or arm.identity().get("fingerprint") != fingerprint:
            continue
        try:
            blocks = 0 if arm.facts() is None else sum(1 for _ in arm.journal.blocks())
        except DataError:
            continue
        if blocks > most:
            best, most = arm, blocks
    if best is not None:
        for name in ("replays.jsonl", "engine.json", "engine.log"):
            if (best.path / name).exists():
                shutil.copyfile(best.path / name, into.path / name)
        into.journal.truncate_unfinished()
    return most


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
        for replay in block.replays:
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
    _atomic(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


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


def _atomic(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
