"""The ranks' recorders are asked by real pipes and answer with real files; whatever is not theirs is left alone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kcover_ebpf.collectives.recorder import watch as watch_module
from kcover_ebpf.collectives.recorder.pickle_machine import MOST_BYTES
from kcover_ebpf.collectives.recorder.watch import RecorderWatch
from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.diagnosis.membership.rank_numbers import RECORDER_FILES, RECORDER_PIPE
from kcover_ebpf.facts.host import ProcessSeen
from kcover_ebpf.facts.recorders import RecordersSeen
from kcover_ebpf.host import procfs
from kcover_ebpf.ids import Pid
from kcover_ebpf.model.roles import Membership, Role
from testbed.driver.recorder_dumps import dump, pickled, steps

ME = Pid(os.getpid())
ANSWER = pickled(dump(steps(5, ends="all_reduce")))
PATIENCE_S = 30.0


class Rank:
    """This process as rank 3 of a job."""

    def __init__(self, folder: Path) -> None:
        self.pipe, self.file = folder / "fr_3.pipe", folder / "dump_3"
        os.mkfifo(self.pipe)
        self._reader = os.open(self.pipe, os.O_RDONLY | os.O_NONBLOCK)
        environ = {RECORDER_PIPE: f"{folder}/fr_", RECORDER_FILES[0]: f"{folder}/dump_"}
        self.view = ProcessHistory(ME, first_seen_ns=1)
        start_ns = procfs.start_ns(ME)
        assert start_ns is not None
        self.view.seen = ProcessSeen(1, ME, Pid(1), "python3", ("python3",), environ, start_ns)
        self.view.membership = Membership(Role.RANK, 3, 4, ME)
        self.watch = RecorderWatch()

    def set(self, **environ: str) -> None:
        assert self.view.seen is not None
        known = self.view.seen.rank_environ | environ
        self.view.seen = replace(
            self.view.seen, rank_environ={name: value for name, value in known.items() if value}
        )

    def tick(self, stalled: bool = True) -> list[RecordersSeen]:
        return self.watch.tick(stalled, {ME: self.view})

    def asked(self) -> bytes:
        """What came through the pipe since the last call."""
        try:
            return os.read(self._reader, 100)
        except BlockingIOError:
            return b""

    def until(self, ready: Callable[[list[RecordersSeen]], object]) -> list[RecordersSeen]:
        """Tick until that is true of all that was said."""
        said: list[RecordersSeen] = []
        deadline_s = time.monotonic() + PATIENCE_S
        while not ready(said):
            assert time.monotonic() < deadline_s, said
            said += self.tick()
            time.sleep(0.02)
        return said

    def refusal(self) -> str:
        said = self.until(bool)
        assert not said[-1].records
        return said[-1].unread[0].reason

    def close(self) -> None:
        self.watch.close()
        os.close(self._reader)


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    made = Rank(tmp_path)
    yield made
    made.close()


def test_boottime_ns__a_rank_is_asked_once_and_its_answer_is_read(rank: Rank) -> None:
    question = b""

    def is_asked(_: object) -> bytes:
        nonlocal question
        question += rank.asked()
        return question

    assert rank.until(is_asked) == []
    asks_still = rank.watch.is_asking
    assert asks_still
    before_ns = procfs.boottime_ns()
    rank.file.write_bytes(ANSWER)
    (said,) = rank.until(bool)
    assert [(record.pid, record.rank) for record in said.records] == [(ME, 3)]
    assert said.records[0].groups[0].pending[0].place == "/jobs/train.py:40 (step)"
    assert said.boottime_ns < before_ns, "what happens later is not in the answer"
    assert not rank.watch.is_asking
    for _ in range(50):
        assert rank.tick() == []
    assert question + rank.asked() == b"1"


def test_recorder_watch__a_job_that_has_not_stalled_is_not_asked(rank: Rank) -> None:
    for _ in range(20):
        assert rank.tick(stalled=False) == []
    assert rank.asked() == b""


def test_recorder_watch__a_rank_without_the_variable_is_not_asked(rank: Rank) -> None:
    rank.set(**{RECORDER_PIPE: ""})
    for _ in range(20):
        assert rank.tick() == []
        time.sleep(0.01)
    assert rank.asked() == b""


def test_recorder_watch__a_stall_soon_after_is_not_asked_again(rank: Rank) -> None:
    rank.until(lambda _: rank.asked())
    rank.tick(stalled=False)
    for _ in range(20):
        rank.tick()
        time.sleep(0.01)
    assert rank.asked() == b""


def test_recorder_watch__an_old_dump_is_no_answer(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "RECORDER_ANSWER_S", 1.0)
    rank.file.write_bytes(ANSWER)
    assert rank.refusal() == "it has not answered"
    assert not rank.watch.is_asking, "an action waits no longer"
    assert rank.asked() == b"1"


def test_recorder_watch__half_an_answer_is_waited_for(rank: Rank) -> None:
    rank.until(lambda _: rank.asked())
    rank.file.write_bytes(ANSWER[:200])
    end_s = time.monotonic() + 1
    while time.monotonic() < end_s:
        assert rank.tick() == []
    rank.file.write_bytes(ANSWER)
    assert rank.until(bool)[0].records


def test_recorder_watch__an_answer_that_stays_half_is_said(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "RECORDER_ANSWER_S", 2.0)
    rank.until(lambda _: rank.asked())
    rank.file.write_bytes(ANSWER[:200])
    assert rank.refusal() == "the dump is not plain data: it is cut off"


def test_recorder_watch__a_pipe_that_no_process_reads(rank: Rank, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "other_3.pipe")
    rank.set(**{RECORDER_PIPE: f"{tmp_path}/other_"})
    assert rank.refusal() == f"no process reads {tmp_path}/other_3.pipe"


def test_recorder_watch__a_file_in_place_of_the_pipe_is_not_written(rank: Rank) -> None:
    rank.pipe.unlink()
    rank.pipe.write_bytes(b"")
    assert rank.refusal() == f"{rank.pipe} is not a named pipe"
    assert rank.pipe.read_bytes() == b""


def test_recorder_watch__a_link_in_place_of_the_pipe_is_not_followed(
    rank: Rank, tmp_path: Path
) -> None:
    rank.pipe.rename(tmp_path / "real")
    rank.pipe.symlink_to(tmp_path / "real")
    assert rank.refusal() == f"{rank.pipe} is not a named pipe"
    assert rank.asked() == b""


def test_recorder_watch__a_link_on_the_path_is_not_followed(rank: Rank, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    rank.set(**{RECORDER_PIPE: f"{tmp_path}/link/fr_"})
    assert "symbolic link" in rank.refusal()
    assert rank.asked() == b""


def test_recorder_watch__a_path_that_leads_upwards_is_not_walked(
    rank: Rank, tmp_path: Path
) -> None:
    rank.set(**{RECORDER_PIPE: f"{tmp_path}/../{tmp_path.name}/fr_"})
    assert "not a plain path" in rank.refusal()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_recorder_watch__a_pipe_of_another_user_is_not_written(rank: Rank) -> None:
    os.chown(rank.pipe, 12345, 12345)
    assert rank.refusal() == f"{rank.pipe} belongs to another user"
    assert rank.asked() == b""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_recorder_watch__a_dump_of_another_user_is_not_read(rank: Rank) -> None:
    rank.until(lambda _: rank.asked())
    other = rank.file.with_suffix(".other")
    other.write_bytes(ANSWER)
    os.chown(other, 12345, 12345)
    other.rename(rank.file)
    assert rank.refusal() == f"{rank.file} belongs to another user"


def test_recorder_watch__a_huge_dump_is_not_read(rank: Rank) -> None:
    rank.until(lambda _: rank.asked())
    with rank.file.open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    assert "larger than" in rank.refusal()


def test_recorder_watch__a_pipe_in_place_of_the_dump_delays_nothing(rank: Rank) -> None:
    rank.until(lambda _: rank.asked())
    os.mkfifo(rank.file)
    assert rank.refusal() == f"{rank.file} is not a regular file"


def test_recorder_watch__where_it_writes_must_be_known(rank: Rank) -> None:
    rank.set(**{RECORDER_FILES[0]: ""})
    assert "TORCH_FR_DUMP_TEMP_FILE is not set" in rank.refusal()
    assert rank.asked() == b"", "what it writes would not be read"


def test_recorder_watch__a_process_that_took_its_number_is_not_asked(rank: Rank) -> None:
    assert rank.view.seen is not None
    rank.view.seen = replace(rank.view.seen, start_ns=1)
    assert rank.refusal() == "the rank has ended"
    assert rank.asked() == b""


def test_recorder_watch__the_workers_end_with_the_stall(rank: Rank) -> None:
    import threading

    rank.until(lambda _: rank.asked())
    assert "kcover-recorder" in {thread.name for thread in threading.enumerate()}
    rank.tick(stalled=False)
    deadline_s = time.monotonic() + PATIENCE_S
    while "kcover-recorder" in {thread.name for thread in threading.enumerate()}:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
