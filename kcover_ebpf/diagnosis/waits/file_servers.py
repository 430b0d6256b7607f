"""Calls into file systems whose servers are probed. Pure.

A waiting thread cannot distinguish a slow server from a dead one. A probe does where statfs(2) is a request to the
server (NFS, FUSE): one that answers it is slow, however long this call lasts. Where others answer it (Ceph's monitors,
a cache of Lustre's client or of a FUSE server), a dead server is never found by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.facts.host import FileSystemProbe, ProbeRequest, ThreadReading, WaitedFile
from kcover_ebpf.facts.kernel import TaskState, ThreadSample
from kcover_ebpf.facts.syscalls import SyscallFamily, SyscallTable
from kcover_ebpf.ids import Pid
from kcover_ebpf.tunables.diagnosis import PROBE_AFTER_NS, SERVER_ANSWER_NS

# fs/fuse/dev.c, net/sunrpc, fs/nfs, fs/ceph, Lustre: a call whose file system waits for a server, in state S as well
_SERVER_CHANNELS = ("request_wait_answer", "fuse_", "rpc_wait", "nfs", "ceph", "cl_sync", "ptlrpc")
_OF_FILES = frozenset({SyscallFamily.READ, SyscallFamily.WRITE, SyscallFamily.FILE})
NO_DEVICE = "0:"
"""Major number of file systems without a block device: a server, or memory."""
_CUT = 120
"""`WaitedFile.target` is cut at this length: a longer path is not known."""


def is_storage(sample: ThreadSample, family: SyscallFamily, reading: ThreadReading | None) -> bool:
    """True if a blocked thread waits for a file system, as far as its call and its kernel function show."""
    if sample.state is TaskState.UNINTERRUPTIBLE or family in (
        SyscallFamily.FILE,
        SyscallFamily.ASYNC_IO,
    ):
        return True
    return reading is not None and reading.wait_channel.startswith(_SERVER_CHANNELS)


def probes_wanted(
    processes: Iterable[ProcessHistory],
    readings: Callable[[Pid, int], Sequence[ThreadReading]],
    table: SyscallTable,
    now_ns: int,
) -> list[ProbeRequest]:
    """Requests to probe the file systems of waits; the oldest wait first."""
    found = []
    for process in processes:
        lead = process.lead
        if lead is None or process.exit is not None:
            continue
        sample, since_ns = lead.sample, lead.sample.idle_since_ns
        last = next(reversed(readings(process.pid, sample.tid)), None)
        if last is None or last.boottime_ns < since_ns or now_ns - since_ns < PROBE_AFTER_NS:
            continue
        family = table.family(sample.syscall)
        if not (is_storage(sample, family, last) or family in _OF_FILES):
            continue
        served = next((file for file in last.files if _may_be_served(file)), None)
        if served is not None:
            path = served.target if served.fd < 0 else ""
            found.append(ProbeRequest(process.pid, sample.tid, since_ns, served.fd, path))
    return sorted(found, key=lambda request: request.since_ns)


def _may_be_served(file: WaitedFile) -> bool:
    if file.kind != "file":
        return False
    if file.fd < 0:
        return 0 < len(file.target) < _CUT
    return file.device.startswith(NO_DEVICE)


def is_unanswered(probe: FileSystemProbe | None, sample: ThreadSample) -> bool:
    """True if the file system that this thread waits for was probed in this wait, and has long left it unanswered."""
    if probe is None or probe.answered or probe.asked_ns < sample.idle_since_ns:
        return False
    return probe.boottime_ns - probe.asked_ns >= SERVER_ANSWER_NS
