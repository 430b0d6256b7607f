"""What a process is classified with: the rest of its job, and the readings of its threads."""

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
    """What a process is judged with: the rest of its job, and the readings of its threads."""

    now_ns: int
    policy: Policy
    table: SyscallTable
    children: Callable[[Pid], Sequence[ProcessHistory]]
    holders: Callable[[Pid, WaitedFile], tuple[Pid, ...]]
    """Processes of the job that hold the other end of a file."""
    is_own: Callable[[Pid, WaitedFile], bool]
    """Whether the process itself has the other end of a file, and no other one."""
    readings: Callable[[Pid, int], Sequence[ThreadReading]]
    """Readings of a thread, oldest first."""
    probes: Mapping[tuple[Pid, Tid], FileSystemProbe]
    """What is known last of the file systems that threads wait for."""
    kind: Callable[[Pid, WaitedFile], str]
    """What a file really is (a socket's protocol is not in its name)."""
    ranks: Collection[ProcessHistory]
    """All of this host."""
    ends: EndpointIndex
    all_here: bool
    """Every rank of the job is on this host, so a connection to an unknown process leads outside the job."""
