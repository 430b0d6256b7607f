"""Reports of devices as facts: GPUs, PCIe, memory, network ports.

The rules of `facts` apply: immutable, CLOCK_BOOTTIME nanoseconds, an observation and never its meaning. A `device` is a
PCI address with its function, in lower case ("0000:5d:00.0"). What a report means for a job is a `DeviceFault`, made in
`devices` with the help of the catalogue.
"""

from __future__ import annotations

from enum import Enum

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.ids import Pid


class Rung(Enum):
    """Source in which an Xid was seen, best first (docs/hardware.md)."""

    KPROBE = "kprobe"
    TRACEPOINT = "tracepoint"
    CONSOLE = "console"
    KMSG = "kmsg"
    NVML = "nvml"


@dataclass(frozen=True, slots=True)
class XidSighting:
    """A BPF program saw the driver report an error; together with its other traces this becomes an Xid."""

    boottime_ns: int
    device: str
    number: int
    text: str
    """The driver's message, or its format string if the values are not filled in yet."""
    rung: Rung


@dataclass(frozen=True, slots=True)
class XidReported:
    """The GPU or NVSwitch driver reported an error by number."""

    boottime_ns: int
    device: str
    number: int
    """Number of the Xid; of an SXid if it is 10000 or above."""
    text: str
    """The driver's message after the number and the process; empty if the source has none."""
    rung: Rung
    confirmed: bool
    """False if only the console showed it: a process that may write to the kernel log could have forged it."""
    pid: Pid | None = None
    """Process that allocated the channel (initial pid namespace); None when the driver did not name it."""
    process: str = ""
    gpu_instance: int | None = None
    compute_instance: int | None = None
    """The MIG instance; None for a whole GPU."""
    link: int | None = None
    """NVSwitch port (SXid only); None when the message names none."""


class Notice(Enum):
    """Meaning of a driver line without a number; a closed list."""

    GPU_LOST = "gpu_lost"
    GPU_INIT_FAILED = "gpu_init_failed"
    GPU_RESET = "gpu_reset"
    """The driver resets a GPU by itself: processes on it have lost its memory."""
    GPU_WORN_OUT = "gpu_worn_out"
    """So much of a GPU's memory has failed that the driver asks for a replacement."""
    GPU_ERROR = "gpu_error"
    """An uncorrected error of a GPU's memory or units. The driver ends the processes that use it, or resets the GPU."""
    GPU_LINK_ERROR = "gpu_link_error"
    """An error of the links between GPUs, without a number."""
    NIC_FAILED = "nic_failed"
    NIC_RECOVERED = "nic_recovered"
    NIC_TIMEOUT = "nic_timeout"
    NIC_HEALTH = "nic_health"
    """The driver noticed something that it may repair itself: a queue that hangs, a full buffer."""
    MODULE_FAULT = "module_fault"
    SLOT_DOWN = "slot_down"
    SLOT_UP = "slot_up"


@dataclass(frozen=True, slots=True)
class DeviceNotice:
    """A driver reported something about its device that has no error number."""

    boottime_ns: int
    device: str
    """PCI address; the port's own for SLOT_*."""
    notice: Notice
    text: str


@dataclass(frozen=True, slots=True)
class DriverLine:
    """A driver's line as printed, not parsed yet; a process that may write to the log can forge it."""

    boottime_ns: int
    text: str


class AerSeverity(Enum):
    """Severity of a PCIe error as the tracepoint numbers it (kernel: include/ras/ras_event.h)."""

    NONFATAL = 0
    FATAL = 1
    CORRECTED = 2


@dataclass(frozen=True, slots=True)
class AerTotal:
    """Report of a PCIe error by a BPF program: corrected ones are reported at most once an interval."""

    boottime_ns: int
    device: str
    severity: AerSeverity
    status: int
    """Bits of the reported error; those of uncounted errors in between are not included."""
    total: int
    """Errors of this device and severity since the probe was attached; 0: not counted."""


@dataclass(frozen=True, slots=True)
class AerError:
    """PCIe advanced error reporting: one error, or many corrected ones of one device added up."""

    boottime_ns: int
    device: str
    """The device that detected it, often a port above the real one."""
    severity: AerSeverity
    status: int
    """Error bits, masked; 0 for a fatal error of an endpoint, whose registers could not be read."""
    errors: tuple[str, ...]
    """Names of the bits, as in the PCIe specification."""
    count: int
    """Errors of this device and severity since the previous report."""


class MemoryKind(Enum):
    """Which part of the kernel reported bad memory."""

    EDAC = "edac"
    PAGE = "page"
    MACHINE_CHECK = "machine_check"
    ARM_PROCESSOR = "arm_processor"
    """Reported by an arm64 machine's firmware."""
    VENDOR_SECTION = "vendor_section"
    """Reported by firmware in a vendor-specific form, as NVIDIA's processors do."""


@dataclass(frozen=True, slots=True)
class MemoryFault:
    """The host's memory or processor reported an error."""

    boottime_ns: int
    kind: MemoryKind
    corrected: bool
    address: int
    """Physical address; page frame number for PAGE; MPIDR for ARM_PROCESSOR; 0 when unknown."""
    count: int
    text: str


@dataclass(frozen=True, slots=True)
class DeviceHeld:
    """A process opened (or closed for the last time) a GPU's device file."""

    boottime_ns: int
    pid: Pid
    minor: int
    """Minor number of /dev/nvidiaN; 255 is nvidiactl."""
    file: int
    """Identity of the open file: forks and passed descriptors share it."""
    held: bool


@dataclass(frozen=True, slots=True)
class CudaContext:
    """A process began (or ended) to use a GPU for computing."""

    boottime_ns: int
    pid: Pid
    uuid: str
    """Uuid as NVML writes it, "GPU-00112233-..."."""
    active: bool


@dataclass(frozen=True, slots=True)
class DriverChange:
    """A kernel module was loaded or unloaded; device drivers need their probes attached again."""

    boottime_ns: int
    module: str


@dataclass(frozen=True, slots=True)
class PortChange:
    """A network or RDMA port changed."""

    boottime_ns: int
    port: str
    """Interface name ("eth0") or RDMA device and port ("mlx5_0/1")."""
    device: str
    """PCI address behind it; empty for a virtual one."""
    up: bool
    text: str
    addresses: tuple[str, ...] = ()
    """Addresses of an interface: they show which connections go through it."""

    @property
    def is_rdma(self) -> bool:
        """True for a port of an RDMA device, False for a network interface."""
        return "/" in self.port


@dataclass(frozen=True, slots=True)
class BlockError:
    """A disk failed a request; which process's data it was is unknown."""

    boottime_ns: int
    disk: str
    """Name of the disk, such as "sda" or "nvme0n1"."""
    device: str
    """Device number of the whole disk, MAJOR:MINOR."""
    operation: str
    """One of read, write, flush, discard, or a number."""
    sector: int
    size_bytes: int
    error: str
    """The block layer's own class of error: medium, transport, timeout, ..."""


@dataclass(frozen=True, slots=True)
class DriverCall:
    """A thread sits in a call of the GPU driver that signals cannot end (state D)."""

    boottime_ns: int
    pid: Pid
    tid: int
    since_ns: int
    node: str
    """The device file of the call, "/dev/nvidiactl" for most."""
    device: str
    """PCI address of the GPU; empty if the process has several open, or none is known."""
    uuid: str
    wait_channel: str
    """The kernel function it sleeps in; empty when unknown."""


@dataclass(frozen=True, slots=True)
class DeviceFault:
    """A device that a process of a job has open was announced to be broken."""

    boottime_ns: int
    pid: Pid
    """The process of the job that has the device open."""
    device: str
    code: str
    """Short name for people and metrics: Xid 79, SXid 20034, AER fatal, port down."""
    text: str
    """The sentence for the evidence, with device, code and meaning."""
    ends_job: bool
    """False if it is only reported as evidence."""
    if_stalled: bool = False
    """It ends the job only if the ranks have stalled: another device may carry this one's load."""
    uuid: str = ""
    """Uuid of a GPU, as NVML and device plug-ins write it; empty for other devices."""


@dataclass(frozen=True, slots=True)
class AnnouncedFault:
    """A device of this node was announced to be broken, whether or not a process has it open.

    `DeviceFault` is the same for one such process.

    It concerns the node and is no fact about a job: no tape contains it.
    """

    boottime_ns: int
    device: str
    code: str
    text: str
    ends_job: bool
    """False if it is only reported as evidence."""
    device_unfit: bool
    """True: no job can use the device again before it is reset or replaced. A job may end without this (a contained
    memory error), and a device may be unfit while its job continues."""
    holders: frozenset[Pid] = frozenset()
    """The watched processes that have the device open."""
    if_stalled: bool = False
    """It ends a job only if its ranks have stalled: another device may carry this one's load."""
    uuid: str = ""
    """Uuid of a GPU, as NVML and device plug-ins write it; empty for other devices."""
    port: str = ""
    """Port of a network device; empty for other devices."""

    @property
    def of_holders(self) -> list[DeviceFault]:
        """One `DeviceFault` for each process in `holders`, by pid."""
        return [
            DeviceFault(
                self.boottime_ns,
                pid,
                self.device,
                self.code,
                self.text,
                self.ends_job,
                self.if_stalled,
                self.uuid,
            )
            for pid in sorted(self.holders)
        ]


@dataclass(frozen=True, slots=True)
class FabricMoved:
    """Bytes moved over the RDMA ports that a process has open.

    All processes of this host that have them open share the count.
    """

    boottime_ns: int
    pid: Pid
    bytes_count: int
    """Bytes sent and received since the previous reading, about a second earlier."""


@dataclass(frozen=True, slots=True)
class FabricErrors:
    """Error counters of an RDMA port that a process has open have grown; all that have it open share them."""

    boottime_ns: int
    pid: Pid
    port: str
    """RDMA device and port ("mlx5_0/1")."""
    device: str
    """PCI address behind it; empty for a virtual one."""
    counters: tuple[tuple[str, int], ...]
    """Name, and by how much it has grown since the reading before, some seconds earlier."""


class GpuUse(Enum):
    """Use of a GPU, judged by its utilisation, power and memory."""

    UNKNOWN = "unknown"
    WORKING = "working"
    IDLE = "idle"
    """No kernel runs, and next to no memory is in use."""
    MEMORY_HELD = "memory_held"
    """No kernel runs, while processes keep memory on it."""
    LOW_POWER = "busy_at_low_power"
    """A kernel runs all the time and draws little power, as one that waits in a loop does."""


@dataclass(frozen=True, slots=True)
class GpuSeen:
    """One reading of the GPUs that a process computes on, all together."""

    boottime_ns: int
    pid: Pid
    devices: tuple[str, ...]
    """PCI addresses of the GPUs."""
    use: GpuUse
    """Use of all of them; WORKING if they differ."""
    use_since_ns: int
    """When the last of them was first seen in this use (boottime)."""
    power_w: float | None = None
    """Sum over the GPUs whose power is known; None if there are none."""
    nvlink_bytes: int = 0
    """Bytes sent and received since the previous reading."""
    pcie_bytes: int = 0
    changed: bool = False
    """Utilisation or power of one of them differs much from the previous reading: some work began or ended."""


DeviceFact = (
    XidSighting
    | XidReported
    | DeviceNotice
    | DriverLine
    | AerTotal
    | AerError
    | MemoryFault
    | DeviceHeld
    | CudaContext
    | DriverChange
    | PortChange
    | BlockError
    | DriverCall
    | FabricMoved
    | FabricErrors
    | GpuSeen
    | DeviceFault
)
