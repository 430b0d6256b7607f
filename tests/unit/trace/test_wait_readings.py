"""trace.wait_readings: more threads than a deadline lets be read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kcover_ebpf.facts.host import ReadingRequest, ThreadReading
from kcover_ebpf.ids import Pid, Tid
from kcover_ebpf.trace.thread_table import WaitReadings

WAITS = [ReadingRequest(Pid(1), Tid(tid), since_ns=tid) for tid in range(1, 6)]


class FakeReader:
    """Reads the first `most` of what it is asked for."""

    def __init__(self) -> None:
        self.most = 3
        self.round = 0

    def waits(
        self, requests: Sequence[ReadingRequest], limit_s: float
    ) -> dict[tuple[Pid, Tid], ThreadReading]:
        self.round += 1
        return {
            (request.pid, request.tid): ThreadReading(
                self.round, request.pid, request.tid, "", None, False, ()
            )
            for request in requests[: self.most]
        }


def rounds(readings: WaitReadings, requests: Sequence[ReadingRequest]) -> dict[int, int]:
    """Thread -> in which round it was read."""
    return {tid: found.boottime_ns for (_, tid), found in readings.read(requests, 0.1).items()}


def test_wait_readings__each_round_begins_with_those_that_were_not_read_yet() -> None:
    readings = WaitReadings(FakeReader())
    assert rounds(readings, WAITS) == {1: 1, 2: 1, 3: 1}
    assert rounds(readings, WAITS) == {1: 2, 2: 1, 3: 1, 4: 2, 5: 2}


def test_wait_readings__a_thread_that_waits_anew_has_no_old_reading() -> None:
    reader = FakeReader()
    readings = WaitReadings(reader)
    readings.read(WAITS, 0.1)
    reader.most = 0
    moved = [replace(WAITS[0], since_ns=99), *WAITS[1:]]
    assert rounds(readings, moved) == {2: 1, 3: 1}
    assert rounds(readings, WAITS) == {2: 1, 3: 1}, (
        "nor has it one when it is in the old wait again"
    )
