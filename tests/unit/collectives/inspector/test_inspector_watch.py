"""NCCL Inspector's files are read while a job is slow, where its ranks' environments say, and by whom that is for."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from kcover_ebpf.agent.reader import answer_operations
from kcover_ebpf.agent.reader.ranks import ReadRanks
from kcover_ebpf.collectives.inspector import watch as watch_module
from kcover_ebpf.collectives.inspector.ranks import InspectorHere, InspectorSource
from kcover_ebpf.collectives.inspector.watch import InspectorWatch
from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.diagnosis.membership.rank_numbers import INSPECTOR_FOLDER
from kcover_ebpf.errors import ReaderError
from kcover_ebpf.facts.host import ProcessSeen
from kcover_ebpf.facts.inspector import InspectorSeen, SlowCollective, SlowKind
from kcover_ebpf.ids import Pid
from tests.unit.collectives.inspector.inspector_files import group, late, write
from tests.waiting import until

LATE = SlowCollective(SlowKind.LATE_RANK, "0xa", "AllReduce", 1 << 20, (), 8, 60, 0.03, 0.01)
ENVIRON = {INSPECTOR_FOLDER: "dump"}


class FakeSource:
    """Answers what the test wants."""

    def __init__(self, slow: tuple[SlowCollective, ...] | ReaderError = (LATE,)) -> None:
        self.slow, self.asked = slow, list[list[int]]()

    def slow_collectives(self, pids: Collection[Pid]) -> tuple[SlowCollective, ...]:
        self.asked.append([int(pid) for pid in pids])
        if isinstance(self.slow, ReaderError):
            raise self.slow
        return self.slow


class FakeAnswersReader:
    """A confined reader of answers, in this process."""

    def ask(
        self, operation: str, given: Mapping[str, Any], _: float, descriptors: Sequence[int]
    ) -> Any:
        return answer_operations.operations()[operation](given, list(descriptors), lambda _: None)


def ranks(count: int, environ: dict[str, str]) -> dict[Pid, ProcessHistory]:
    found = {Pid(100 + rank): ProcessHistory(Pid(100 + rank), 1) for rank in range(count)}
    for pid, view in found.items():
        view.seen = ProcessSeen(1, pid, Pid(1), "python3", ("python3",), environ)
    return found


def ticked(watch: InspectorWatch, views: dict[Pid, ProcessHistory]) -> list[InspectorSeen]:
    """What comes of one question."""
    news = watch.tick(True, views)
    end_s = time.monotonic() + 5
    while not news and time.monotonic() < end_s and watch._readers is not None:
        if not watch._readers.is_asking:
            break
        time.sleep(0.01)
        news = watch.tick(False, views)
    watch.close()
    return news


def test_inspector_watch__what_is_slow_is_a_fact() -> None:
    source = FakeSource()
    (seen,) = ticked(InspectorWatch(source), ranks(2, ENVIRON))
    assert seen.slow == (LATE,)
    assert source.asked == [[100, 101]]


def test_inspector_watch__nothing_is_read_of_a_healthy_job_and_none_without_the_plug_in() -> None:
    source = FakeSource()
    assert InspectorWatch(source).tick(False, ranks(2, ENVIRON)) == []
    assert ticked(InspectorWatch(source), ranks(2, {})) == []
    assert source.asked == []


def test_inspector_watch__a_job_is_read_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    source, views = FakeSource(()), ranks(40, ENVIRON)
    watch = InspectorWatch(source)
    for _ in range(3):
        watch.tick(True, views)
    until(lambda: len(source.asked) == 1, "a reading")
    monkeypatch.setattr(watch_module, "INSPECTOR_PAUSE_S", 0.0)
    watch._next_s = 0.0

    def asked_twice() -> bool:
        watch.tick(True, views)
        return len(source.asked) >= 2

    until(asked_twice, "another reading")
    assert [len(pids) for pids in source.asked[:2]] == [16, 16]
    watch.close()


def test_inspector_watch__a_reader_that_fails_says_nothing() -> None:
    assert ticked(InspectorWatch(FakeSource(ReaderError("gone"))), ranks(1, ENVIRON)) == []


@pytest.fixture
def writers(tmp_path: Path) -> Iterator[list[Pid]]:
    """Two processes whose environment names one folder."""
    write(tmp_path / "dump", group("0xa", range(4), late(2, 0.03)))
    pipe = subprocess.PIPE
    started = [
        subprocess.Popen(["/bin/cat"], cwd=tmp_path, env=ENVIRON, stdin=pipe, stdout=pipe)
        for _ in range(2)
    ]
    for process in started:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
    yield [Pid(process.pid) for process in started]
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("is_confined", [False, True])
def test_slow_collectives__the_folder_of_ranks_is_read_once_by_whoever_reads(
    writers: list[Pid], is_confined: bool
) -> None:
    reader = cast("Any", FakeAnswersReader())
    source: InspectorSource = ReadRanks(reader, reader) if is_confined else InspectorHere()
    (slow,) = source.slow_collectives([*writers, Pid(os.getpid()), Pid(4_194_303)])
    assert (slow.kind, slow.count) == (SlowKind.LATE_RANK, 60)
    assert slow.text.startswith("rank 2 on node-0 is the last to begin AllReduce of 64 MiB over 4")


@pytest.mark.parametrize("answer", [{}, {"slow": 1}, {"slow": [1]}, {"slow": [{"kind": "x"}]}])
def test_read_ranks__a_reader_that_was_taken_over_is_not_believed(answer: dict[str, Any]) -> None:
    class FakeTakenOver:
        def ask(self, *_: object) -> dict[str, Any]:
            return answer

    taken_over = cast("Any", FakeTakenOver())
    with pytest.raises(ReaderError):
        ReadRanks(taken_over, taken_over).slow_collectives([Pid(1)])
