"""Parses kernel log lines of device drivers: text in, facts out.

Pure. Takes records of /dev/kmsg (Documentation/ABI/testing/dev-kmsg) and texts of the printk tracepoint.

Two rules prevent forgery. Only text at the start of a record counts, because a kernel message may quote user input
further on. Only records of the kernel's own facility count, because user space cannot write those.
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
    """One record of /dev/kmsg; the fields are those of its prefix and the message."""

    priority: int
    sequence: int
    """Grows by one per record: a gap means that records were overwritten before they were read."""
    time_s: float
    """Seconds since boot, excluding suspend (the kernel's local_clock)."""
    text: str

    @property
    def from_kernel(self) -> bool:
        """False if user space wrote the record."""
        return self.priority < _KERNEL_FACILITY_BELOW


_ESCAPE = re.compile(r"\\x([0-9a-f]{2})")


def parse_record(raw: bytes) -> KmsgRecord | None:
    """One read of /dev/kmsg as a record; None if it does not have the documented form."""
    record = split_record(raw.decode("utf-8", "replace"))
    if record is None:
        return None
    # after the first newline follow properties, one per line, each indented by a blank
    text = record.text.partition("\n")[0]
    return replace(record, text=_ESCAPE.sub(lambda match: chr(int(match[1], 16)), text))


def split_record(text: str) -> KmsgRecord | None:
    """A record in its raw or saved form, with its message unchanged; None if the text has another form."""
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

# In logs written by others, the device address has more forms than the driver's; nothing is read
# from it. No bracket, and at least four characters: otherwise the name of a process that crashed
# could begin one.
XID_IN_LOG = (
    r"^NVRM: (?:[^\[]*NVRM: )?Xid \([^)\[]{4,40}\): (?P<number>\d{1,4})\b(?:, (?P<rest>.*))?"
)
SXID_IN_LOG = (
    r"^nvidia-nvswitch\d+: SXid \([^)\[]{4,40}\): (?P<number>\d{1,6})\b(?:, (?P<rest>.*))?"
)
BEGINS_IN_LOG = r"NVRM: Xid \(|nvidia-nvswitch\d+: SXid \("
"""Every line that one of the two patterns can match contains this."""

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
    """The report in one message of the printk:console tracepoint; an Xid from there is unconfirmed.

    Kernels before 6.0 put the console's time stamp in front.
    """
    text = _CONSOLE_TIME.sub("", _OLD_CONSOLE_LEVEL.sub("", text)).rstrip("\n")
    return read_line(text, boottime_ns, Rung.CONSOLE)


def read_record(record: KmsgRecord, boottime_ns: int) -> XidReported | DeviceNotice | None:
    """The report in one record of /dev/kmsg; None for other lines and for records that user space wrote."""
    return read_line(record.text, boottime_ns, Rung.KMSG) if record.from_kernel else None


def read_line(text: str, boottime_ns: int, rung: Rung) -> XidReported | DeviceNotice | None:
    """The device report in one message, which must have no prefix of the log itself; None for other lines."""
    if text.startswith("NVRM: "):
        # the driver prints with a continuation mark, so another message may precede it on the same
        # line
        match = _XID.search(text)
        if match and _TASK.search(text, 0, match.start()):
            return None  # a crashed process is called NVRM: the rest of the line is a file name
        return _xid(match, boottime_ns, rung) if match else _notice(text, boottime_ns)
    if text.startswith("nvidia-nvswitch"):
        match = _SXID.match(text)
        return _sxid(match, boottime_ns, rung) if match else None
    return _notice(text, boottime_ns)


def is_detail(text: str) -> bool:
    """True for register lines that the NVSwitch driver prints after a report under the same number."""
    match = _SXID.match(text)
    return match is not None and _SXID_DETAIL.match(match["rest"] or "") is not None


def message_parts(text: str) -> tuple[Pid | None, str, str]:
    """Process id, process name and message, from the text after an Xid number."""
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
    """PCI address in the kernel's form; the driver omits the function, which is 0."""
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
