"""In place of the inspector: the processes of a scripted job are none of this host."""

from collections.abc import Sequence

from kcover_ebpf.facts.host import Inspection, InspectRequest
from kcover_ebpf.ids import Pid


class FakeInspector:
    def __init__(self, machine: str) -> None:
        self.forgotten: list[Pid] = []

    def inspect(self, requests: Sequence[InspectRequest]) -> list[Inspection]:
        return []

    def forget(self, pid: Pid) -> None:
        self.forgotten.append(pid)
