"""What one node keeps of a job: its last report, and the state of threads, control groups and logs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum

from kcover_ebpf.api.fault_report import FaultReport
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.model.traced import GpuKernel, Stack


class EvidenceTrigger(Enum):
    """Why the part was taken: an order of a controller, or a run on one host."""

    STOP = "Stop"
    SNAPSHOT = "Snapshot"
    RUN = "run"
    TAPE = "tape"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ArchivedThread:
    """One thread and where it was, without the arguments of its calls."""

    pid: int
    tid: int
    comm: str = ""
    state: str = "?"
    """State letter (R, S, D, T, t, Z) of proc_pid_stat(5)."""
    wait: str = ""
    """System call and kernel function in which it waits; empty if not observable."""
    rank: int | None = None
    role: str = ""
    since_s: float | None = None
    """Seconds in this wait; None if unknown."""
    note: str = ""
    """Role in the verdict: "culprit", "victim", or empty."""


@dataclass(frozen=True, slots=True)
class GroupPressure:
    """Resource files of one container's control group; texts are empty if the file does not exist."""

    name: str
    """Pod name and the first digits of the container id."""
    cpu: str = ""
    """Text of cpu.pressure (PSI)."""
    memory: str = ""
    """Text of memory.pressure (PSI)."""
    io: str = ""
    """Text of io.pressure (PSI)."""
    throttled: str = ""
    """Lines nr_throttled and throttled_usec of cpu.stat."""
    events: str = ""
    """Text of memory.events: limit and OOM counters."""
    memory_bytes: int | None = None
    """memory.current in bytes; None if unreadable."""
    memory_most_bytes: int | None = None
    """memory.max in bytes; None without a limit or if unreadable."""


@dataclass(frozen=True, slots=True)
class NodePart:
    """What one node keeps of a job, as files in its folder of the archive."""

    node: str
    time_s: float
    """When it was taken (unix seconds by the node's clock)."""
    trigger: EvidenceTrigger = EvidenceTrigger.UNKNOWN
    version: str = ""
    """Version of the program that wrote it."""
    report: FaultReport | None = None
    """Newest report: verdict, ranks, connections, collectives, flight records, devices, findings in
    logs."""
    stacks: tuple[Stack, ...] = ()
    threads: tuple[ArchivedThread, ...] = ()
    pressure: tuple[GroupPressure, ...] = ()
    kernels: tuple[GpuKernel, ...] = ()
    """Kernels that ran on the GPUs of its ranks, if the operator has enabled reading them."""
    checkpoints: tuple[str, ...] = ()
    """POD/CONTAINER: PATH of checkpoints that the kubelet wrote on the node; the archive does not
    contain them."""
    logs: Mapping[str, str] = field(default_factory=dict)
    """POD.CONTAINER.log -> the end of the container's log."""
    facts: tuple[str, ...] = ()
    """The last announced facts, as JSON lines."""
    unobserved: tuple[str, ...] = ()
    """What could not be kept, with the reason."""
