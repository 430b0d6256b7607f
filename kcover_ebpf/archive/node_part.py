"""What one node keeps of a job: its last report, and what its threads, control groups and logs showed. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum

from kcover_ebpf.api.fault_report import FaultReport
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.model.traced import GpuKernel, Stack


class EvidenceTrigger(Enum):
    """Why it was kept; the orders of a controller, or a run on one host."""

    STOP = "Stop"
    SNAPSHOT = "Snapshot"
    RUN = "run"
    TAPE = "tape"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ArchivedThread:
    """One thread: where it was, without its arguments."""

    pid: int
    tid: int
    comm: str = ""
    state: str = "?"
    """R, S, D, T, t, Z as proc_pid_stat(5) has it."""
    wait: str = ""
    """The system call and the kernel's function that it waits in; empty where it was not observable."""
    rank: int | None = None
    role: str = ""
    since_s: float | None = None
    """Seconds in it; None where that is not known."""
    note: str = ""
    """culprit, victim, or empty."""


@dataclass(frozen=True, slots=True)
class GroupPressure:
    """What the control group of one container says of its resources; empty texts where it has no such file."""

    name: str
    """Pod and the first digits of the container's id."""
    cpu: str = ""
    """cpu.pressure."""
    memory: str = ""
    """memory.pressure."""
    io: str = ""
    """io.pressure."""
    throttled: str = ""
    """nr_throttled and throttled_usec of cpu.stat."""
    events: str = ""
    """memory.events."""
    memory_bytes: int | None = None
    """memory.current."""
    memory_most_bytes: int | None = None
    """memory.max; None without a limit."""


@dataclass(frozen=True, slots=True)
class NodePart:
    """The part of one node."""

    node: str
    time_s: float
    """When it was taken, unix seconds by the clock of the node."""
    trigger: EvidenceTrigger = EvidenceTrigger.UNKNOWN
    version: str = ""
    """Of the program that wrote it."""
    report: FaultReport | None = None
    """The newest one: verdict, ranks, connections, collectives, flight records, devices, findings in logs."""
    stacks: tuple[Stack, ...] = ()
    threads: tuple[ArchivedThread, ...] = ()
    pressure: tuple[GroupPressure, ...] = ()
    kernels: tuple[GpuKernel, ...] = ()
    """That ran on the GPUs of its ranks, where the operator has them read."""
    checkpoints: tuple[str, ...] = ()
    """POD/CONTAINER: PATH of what the kubelet wrote on the node, which is not in the archive."""
    logs: Mapping[str, str] = field(default_factory=dict)
    """The end of each container's log, by POD.CONTAINER.log."""
    facts: tuple[str, ...] = ()
    """What was announced last, as JSON lines."""
    unobserved: tuple[str, ...] = ()
    """What could not be kept, and why."""
