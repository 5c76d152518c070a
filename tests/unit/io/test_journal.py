"""The journal: finished blocks are kept whatever happens to the file behind or between them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from kvquant_eval.core.ranges import FormatCounts, HalfRanges, HeadCounts, LayerRanges
from kvquant_eval.core.records import BlockResult
from kvquant_eval.io.journal import Journal
from tests.fakes.records import forced, reply


def block(index: int, turns: int = 2, text: str = 'a\nb {"commit" c') -> BlockResult:
    replays = [reply(text, turn_id=f"t{index}-{i}") for i in range(turns)]
    return BlockResult(
        index=index, replays=(*replays, forced([-0.1, -1e-17])), preemptions=index % 2, seconds=1.5 * index
    )


BLOCKS = [block(0), block(1), block(2)]


def journal(folder: Path, *blocks: BlockResult) -> Journal:
    made = Journal(folder / "replays.jsonl")
    for finished in blocks:
        made.commit(finished)
    return made


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, list[int]]:
    """Three blocks as bytes, and where each one ends."""
    made = Journal(tmp_path_factory.mktemp("journal") / "replays.jsonl")
    ends = []
    for finished in BLOCKS:
        made.commit(finished)
        ends.append(made.path.stat().st_size)
    return made.path.read_bytes(), ends


def test_blocks_come_back_as_they_were(tmp_path: Path) -> None:
    assert list(journal(tmp_path, *BLOCKS).blocks()) == BLOCKS


def test_so_do_the_ranges_of_k_and_v(tmp_path: Path) -> None:
    """Bit for bit; a journal of before there were any has none."""
    seen = HeadCounts(
        values=3, largest=0.1, signal=1e77 / 3, formats={"fp8_e4m3": FormatCounts(beyond=2, noise=2**-60 / 3)}
    )
    half = HalfRanges(scale=0.7, limits={"fp8_e4m3": 448 * 0.7}, heads=(seen, HeadCounts()))
    finished = replace(BLOCKS[0], ranges=(LayerRanges(index=5, k=half, v=HalfRanges()),))
    assert list(journal(tmp_path, finished).blocks()) == [finished]


def test_blocks_can_be_read_in_any_order(tmp_path: Path) -> None:
    made = Journal(tmp_path / "replays.jsonl")
    assert made.places() == {}
    made.begin({"arm": "a"})
    for index in (2, 0, 1):
        made.commit(BLOCKS[index])
    with made.path.open("a") as file:
        file.write("a block that was not finished")
    places = made.places()
    assert list(places) == [2, 0, 1]
    assert [made.read(places[index]) for index in range(3)] == BLOCKS


def test_a_damaged_block_has_a_place_and_nothing_in_it(tmp_path: Path) -> None:
    made = journal(tmp_path, *BLOCKS)
    raw = made.path.read_bytes().replace(b"t1-0", b"t1-\xff", 1)
    made.path.write_bytes(raw + b'{"commit": "x"}\n{"commit": []}\n{"commit\n')
    places = made.places()
    assert [made.read(places[index]) for index in sorted(places)] == [BLOCKS[0], None, BLOCKS[2]]


def test_a_block_is_on_disk_when_commit_returns(tmp_path: Path) -> None:
    made = journal(tmp_path, BLOCKS[0])
    lines = made.path.read_text().splitlines()
    mark = json.loads(lines[-1])
    assert (mark["commit"], mark["n"], mark["preemptions"]) == (0, 3, 0)
    assert len(lines) >= 4


def test_an_empty_block_is_a_block(tmp_path: Path) -> None:
    empty = BlockResult(index=7, replays=(), preemptions=0, seconds=0.0)
    assert list(journal(tmp_path, empty, BLOCKS[1]).blocks()) == [empty, BLOCKS[1]]


def test_no_file_is_no_block(tmp_path: Path) -> None:
    made = Journal(tmp_path / "none.jsonl")
    made.truncate_unfinished()
    assert list(made.blocks()) == []
    assert not made.path.exists()


def test_a_tail_torn_anywhere_loses_no_finished_block(tmp_path: Path, written: tuple[bytes, list[int]]) -> None:
    """Cut the file anywhere: the blocks that were finished stay, before and after cleaning up, and the next one can be
    appended.
    """
    data, ends = written
    made = Journal(tmp_path / "replays.jsonl")
    lost = []
    last = data.rindex(b'{"commit"')  # every byte of a commit line, some of the rest
    for cut in [*range(0, last, 7), *range(last, len(data) + 1)]:
        finished = BLOCKS[: sum(end <= cut for end in ends)]
        made.path.write_bytes(data[:cut])
        assert list(made.blocks()) == finished
        made.truncate_unfinished()
        if list(made.blocks()) != finished:
            lost.append(cut)
            continue
        made.commit(block(9))
        assert list(made.blocks()) == [*finished, block(9)]
    assert lost == []


def test_cleaning_up_leaves_nothing_behind_the_last_block(tmp_path: Path, written: tuple[bytes, list[int]]) -> None:
    data, ends = written
    made = Journal(tmp_path / "replays.jsonl")
    made.path.write_bytes(data[: ends[1] + 40])
    made.truncate_unfinished()
    assert made.path.read_bytes() == data[: ends[1]]
    made.truncate_unfinished()
    assert made.path.read_bytes() == data[: ends[1]]


def test_a_damaged_line_costs_its_own_block_alone(tmp_path: Path, written: tuple[bytes, list[int]]) -> None:
    data, _ = written
    made = Journal(tmp_path / "replays.jsonl")
    at = data.index(b"t1-0")
    for damage in (b"t9-0", b"\xff\xfe\xfd\xfc", b"\n\n\n\n"):
        made.path.write_bytes(data[:at] + damage + data[at + 4 :])
        assert list(made.blocks()) == [BLOCKS[0], BLOCKS[2]]


def test_a_lost_line_costs_its_own_block_alone(tmp_path: Path, written: tuple[bytes, list[int]]) -> None:
    lines = written[0].split(b"\n")
    second = next(i for i, line in enumerate(lines) if b"t1-0" in line)
    made = Journal(tmp_path / "replays.jsonl")
    made.path.write_bytes(b"\n".join(lines[:second] + lines[second + 1 :]))
    assert list(made.blocks()) == [BLOCKS[0], BLOCKS[2]]


def test_no_damaged_byte_is_believed(tmp_path: Path, written: tuple[bytes, list[int]]) -> None:
    """One bit turned anywhere: what comes back is as it was written, and at most two blocks are lost."""
    data, _ = written
    made = Journal(tmp_path / "replays.jsonl")
    believed, raised = [], []
    for at in range(len(data)):
        content = bytearray(data)
        content[at] ^= 1
        made.path.write_bytes(bytes(content))
        try:
            found = list(made.blocks())
        except Exception:  # noqa: BLE001 - whatever it is, it is counted
            raised.append(at)
            continue
        if len(found) < 1 or any(one not in BLOCKS for one in found):
            believed.append(at)
    assert (believed, raised) == ([], [])


@pytest.mark.parametrize(("key", "other"), [(b'"n"', b'"m"'), (b'"sha256"', b'"sha255"'), (b'"seconds"', b'"second5"')])
def test_a_commit_line_without_its_keys_covers_no_block(
    tmp_path: Path, written: tuple[bytes, list[int]], key: bytes, other: bytes
) -> None:
    made = Journal(tmp_path / "replays.jsonl")
    made.path.write_bytes(written[0].replace(key, other, 1))
    assert list(made.blocks()) == BLOCKS[1:]


IDENTITY = {"model": "org/m", "kv_requested": "fp8", "kv_effective": "fp8_e4m3", "kv_realisation": "native"}


def test_the_first_line_says_whose_replays_these_are(tmp_path: Path) -> None:
    made = Journal(tmp_path / "replays.jsonl")
    made.begin(IDENTITY)
    made.commit(BLOCKS[0])
    made.begin({**IDENTITY, "model": "org/other"})  # a journal keeps its header
    made.commit(BLOCKS[1])
    lines = made.path.read_text().splitlines()
    assert json.loads(lines[0]) == {"journal": 1, **IDENTITY}
    assert sum(line.startswith('{"journal"') for line in lines) == 1
    assert list(made.blocks()) == BLOCKS[:2]


def test_cleaning_up_keeps_a_whole_header_and_no_other(tmp_path: Path) -> None:
    made = Journal(tmp_path / "replays.jsonl")
    made.begin(IDENTITY)
    header = made.path.read_bytes()
    made.path.write_bytes(header + b'{"turn_id": ')
    made.truncate_unfinished()
    assert made.path.read_bytes() == header
    made.path.write_bytes(header[:-1])
    made.truncate_unfinished()
    made.begin(IDENTITY)
    assert made.path.read_bytes() == header


def test_a_damaged_header_costs_no_block(tmp_path: Path) -> None:
    made = Journal(tmp_path / "replays.jsonl")
    made.begin(IDENTITY)
    made.commit(BLOCKS[0])
    made.path.write_bytes(b"\xff\xff" + made.path.read_bytes()[2:])
    made.truncate_unfinished()
    assert list(made.blocks()) == BLOCKS[:1]


def test_a_writer_killed_at_any_time_leaves_whole_blocks(tmp_path: Path) -> None:
    """A process that commits as fast as it can is killed in mid-block."""
    path = tmp_path / "replays.jsonl"
    code = (
        "import sys\nfrom pathlib import Path\nfrom kvquant_eval.core.records import BlockResult\n"
        "from kvquant_eval.io.journal import Journal\nfrom tests.fakes.records import reply\n"
        "made = Journal(Path(sys.argv[1]))\nfor index in range(10**6):\n"
        "    replays = tuple(reply('x' * 2000, turn_id=f'{index}-{i}') for i in range(20))\n"
        "    made.commit(BlockResult(index=index, replays=replays, preemptions=0, seconds=0.0))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(path)])
    deadline = time.monotonic() + 30
    while not (path.exists() and path.stat().st_size > 500_000) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    made = Journal(path)
    before = list(made.blocks())
    assert [one.index for one in before] == list(range(len(before)))
    assert len(before) > 5
    assert all(len(one.replays) == 20 for one in before)
    made.truncate_unfinished()
    made.commit(block(len(before)))
    assert list(made.blocks()) == [*before, block(len(before))]
