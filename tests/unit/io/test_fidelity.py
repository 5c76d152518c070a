"""Arms beside their baselines out of journals, whatever order the blocks were run in."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from kvquant_eval.core.arms import Arm
from kvquant_eval.core.records import BlockResult, Role
from kvquant_eval.io import fidelity
from kvquant_eval.io.runfolder import RunFolder
from tests.fakes.records import forced, rendered_turn, reply, treatment

TURNS = [rendered_turn(f"t{block}-{i}") for block in range(3) for i in range(2)]


def arm(name: str, role: Role, baseline: str = "baseline") -> Arm:
    return Arm(name=name, role=role, treatment=treatment(), args={}, baseline=baseline)


ARMS = [
    arm("baseline", Role.BASELINE),
    arm("baseline_eager", Role.BASELINE, "baseline_eager"),
    arm("repeat", Role.CONTROL),
    arm("placebo", Role.CONTROL, "baseline_eager"),
]


def write(run: RunFolder, name: str, blocks: Iterable[int], shift: float = 0.0) -> None:
    """Two turns a block, whose golden tokens lose ``shift`` nats; generated replies stand among them."""
    folder = run.arm(name)
    folder.write_identity({"fingerprint": name})
    folder.journal.begin({"arm": name})
    for index in blocks:
        replays = [forced([-0.1 * (1 + index) - shift, -0.2], turn_id=f"t{index}-{i}") for i in range(2)]
        written = [reply('{"commit"\r\n', turn_id=f"t{index}-{i}") for i in range(2)]
        folder.journal.commit(BlockResult(index=index, replays=(*replays, *written), preemptions=0, seconds=1.0))


def test_blocks_are_paired_by_index_and_arms_with_their_own_baseline(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    write(run, "baseline", [0, 1, 2])
    write(run, "repeat", [2, 0, 1])
    write(run, "baseline_eager", [0, 1, 2], shift=0.5)
    write(run, "placebo", [0, 1, 2], shift=0.5)
    found = fidelity.read(run, ARMS, TURNS)
    assert list(found) == [("baseline", "repeat"), ("baseline_eager", "placebo")]
    for turns in found.values():
        assert [turn.turn_id for turn in turns] == [turn.turn_id for turn in TURNS]
        assert [(turn.means.kl, turn.means.n_tokens, turn.missing) for turn in turns] == [(0.0, 2, "")] * 6


def test_what_is_not_there_is_missing(tmp_path: Path) -> None:
    """One arm lacks a block, in one a block is damaged, one has not begun."""
    run = RunFolder(tmp_path)
    write(run, "baseline", [0, 1, 2])
    write(run, "repeat", [0, 2])
    write(run, "baseline_eager", [1, 0, 2])
    path = run.arm("baseline_eager").journal.path
    path.write_text(path.read_text().replace("t2-1", "t2-9", 1))
    found = fidelity.read(run, ARMS, TURNS)
    assert [turn.missing for turn in found["baseline", "repeat"]] == ["", "", *["arm: not run"] * 2, "", ""]
    assert [turn.missing for turn in found["baseline_eager", "placebo"]] == ["arm: not run"] * 4 + [
        "baseline: not run; arm: not run"
    ] * 2
