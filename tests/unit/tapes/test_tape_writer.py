"""A tape that is being written: who may read it, and facts that cannot be written."""

from __future__ import annotations

from io import BufferedReader, BytesIO
from pathlib import Path

import pytest

from kcover_ebpf.facts.inspector import InspectorSeen, SlowCollective, SlowKind
from kcover_ebpf.facts.kernel import Tick
from kcover_ebpf.tapes.reader import TapeReader
from kcover_ebpf.tapes.writer import TapeWriter
from tests.unit.support.recorded_stage import HEADER


def reader(data: bytes) -> TapeReader:
    return TapeReader(BufferedReader(BytesIO(data)), "it")


def test_tape_writer__a_file_that_others_may_read_becomes_its_owners(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("an older one")
    path.chmod(0o666)
    TapeWriter(path, HEADER, pytest.fail).close()
    assert path.stat().st_mode & 0o777 == 0o600
    null = Path("/dev/null")
    mode = null.stat().st_mode
    TapeWriter(null, HEADER, pytest.fail).close()
    assert null.stat().st_mode == mode, "only a file's own mode is changed"


def late(communicator: str, lasts_s: float = 1.0) -> InspectorSeen:
    slow = SlowCollective(SlowKind.LATE_RANK, communicator, "a", 1, (), 2, 3, lasts_s, 0.1)
    return InspectorSeen(1, (slow,))


@pytest.mark.parametrize("name", ["\ud800", "\udfff\ud800"])
def test_tape_writer__a_name_that_is_no_text_has_a_pseudonym(tmp_path: Path, name: str) -> None:
    """As in a file of NCCL Inspector, which the job writes."""
    writer = TapeWriter(tmp_path / "a", HEADER, pytest.fail)
    writer.on_fact(late(name))
    writer.on_fact(late(name))
    writer.close()
    first, second = reader((tmp_path / "a").read_bytes())
    assert first == second
    assert name not in repr(first)


def test_tape_writer__a_fact_that_cannot_be_written_ends_the_recording_only(tmp_path: Path) -> None:
    said: list[str] = []
    writer = TapeWriter(tmp_path / "a", HEADER, said.append)
    writer.on_fact(Tick(1, 1, 0, False))
    writer.on_fact(late("a", lasts_s=float("nan")))
    writer.on_fact(Tick(2, 1, 0, False))
    writer.close()
    assert len(said) == 1
    assert said[0].startswith("inspector_seen cannot be recorded (ValueError: ")
    assert list(reader((tmp_path / "a").read_bytes())) == [Tick(1, 1, 0, False)]
