"""Reads that never return: what else waits for them, and how many threads they cost."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator

import pytest

from kcover_ebpf.facts.host import ProcessSeen
from kcover_ebpf.host.identities import Identities
from kcover_ebpf.host.read_workers import Readers
from kcover_ebpf.ids import Pid
from tests.unit.support.patience import soon


@pytest.fixture
def over(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Set at the end: what is stuck continues then."""
    monkeypatch.setattr("kcover_ebpf.host.read_workers.READ_STUCK_S", 0.05)
    event = threading.Event()
    yield event
    event.set()


def threads_of(name: str) -> int:
    return sum(thread.name == name for thread in threading.enumerate())


def test_readers__what_is_read_is_taken_and_what_fails_is_none() -> None:
    readers: Readers[int, int] = Readers("test")
    assert readers.ask(1, lambda: 7)
    assert readers.ask(2, lambda: 1 // 0)
    assert not readers.ask(1, lambda: 8), "one of this key is under way"
    assert sorted(readers.take([1, 2], 5), key=str) == [(1, 7), (2, None)]
    assert readers.ask(1, lambda: 8)
    assert readers.take([1], 5) == [(1, 8)]
    assert readers.take([], 0) == []


def test_readers__only_what_was_asked_now_is_waited_for(over: threading.Event) -> None:
    readers: Readers[int, bool] = Readers("test")
    readers.ask(1, over.wait)
    assert readers.take([], 1e6) == []
    assert readers.take([9], 1e6) == []
    assert readers.take([1], 0.1) == []
    assert list(readers.stuck()) == [1]
    over.set()
    assert soon(lambda: readers.take([], 0)) == [(1, True)]
    assert readers.stuck() == {}


def test_readers__what_is_forgotten_is_not_taken(over: threading.Event) -> None:
    readers: Readers[int, bool] = Readers("test")
    readers.ask(1, over.wait)
    time.sleep(0.1)
    readers.forget(1)
    assert readers.stuck() == {}
    assert readers.ask(1, lambda: False)
    over.set()
    assert readers.take([1], 5) == [(1, False)]


def test_readers__when_all_threads_are_stuck_nothing_is_asked_or_waited_for(
    over: threading.Event,
) -> None:
    readers: Readers[int, bool] = Readers("all stuck")
    for number in range(100):
        readers.ask(number, over.wait)
        time.sleep(0.01)
    assert threads_of("all stuck") == 16
    time.sleep(0.1)
    assert not readers.ask(1000, lambda: True)
    over.set()
    assert soon(lambda: [*readers.take([], 0)] and readers.ask(1000, lambda: True))
    assert (1000, True) in readers.take([1000], 60)
    soon(lambda: threads_of("all stuck") == 1)


def test_readers__one_thread_reads_as_long_as_no_read_is_slow(
    over: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    # no read of a millisecond takes as long, however busy the processors are
    monkeypatch.setattr("kcover_ebpf.host.read_workers.READ_SLOW_S", 1.0)
    readers: Readers[int, str] = Readers("one at a time")

    def read() -> str:
        time.sleep(0.001)
        return str(threading.get_ident())

    for number in range(50):
        readers.ask(number, read)
    first = readers.take(range(50), 60)
    assert len({ident for _, ident in first}) == 1
    readers.ask(100, lambda: str(over.wait()))
    for number in range(3):
        readers.ask(number, read)
    # another thread reads what waits behind the slow one
    second = readers.take(range(3), 60)
    assert sorted(key for key, _ in second) == [0, 1, 2]
    assert {ident for _, ident in second}.isdisjoint({ident for _, ident in first})
    assert threads_of("one at a time") == 2
    over.set()
    soon(lambda: threads_of("one at a time") == 1)
    assert soon(lambda: readers.take([], 0)) == [(100, "True")]


def test_readers__a_slow_thread_that_returns_while_it_is_replaced_ends(
    over: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: Readers[int, bool] = Readers("replaced")
    readers.ask(1, over.wait)
    soon(readers.stuck)
    begin = threading.Thread.start

    def return_first(thread: threading.Thread) -> None:
        over.set()
        soon(lambda: not readers.stuck())
        time.sleep(0.1)
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", return_first)
    assert readers.ask(2, lambda: True)
    assert sorted(readers.take([1, 2], 60)) == [(1, True), (2, True)]
    soon(lambda: threads_of("replaced") == 1)


def test_readers__no_call_is_lost(over: threading.Event) -> None:
    """Who asks while the thread finds that there is nothing left."""
    readers: Readers[int, int] = Readers("test")
    for number in range(3000):
        assert readers.ask(number, lambda: 7)
        if number % 3:
            assert readers.take([number], 30) or not readers.is_asked(number)
    assert soon(lambda: readers.take([], 0) == [] and not readers.is_asking)


class FakeReads:
    """Reads of process 1 do not return."""

    def __init__(self, over: threading.Event) -> None:
        self.over = over
        self.asked: list[Pid] = []
        self.name = "one"

    def read(self, pid: Pid, variables: Collection[str]) -> ProcessSeen | None:
        self.asked.append(pid)
        name = self.name
        if pid == 1:
            self.over.wait()
        environ = dict.fromkeys(variables, "1")
        return None if pid == 2 else ProcessSeen(5, pid, Pid(0), name, (name,), environ)


@pytest.fixture
def slow(over: threading.Event, monkeypatch: pytest.MonkeyPatch) -> FakeReads:
    made = FakeReads(over)
    monkeypatch.setattr("kcover_ebpf.host.procfs.read_process", made.read)
    return made


def learned(known_identities: Identities, *pids: int) -> list[tuple[int, str]]:
    """Who was read or cannot be, of a pass that asks for these."""
    facts = known_identities.learn([Pid(pid) for pid in pids], {"RANK"})
    return [(int(fact.pid), type(fact).__name__) for fact in facts]


def test_identities__a_process_that_cannot_be_read_keeps_no_other_nameless(slow: FakeReads) -> None:
    known = Identities()
    read = soon(lambda: [pair for pair in learned(known, 1, 2, 3) if pair != (1, "Unreadable")])
    assert read == [(3, "ProcessSeen")]
    time.sleep(0.1)
    for _ in range(5):
        assert learned(known, 1) == [(1, "Unreadable")]
    slow.over.set()
    (found,) = soon(
        lambda: [x for x in known.learn([Pid(1)], {"RANK"}) if isinstance(x, ProcessSeen)]
    )
    assert found.rank_environ == {"RANK": "1"}
    assert slow.asked.count(Pid(1)) == 1


def test_identities__who_became_another_program_is_read_anew(slow: FakeReads) -> None:
    known = Identities()
    list(known.learn([Pid(1)], ()))
    known.forget(Pid(1))
    slow.over.set()
    slow.name = "two"
    (found,) = soon(lambda: list(known.learn([Pid(1)], ())))
    assert isinstance(found, ProcessSeen)
    assert found.comm == "two"


def test_identities__what_one_job_asked_for_another_does_not_take(slow: FakeReads) -> None:
    known = Identities()
    list(known.learn([Pid(1)], ()))
    slow.over.set()
    time.sleep(0.05)
    assert soon(lambda: learned(known, 3)) == [(3, "ProcessSeen")]
    assert soon(lambda: learned(known, 1)) == [(1, "ProcessSeen")]
