"""Reads kernel log lines of device drivers: pure text in, facts out.

Takes records of /dev/kmsg (Documentation/ABI/testing/dev-kmsg) and texts of the printk tracepoint.
Only what a driver printed at the start of its own record counts: elsewhere a kernel message may
quote what a user typed. Only the kernel's own facility counts: user space cannot write that.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.facts.devices import DeviceNotice, Notice, Rung, XidReported
from kcover_ebpf.ids import Pid

_KERNEL_FACILITY_BELOW = 8
"""A record's first number is facility * 8 + level; facility 0 is the kernel."""


@dataclass(frozen=True, slots=True)
class KmsgRecord:
    """One record of /dev/kmsg."""

    priority: int
    sequence: int
    """Grows by one a record: a gap means that the ring was overwritten before it was read."""
    time_s: float
    """Seconds since the boot, without those suspended (the kernel's local_clock)."""
    text: str

    @property
    def from_kernel(self) -> bool:
        """False for what user space wrote."""
        return self.priority < _KERNEL_FACILITY_BELOW


_ESCAPE = re.compile(r"\\x([0-9a-f]{2})")


def parse_record(raw: bytes) -> KmsgRecord | None:
    """One read of /dev/kmsg as a record; None when it has not the documented form."""
    record = split_record(raw.decode("utf-8", "replace"))
    if record is None:
        return None
    # what follows the first newline is a dictionary of properties, one a line behind a blank
    text = record.text.partition("\n")[0]
    return replace(record, text=_ESCAPE.sub(lambda match: chr(int(match[1], 16)), text))


def split_record(text: str) -> KmsgRecord | None:
    """A record as it was read or saved, its message unchanged; None for text of another form."""
    prefix, separator, rest = text.partition(";")
    fields = prefix.split(",")
    if not separator or len(fields) < 4 or not all(_is_number(word) for word in fields[:3]):
        return None
    return KmsgRecord(int(fields[0]), int(fields[1]), int(fields[2]) / 1e6, rest)


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdecimal() and len(word) < 20


_BDF = r"(?P<bdf>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"
_XID = re.compile(
    rf"NVRM: Xid \((?:PCI:)?{_BDF}"
    r"(?: GPU-I:(?P<gi>\d{1,3}))?(?: GPU-CI:(?P<ci>\d{1,3}))?\): (?P<number>\d{1,4})(?!\d)"
    r"(?:, (?P<rest>.*))?",
    re.DOTALL,
)

# In logs that others wrote the device's address has more forms than the driver's, and nothing is read of it.
# No bracket, and at least four characters: else the name of a process that crashed could begin one.
XID_IN_LOG = (
    r"^NVRM: (?:[^\[]*NVRM: )?Xid \([^)\[]{4,40}\): (?P<number>\d{1,4})\b(?:, (?P<rest>.*))?"
)
SXID_IN_LOG = (
    r"^nvidia-nvswitch\d+: SXid \([^)\[]{4,40}\): (?P<number>\d{1,6})\b(?:, (?P<rest>.*))?"
)
BEGINS_IN_LOG = r"NVRM: Xid \(|nvidia-nvswitch\d+: SXid \("
"""Every line that one of the two may match has this."""

_TASK = re.compile(r"\[\d+\]")
_PID = re.compile(r"pid=(?:'?<unknown>'?|'?(?P<pid>\d{1,10})'?)(?:, |$)")
_NAME = re.compile(r"name=(?P<name>[^,]*)(?:, |$)")
_SXID = re.compile(
    rf"nvidia-nvswitch\d{{1,3}}: SXid \(PCI:{_BDF}\): "
    r"(?P<number>\d{1,6})(?!\d)(?:, (?P<rest>.*))?",
    re.DOTALL,
)
_SXID_LINK = re.compile(r"^(?:Fatal|Non-fatal|Correctable), Link (\d{1,3})\b")
_SXID_DETAIL = re.compile(r"^(?:Severity \d|Data \{)")
_CONSOLE_TIME = re.compile(r"^\[ *\d+\.\d+\](?:\[ *[TC]\d+\])? ")
_OLD_CONSOLE_LEVEL = re.compile(r"^<\d>")


def read_console(text: str, boottime_ns: int) -> XidReported | DeviceNotice | None:
    """What one message of the printk:console tracepoint says; an Xid from there is unconfirmed.

    Kernels before 6.0 put the console's time stamp in front.
    """
    text = _CONSOLE_TIME.sub("", _OLD_CONSOLE_LEVEL.sub("", text)).rstrip("\n")
    return read_line(text, boottime_ns, Rung.CONSOLE)


def read_record(record: KmsgRecord, boottime_ns: int) -> XidReported | DeviceNotice | None:
    """What one record of /dev/kmsg says; None for other lines and for what user space wrote."""
    return read_line(record.text, boottime_ns, Rung.KMSG) if record.from_kernel else None


def read_line(text: str, boottime_ns: int, rung: Rung) -> XidReported | DeviceNotice | None:
    """What one message, without any prefix of the log itself, says about a device."""
    if text.startswith("NVRM: "):
        # the driver prints with a continuation mark: a message may have joined one before it
        match = _XID.search(text)
        if match and _TASK.search(text, 0, match.start()):
            return None  # a process called NVRM that crashed: the rest is its file's name
        return _xid(match, boottime_ns, rung) if match else _notice(text, boottime_ns)
    if text.startswith("nvidia-nvswitch"):
        match = _SXID.match(text)
        return _sxid(match, boottime_ns, rung) if match else None
    return _notice(text, boottime_ns)


def is_detail(text: str) -> bool:
    """True for registers that a switch's driver prints behind a report, under the same number."""
    match = _SXID.match(text)
    return match is not None and _SXID_DETAIL.match(match["rest"] or "") is not None


def message_parts(text: str) -> tuple[Pid | None, str, str]:
    """Process id, process name and the message proper of what follows an Xid's number."""
    pid: Pid | None = None
    name = ""
    if match := _PID.match(text):
        pid = Pid(int(match["pid"])) if match["pid"] else None
        text = text[match.end() :]
    if match := _NAME.match(text):
        name = "" if match["name"] == "<unknown>" else match["name"]
        text = text[match.end() :]
    return pid, name, text.strip()


def pci_address(bdf: str) -> str:
    """A PCI address in the kernel's form; the driver leaves out the function, which is 0."""
    bdf = bdf.lower()
    return bdf if "." in bdf else f"{bdf}.0"


def _xid(match: re.Match[str], boottime_ns: int, rung: Rung) -> XidReported:
    pid, name, message = message_parts(match["rest"] or "")
    return XidReported(
        boottime_ns,
        pci_address(match["bdf"]),
        int(match["number"]),
        message,
        rung,
        confirmed=rung is not Rung.CONSOLE,
        pid=pid,
        process=name,
        gpu_instance=_int(match["gi"]),
        compute_instance=_int(match["ci"]),
    )


def _sxid(match: re.Match[str], boottime_ns: int, rung: Rung) -> XidReported | None:
    rest = (match["rest"] or "").strip()
    if _SXID_DETAIL.match(rest):
        return None  # registers of the report before it, under the same number
    link = _SXID_LINK.match(rest)
    return XidReported(
        boottime_ns,
        pci_address(match["bdf"]),
        int(match["number"]),
        rest,
        rung,
        confirmed=rung is not Rung.CONSOLE,
        link=int(link[1]) if link else None,
    )


def _int(digits: str | None) -> int | None:
    return None if digits is None else int(digits)


_NVRM_GPU = rf"NVRM: GPU {_BDF}: "
_AMD_GPU = rf"amdgpu {_BDF}: (?:amdgpu: )?"
_MLX5 = rf"mlx5_core {_BDF}(?: [^ :]{{1,15}})?: "
_NOTICES: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Notice]], ...] = tuple(
    (re.compile(pattern, re.DOTALL), choose)
    for pattern, choose in (
        (_NVRM_GPU + r".*fallen off the bus", lambda _: Notice.GPU_LOST),
        (rf"NVRM: The NVIDIA GPU {_BDF}\s.*fallen off the bus", lambda _: Notice.GPU_LOST),
        (_AMD_GPU + r"[\w ]{0,40}[Dd]evice lost from bus", lambda _: Notice.GPU_LOST),
        (
            _AMD_GPU + r"(?:GPU reset(?:\(\d+\) failed| end with ret = -\d+)"
            r"|Fatal error during GPU init|amdgpu_device_ip_init failed"
            r"|failed to load ucode|PSP (?:load|create) \w+ failed)",
            lambda _: Notice.GPU_INIT_FAILED,
        ),
        (
            rf"amdgpu {_BDF}: probe with driver amdgpu failed with error",
            lambda _: Notice.GPU_INIT_FAILED,
        ),
        (
            _AMD_GPU + r"(?:[\w :]{0,80}(?:bad page\w* |RAS records).{0,80}(?:exceed|reach)"
            r"|.{0,80}Bad page threshold|GPU is bad)",
            lambda _: Notice.GPU_WORN_OUT,
        ),
        (_AMD_GPU + r"GPU reset begin", lambda _: Notice.GPU_RESET),
        (
            _AMD_GPU + r"(?:.{0,80}[^\d][1-9]\d* (?:new )?uncorrectable hardware errors detected"
            r"|.{0,80}(?:[Pp]oison (?:is )?(?:consum|creat)|[Uu]ncorrectable error|RAS fatal error"
            r"|ERREVENT_ATHUB_INTERRUPT))",
            lambda _: Notice.GPU_ERROR,
        ),
        (_AMD_GPU + r"XGMI: .{0,200}(?:[Ff]ail|error)", lambda _: Notice.GPU_LINK_ERROR),
        (_NVRM_GPU + r"(?:RmInitAdapter|rm_init_adapter) failed", lambda _: Notice.GPU_INIT_FAILED),
        (
            _MLX5 + r".*(?:Fatal error \d+ detected|health compromised|handling bad device here"
            r"|recovery (?:flow aborted|failed)|Will cause a leak of a command resource)",
            lambda _: Notice.NIC_FAILED,
        ),
        (_MLX5 + r".*health recovery succeeded", lambda _: Notice.NIC_RECOVERED),
        (_MLX5 + r".*TX timeout detected", lambda _: Notice.NIC_TIMEOUT),
        (
            _MLX5 + r".*(?:Port module event\[error\]|insufficient power)",
            lambda _: Notice.MODULE_FAULT,
        ),
        (
            (
                rf"pcieport {_BDF}: pciehp: Slot\([^)]*\): (?P<what>Link Down|Card not present"
                r"|Power fault|Cannot train link|Link Up|Card present)"
            ),
            lambda match: (
                Notice.SLOT_UP if match["what"] in ("Link Up", "Card present") else Notice.SLOT_DOWN
            ),
        ),
    )
)


def _notice(text: str, boottime_ns: int) -> DeviceNotice | None:
    for pattern, choose in _NOTICES:
        if match := pattern.match(text):
            flat = " ".join(text.split())
            return DeviceNotice(boottime_ns, pci_address(match["bdf"]), choose(match), flat)
    return None
