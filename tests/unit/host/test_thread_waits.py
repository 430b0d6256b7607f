"""What many threads wait for, read at once: of real children, and of threads that cannot be read."""

import platform
import subprocess

import pytest

from kcover_ebpf.facts.host import ReadingRequest
from kcover_ebpf.host.thread_reader import ThreadReader, ThreadReadings
from kcover_ebpf.ids import Pid, Tid
from tests.unit.support.children import child_in

pytestmark = pytest.mark.needs("root")

READS = "ready(); os.read(0, 1)"
LOCK = "lock = threading.Lock(); lock.acquire(); ready(); lock.acquire()"


def test_waits__the_file_that_a_child_reads_at_each_pass() -> None:
    reader = ThreadReader(ThreadReadings(platform.machine()))
    with child_in(READS, stdin=subprocess.PIPE) as asked:
        found = [reader.waits([asked], 20.0) for _ in range(2)]
    assert len(found) == 2
    for entry in found:
        assert entry.keys() == {(asked.pid, asked.tid)}
        (seen,) = entry.values()
        assert [(file.fd, file.kind) for file in seen.files] == [(0, "pipe")]


def test_waits__with_the_memory_of_the_lock_and_without_what_takes_longer() -> None:
    with child_in(LOCK) as asked:
        (seen,) = ThreadReader(ThreadReadings(platform.machine())).waits([asked], 20.0).values()
    assert len(seen.lock_memory) == 24
    assert (seen.stack, seen.storage, seen.devices) == ((), None, None)


def test_waits__what_is_not_read_in_time_is_missing_and_does_not_come_later() -> None:
    reader = ThreadReader(ThreadReadings(platform.machine()))
    absent = ReadingRequest(Pid(2**22 - 1), Tid(2**22 - 1), 0)
    with child_in(READS, stdin=subprocess.PIPE) as asked:
        first = reader.waits([asked], 0.0)
        later = reader.waits([absent], 20.0)
    assert first.keys() <= {(asked.pid, asked.tid)}
    assert (asked.pid, asked.tid) not in later
