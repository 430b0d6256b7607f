"""The same line means the same to `kcover-ebpf logs` and to whatever reads it on a node.

Of the corpus of the tree: the sensor of devices, the inspection of the kernel's log, the agent's reader of containers.
"""

import pytest

from kcover_ebpf.api import rfc3339
from kcover_ebpf.devices import fault_rules
from kcover_ebpf.devices.catalog.files import shipped as catalog
from kcover_ebpf.devices.xid import kmsg_parser
from kcover_ebpf.facts.devices import AnnouncedFault, DeviceNotice, Rung, XidReported
from kcover_ebpf.facts.health import Result
from kcover_ebpf.inspection.checks import kernel_log
from kcover_ebpf.logs import lines, rules
from kcover_ebpf.logs.container_log import ContainerLogReader
from kcover_ebpf.logs.lines import Source
from kcover_ebpf.logs.log_files import Chunk
from kcover_ebpf.logs.reader import LogReader, Match
from kcover_ebpf.logs.rules import Concerns, Severity
from tests.unit.support.log_corpus import ROWS

XIDS = [
    "NVRM: Xid (PCI:0000:0a:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x026001c6 0x00000000)",
    "NVRM: Xid (PCI:0000:0a:00): 149, NETIR_LINK_EVT Fatal XC0 i2 Link 00 (0x026001c6 0x00000000)",
    "NVRM: Xid (PCI:0000:0a:00): 149, NETIR_BER_EVENT Nonfatal XC0 i0 Link 03 (0x00000000 0x00000001)",
    "NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (PF FLR)",
    "NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed from 0x1 (PF FLR) to 0x0 (None)",
    "NVRM: Xid (PCI:0000:dc:00): 45, pid=18180, name=python3, Ch 00000001 caused by previous Xid 149",
    "NVRM: Xid (PCI:0000:dc:00): 94, pid=18180, name=python3, Contained: SM (0x1). RST: Yes, D-RST: No",
    "NVRM: Xid (PCI:0000:dc:00): 94, pid=18180, name=python3, Contained: SM (0x1). RST: No, D-RST: No",
    "NVRM: Xid (PCI:0000:dc:00): 31, pid=18180, name=python3, Ch 00000001, MMU Fault",
    "nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)",
]
LINES = [*XIDS, *(text for log, text, _ in ROWS if log is Source.KERNEL)]


def live(text: str) -> AnnouncedFault | None:
    """What the sensor makes of it; None where it is not a line of a device, or no fault."""
    match kmsg_parser.read_line(text, 1, Rung.KMSG):
        case XidReported() as report:
            meaning = fault_rules.of_xid(report, catalog())
            return None if meaning is None else meaning.fault
        case DeviceNotice() as notice:
            return fault_rules.of_notice(notice, notice.device)
        case None:
            return None


def is_message(text: str) -> bool:
    """Whether nothing is in front of it: a record of the kernel has no head in its text."""
    line = lines.parse(text)
    return line is not None and line.written == text


def saved(text: str) -> Match | None:
    reader = LogReader(rules.shipped(), catalog(), source=Source.KERNEL)
    return next(iter([*reader.feed(text.encode()), *reader.finish()]), None)


LIVE = [text for text in LINES if live(text) is not None]
NUMBERED = ("xid_", "sxid_")
"""Those the sensor announces; an inspection leaves them to it."""
KERNEL = [
    text
    for log, text, rule in ROWS
    if log is Source.KERNEL and not rule.startswith(NUMBERED) and is_message(text)
]
CONTAINER = [text for log, text, _ in ROWS if log is Source.CONTAINER]
OWN = tuple(rule for rule in rules.shipped() if rule.source is Source.CONTAINER)


def test_log_agreement__many_lines_of_the_corpus_are_the_sensors() -> None:
    assert len(LIVE) > len(XIDS) + 12


@pytest.mark.parametrize("text", LIVE, ids=lambda text: text[:60])
def test_log_agreement__what_is_unfit_to_one_is_fatal_to_the_other(text: str) -> None:
    fault, match = live(text), saved(text)
    assert fault is not None
    assert match is not None
    assert fault.device_unfit == (
        match.severity is Severity.FATAL and match.concerns is Concerns.NODE
    )
    if match.rule.startswith("xid_"):  # what one link of a switch lost, its GPU reports itself
        assert fault.ends_job == (match.severity in (Severity.FATAL, Severity.ERROR))
    elif fault.ends_job:
        assert match.severity in (Severity.FATAL, Severity.ERROR)


@pytest.mark.parametrize("text", KERNEL, ids=lambda text: text[:60])
def test_log_agreement__an_inspection_finds_what_logs_says_of_the_node(text: str) -> None:
    record = f"3,17,1000000,-;{text}\n".encode()
    (finding,) = kernel_log.judged([record], now_s=2.0, unix_offset_s=0.0)
    match = saved(text)
    if match is None or match.concerns is Concerns.JOB:
        assert finding.result is Result.PASS
        return
    lasts = match.lasting and match.severity in (Severity.FATAL, Severity.ERROR)
    assert finding.evidence.startswith(f"{match.rule}: ")
    assert finding.result is (Result.FAIL if lasts else Result.WARN)


@pytest.mark.parametrize("text", CONTAINER, ids=lambda text: text[:60])
def test_log_agreement__the_agent_reports_what_logs_says(text: str) -> None:
    line = f"2026-11-28T12:00:00.000000000Z stderr F {text}\n"
    reader = LogReader(rules.shipped(), catalog(), source=Source.UNKNOWN)
    (match,) = reader.feed(line.encode())
    agent = ContainerLogReader("uid", "main", OWN)
    agent.feed(Chunk(0, line.encode(), is_first=True), rfc3339.from_text("2026-11-28T12:00:01Z"))
    shown = agent.summary(rfc3339.from_text("2026-11-28T12:00:02Z"))
    assert shown is not None
    (finding,) = shown.findings
    assert (finding.rule, finding.domain, finding.severity, finding.follows) == (
        match.rule,
        match.domain.value,
        match.severity.value,
        match.follows,
    )


@pytest.mark.parametrize("skipped_bytes", [0, 5])
def test_log_agreement__the_rest_of_a_containers_line_is_no_line_of_the_kernel(
    skipped_bytes: int,
) -> None:
    xid = "kernel: NVRM: Xid (PCI:0000:c1:00): 79, pid=1, GPU has fallen off the bus."
    assert saved(xid) is not None
    agent = ContainerLogReader("uid", "main", OWN)
    # where reading began, the runtime's head of the first line is missing
    agent.feed(Chunk(0, f"of a line\r{xid}\rend\n".encode(), skipped_bytes), 1.8e9)
    assert agent.summary(1.8e9) is None
