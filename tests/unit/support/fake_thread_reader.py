"""In place of the thread reader: the processes of a scripted job are none of this host."""

from collections.abc import Sequence

from kcover_ebpf.facts.host import ReadingRequest, ThreadReading
from kcover_ebpf.ids import Pid


class FakeThreadReader:
    def __init__(self, machine: str) -> None:
        self.forgotten: list[Pid] = []

    def read(self, requests: Sequence[ReadingRequest]) -> list[ThreadReading]:
        return []

    def forget(self, pid: Pid) -> None:
        self.forgotten.append(pid)
