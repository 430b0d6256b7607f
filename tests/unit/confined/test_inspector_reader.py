"""NCCL Inspector's files are read by a real confined process, within its memory."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcover_ebpf.agent.reader.client import ConfinedReader
from kcover_ebpf.agent.reader.ranks import ANSWERS, ReadRanks
from kcover_ebpf.diagnosis.membership.rank_numbers import INSPECTOR_FOLDER
from kcover_ebpf.facts.inspector import SlowKind
from kcover_ebpf.ids import Pid
from tests.unit.collectives.inspector.inspector_files import group, late, write

pytestmark = pytest.mark.needs("root")


@pytest.fixture
def reader() -> Iterator[ConfinedReader]:
    made = ConfinedReader("answers", ANSWERS, lambda *_: None)
    yield made
    made.close()


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Pid]:
    """A process that says that it writes to the folder `dump`."""
    pipe = subprocess.PIPE
    environ = {INSPECTOR_FOLDER: "dump"}
    with subprocess.Popen(
        ["/bin/cat"], cwd=tmp_path, env=environ, stdin=pipe, stdout=pipe
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
        yield Pid(process.pid)
        process.kill()


def test_slow_collectives__the_most_that_is_read_fits_into_the_reader(
    reader: ConfinedReader, rank: Pid, tmp_path: Path
) -> None:
    """The files of 300 ranks, of which each is longer than what is read of it."""
    made = write(tmp_path / "dump", group("0xa", range(8), late(2, 0.03), count=200))
    text = (made / "host-pid100.log").read_text()
    assert len(text) > 64 << 10
    for number in range(300):
        (made / f"other-{number}.log").write_text(text)
    (slow,) = ReadRanks(reader, reader).slow_collectives([rank])
    assert (slow.kind, [member.rank for member in slow.members]) == (SlowKind.LATE_RANK, [2])
    assert slow.count > 100
    assert reader.starts == 1


def test_slow_collectives__lines_that_are_no_records_cost_nothing_but_themselves(
    reader: ConfinedReader, rank: Pid, tmp_path: Path
) -> None:
    made = tmp_path / "dump"
    made.mkdir()
    for number, line in enumerate(("[" * 60_000, '{"header":' * 6_000, "[]," * 20_000, "\0" * 9)):
        (made / f"{number}.log").write_text(line)
    assert ReadRanks(reader, reader).slow_collectives([rank]) == ()
    assert reader.starts == 1
