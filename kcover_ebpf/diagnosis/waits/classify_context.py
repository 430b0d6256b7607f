"""The context in which a process is classified: the rest of its job, and the readings of its threads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.diagnosis.membership.endpoints import EndpointIndex
from kcover_ebpf.facts.host import FileSystemProbe, ThreadReading, WaitedFile
from kcover_ebpf.facts.syscalls import SyscallTable
from kcover_ebpf.ids import Pid, Tid
from kcover_ebpf.settings import Policy


@dataclass(frozen=True, slots=True)
class ClassifyContext:
    """The context of one classification. Times are boottime."""

    now_ns: int
    policy: Policy
    table: SyscallTable
    children: Callable[[Pid], Sequence[ProcessHistory]]
    holders: Callable[[Pid, WaitedFile], tuple[Pid, ...]]
    """Processes of the job that have the other end of a file open."""
    is_own: Callable[[Pid, WaitedFile], bool]
    """True if the process itself has the other end of a file open, and no other one does."""
    drained_ns: Callable[[Pid, int], int]
    """When the reader at the other end of a process's descriptor last took something; 0 if that was not seen."""
    readings: Callable[[Pid, int], Sequence[ThreadReading]]
    """Readings of a thread, oldest first."""
    probes: Mapping[tuple[Pid, Tid], FileSystemProbe]
    """Last answers about the file systems that threads wait for."""
    kind: Callable[[Pid, WaitedFile], str]
    """The real kind of a file (the name of a socket does not contain its protocol)."""
    ranks: Collection[ProcessHistory]
    """Living ranks of this host."""
    ends: EndpointIndex
    all_here: bool
    """Every rank of the job is on this host, so a connection to an unknown process leads outside the job."""
