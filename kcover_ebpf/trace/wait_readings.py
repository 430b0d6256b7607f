"""What threads wait for, read under a deadline and kept from one table to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from kcover_ebpf.facts.host import ReadingRequest, ThreadReading
from kcover_ebpf.ids import Pid, Tid


class Reader(Protocol):
    """Reads threads; `host.thread_reader` in the product."""

    def waits(
        self, requests: Sequence[ReadingRequest], limit_s: float
    ) -> dict[tuple[Pid, Tid], ThreadReading]:
        """What each waits for; those not read within `limit_s` are missing."""
        ...


class WaitReadings:
    """On a busy machine some hundred threads are not all read in time: each table reads more of them."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._known: dict[ReadingRequest, ThreadReading] = {}

    def read(
        self, requests: Sequence[ReadingRequest], limit_s: float
    ) -> Mapping[tuple[Pid, Tid], ThreadReading]:
        """What each waits for; what is not read within `limit_s` has its last reading of the same wait, if any.

        Those without one are read first.
        """
        ordered = sorted(requests, key=lambda each: each in self._known)
        fresh = self._reader.waits(ordered, limit_s)
        found = {each: fresh.get((each.pid, each.tid), self._known.get(each)) for each in requests}
        self._known = {each: reading for each, reading in found.items() if reading is not None}
        return {(each.pid, each.tid): reading for each, reading in self._known.items()}
