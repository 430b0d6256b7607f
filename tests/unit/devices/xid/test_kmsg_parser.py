"""The kernel log parser: every form the drivers print, and nothing that anyone else prints."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kcover_ebpf.devices.xid.kmsg_parser import (
    KmsgRecord,
    parse_record,
    read_console,
    read_line,
    read_record,
)
from kcover_ebpf.devices.xid.kmsg_reader import may_concern
from kcover_ebpf.facts.devices import DeviceNotice, Notice, Rung, XidReported
from kcover_ebpf.ids import Pid

GPU = "0000:5d:00.0"


def said(text: str) -> XidReported | DeviceNotice | None:
    report = read_line(text, 7, Rung.KMSG)
    assert report is None or may_concern(text.encode())
    return report


@pytest.mark.parametrize(
    ("rest", "pid", "name", "message"),
    [
        ("pid=1234, name=python3, Ch 00000008", 1234, "python3", "Ch 00000008"),
        ("pid='1234', name=python3, MMU Fault", 1234, "python3", "MMU Fault"),
        ("pid='<unknown>', name=<unknown>, GPU lost", None, "", "GPU lost"),
        ("pid=<unknown>, name=<unknown>, GPU lost", None, "", "GPU lost"),
        ("pid=77, Channel 00000001", 77, "", "Channel 00000001"),
        ("pid=77, name=, text", 77, "", "text"),
        ("pid=77, name=a b c, text", 77, "a b c", "text"),
        ("pid=77, name=python3", 77, "python3", ""),
        ("Channel 00000001", None, "", "Channel 00000001"),
        ("GPU has fallen off the bus.", None, "", "GPU has fallen off the bus."),
        ("pidof=3, x", None, "", "pidof=3, x"),
        (
            "pid=5, name=nccl, Ch 8 caused by previous Xid 31",
            5,
            "nccl",
            "Ch 8 caused by previous Xid 31",
        ),
    ],
)
def test_read_line__forms_of_the_process(rest, pid, name, message):
    report = said(f"NVRM: Xid (PCI:0000:5d:00): 79, {rest}")
    assert report == XidReported(7, GPU, 79, message, Rung.KMSG, True, pid, name)


@pytest.mark.parametrize(
    ("head", "device", "gi", "ci"),
    [
        ("(PCI:0000:5d:00)", GPU, None, None),
        ("(PCI:0000:5D:00)", GPU, None, None),
        ("(0000:03:00)", "0000:03:00.0", None, None),
        ("(PCI:0000:5d:00 GPU-I:05)", GPU, 5, None),
        ("(PCI:0000:5d:00 GPU-I:05 GPU-CI:02)", GPU, 5, 2),
        ("(PCI:10000:e1:00)", "10000:e1:00.0", None, None),
    ],
)
def test_read_line__forms_of_the_device(head, device, gi, ci):
    report = said(f"NVRM: Xid {head}: 31, pid=9, name=x, MMU Fault")
    assert isinstance(report, XidReported)
    assert (report.device, report.gpu_instance, report.compute_instance) == (device, gi, ci)


def test_read_line__a_bare_number_is_enough():
    report = said("NVRM: Xid (PCI:0000:5d:00): 79")
    assert report == XidReported(7, GPU, 79, "", Rung.KMSG, True)


def test_read_line__a_message_that_continued_another_of_the_driver():
    report = said("NVRM: GPU at PCI:0000:5d:00: GPU-1 NVRM: Xid (PCI:0000:5d:00): 63, Row Remapper")
    assert isinstance(report, XidReported)
    assert report.number == 63


@pytest.mark.parametrize(
    ("rest", "number", "link"),
    [
        ("20034, Fatal, Link 30 LTSSM Fault Up", 20034, 30),
        ("12028, Non-fatal, Link 02 egress non-posted PRIV error (First)", 12028, 2),
        ("11012, Correctable, Link 05 ingress header ECC", 11012, 5),
        ("10003, Fatal, Host_unhandled_interrupt (First)", 10003, None),
        ("10004, Temperature 88C | TSENSE WARN Threshold 85C", 10004, None),
        ("24007, Fatal, Linkage lost", 24007, None),
    ],
)
def test_read_line__switch_errors(rest, number, link):
    report = said(f"nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): {rest}")
    assert isinstance(report, XidReported)
    assert (report.number, report.link, report.device) == (number, link, "0000:c1:00.0")
    assert rest.endswith(report.text)


@pytest.mark.parametrize(
    "rest",
    [
        "20034, Severity 1 Engine instance 30 Sub-engine instance 00",
        "20034, Data {0x50610002, 0x00000000, 0x00000000}",
    ],
)
def test_read_line__switch_detail_lines_are_no_second_error(rest):
    assert said(f"nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): {rest}") is None


@pytest.mark.parametrize(
    ("text", "device", "notice"),
    [
        ("NVRM: GPU 0000:5d:00.0: GPU has fallen off the bus.", GPU, Notice.GPU_LOST),
        (
            (
                "NVRM: The NVIDIA GPU 0000:5d:00.0\nNVRM: (PCI ID: 10de:2330) installed in this "
                "system has\nNVRM: fallen off the bus and is not responding to commands."
            ),
            GPU,
            Notice.GPU_LOST,
        ),
        (
            "NVRM: GPU 0000:5d:00.0: RmInitAdapter failed! (0x62:0xffff:2477)",
            GPU,
            Notice.GPU_INIT_FAILED,
        ),
        (
            "NVRM: GPU 0000:5d:00.0: rm_init_adapter failed, device minor number 0",
            GPU,
            Notice.GPU_INIT_FAILED,
        ),
        (
            "mlx5_core 0000:9a:00.0: poll_health:839:(pid 0): Fatal error 3 detected",
            "0000:9a:00.0",
            Notice.NIC_FAILED,
        ),
        (
            (
                "mlx5_core 0000:9a:00.0: poll_health:825:(pid 0): device's health compromised - "
                "reached miss count"
            ),
            "0000:9a:00.0",
            Notice.NIC_FAILED,
        ),
        (
            "mlx5_core 0000:9a:00.0: mlx5_health_try_recover:338: health recovery succeeded",
            "0000:9a:00.0",
            Notice.NIC_RECOVERED,
        ),
        (
            "mlx5_core 0000:9a:00.0 eth0: TX timeout detected",
            "0000:9a:00.0",
            Notice.NIC_TIMEOUT,
        ),
        (
            "mlx5_core 0000:9a:00.0: Port module event[error]: module 0, Cable error, Bad cable",
            "0000:9a:00.0",
            Notice.MODULE_FAULT,
        ),
        (
            "pcieport 0000:5c:00.0: pciehp: Slot(40): Link Down",
            "0000:5c:00.0",
            Notice.SLOT_DOWN,
        ),
        (
            "pcieport 0000:5c:00.0: pciehp: Slot(40): Card not present",
            "0000:5c:00.0",
            Notice.SLOT_DOWN,
        ),
        ("pcieport 0000:5c:00.0: pciehp: Slot(40): Link Up", "0000:5c:00.0", Notice.SLOT_UP),
        (
            "amdgpu 0000:c1:00.0: amdgpu: device lost from bus!",
            "0000:c1:00.0",
            Notice.GPU_LOST,
        ),
        (
            "amdgpu 0000:c1:00.0: amdgpu: GPU reset(4) failed",
            "0000:c1:00.0",
            Notice.GPU_INIT_FAILED,
        ),
        (
            "amdgpu 0000:c1:00.0: amdgpu: Fatal error during GPU init",
            "0000:c1:00.0",
            Notice.GPU_INIT_FAILED,
        ),
        (
            "amdgpu 0000:c1:00.0: probe with driver amdgpu failed with error -110",
            "0000:c1:00.0",
            Notice.GPU_INIT_FAILED,
        ),
        (
            "amdgpu 0000:c1:00.0: amdgpu: RAS records:128 exceed threshold:128",
            "0000:c1:00.0",
            Notice.GPU_WORN_OUT,
        ),
        (
            "amdgpu 0000:c1:00.0: amdgpu: GPU reset begin!",
            "0000:c1:00.0",
            Notice.GPU_RESET,
        ),
        (
            "amdgpu 0000:c1:00.0: amdgpu: socket: 2, die: 0, 1 new uncorrectable hardware errors detected in umc block",
            "0000:c1:00.0",
            Notice.GPU_ERROR,
        ),
        (
            "amdgpu 0000:c1:00.0: amdgpu: Poison is consumed by client 18, kick off gpu reset flow",
            "0000:c1:00.0",
            Notice.GPU_ERROR,
        ),
        (
            "amdgpu 0000:c1:00.0: amdgpu: XGMI: Failed to add node 0, hive 1",
            "0000:c1:00.0",
            Notice.GPU_LINK_ERROR,
        ),
    ],
)
def test_read_line__notices(text, device, notice):
    report = said(text)
    assert isinstance(report, DeviceNotice)
    assert (report.device, report.notice) == (device, notice)
    assert "\n" not in report.text


@pytest.mark.parametrize(
    "text",
    [
        'overlayfs: unrecognized mount option "NVRM: Xid (PCI:0000:5d:00): 79, x"',
        "usb 1-1: Product: x\nNVRM: Xid (PCI:0000:5d:00): 79, x",
        " NVRM: Xid (PCI:0000:5d:00): 79, x",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.154.05",
        "NVRM: Xid (PCI:0000:5d): 79, x",
        "NVRM: Xid (PCI:0000:5d:00): , x",
        "NVRM: Xid (PCI:0000:5d:00): 123456, x",
        "nvidia-nvswitch0: open (major=510)",
        "evil nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30",
        "",
    ],
)
def test_read_line__what_is_not_a_report(text):
    assert said(text) is None


def test_read_record__forged_lines_do_not_count():
    line = "NVRM: Xid (PCI:0000:5d:00): 79, GPU has fallen off the bus."
    kernel, user = (
        parse_record(f"{priority},100,5000000,-;{line}\n".encode()) for priority in (4, 12)
    )
    assert kernel is not None
    assert user is not None
    assert read_record(kernel, 1) is not None
    assert read_record(user, 1) is None


def test_parse_record__records_of_kmsg():
    raw = (
        b"6,339,5140900,c,caller=T12;NVRM: The NVIDIA GPU 0000:5d:00.0\\x0aNVRM: fallen off the bus"
        b"\n SUBSYSTEM=pci\n DEVICE=+pci:0000:5d:00.0\n"
    )
    record = parse_record(raw)
    assert record == KmsgRecord(
        6, 339, 5.1409, "NVRM: The NVIDIA GPU 0000:5d:00.0\nNVRM: fallen off the bus"
    )
    report = read_record(record, 9)
    assert isinstance(report, DeviceNotice)
    assert report.notice is Notice.GPU_LOST


def test_parse_record__an_embedded_newline_cannot_smuggle_a_second_line():
    raw = b"3,1,1,-;overlayfs: unrecognized mount option x\\x0aNVRM: Xid (PCI:0000:5d:00): 79, y\n"
    record = parse_record(raw)
    assert record is not None
    assert record.from_kernel
    assert read_record(record, 1) is None


@pytest.mark.parametrize(
    "prefix", ["", "[    8.310295] ", "[ 1234.000001][  T99] ", "<4>[    8.3] ", "<3>"]
)
def test_read_console__console_prefixes_of_older_kernels(prefix):
    report = read_console(f"{prefix}NVRM: Xid (PCI:0000:5d:00): 31, pid=4, name=x, MMU\n", 5)
    assert report == XidReported(5, GPU, 31, "MMU", Rung.CONSOLE, False, Pid(4), "x")


BDFS = st.builds(
    "{:04x}:{:02x}:{:02x}".format,
    st.integers(0, 0xFFFF),
    st.integers(0, 255),
    st.integers(0, 31),
)
INSTANCE = st.none() | st.integers(0, 99)
PRINTED = st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp"))
NAMES = st.text(PRINTED, max_size=15).filter(lambda name: "," not in name)
MESSAGES = st.text(PRINTED, max_size=80).map(str.strip)


@given(
    BDFS,
    INSTANCE,
    INSTANCE,
    st.integers(1, 999),
    st.none() | st.integers(0, 2**22),
    NAMES,
    MESSAGES,
)
def test_read_line__what_the_driver_prints_is_read_back(  # noqa: PLR0917
    bdf, gi, ci, number, pid, name, message
):
    ci = None if gi is None else ci
    mig = "".join(
        f" GPU-{kind}:{value:02d}" for kind, value in (("I", gi), ("CI", ci)) if value is not None
    )
    who = "pid='<unknown>', name=<unknown>" if pid is None else f"pid={pid}, name={name}"
    report = said(f"NVRM: Xid (PCI:{bdf}{mig}): {number}, {who}, {message}")
    assert isinstance(report, XidReported)
    known_name = "" if pid is None or name == "<unknown>" else name
    assert report == XidReported(
        7, f"{bdf}.0", number, message, Rung.KMSG, True, pid, known_name, gi, ci
    )


@given(st.binary(max_size=300))
@example(b"6,1,1,-;" + b"NVRM: Xid (" * 20)
@example(b"4,1,1,-;NVRM: Xid (PCI:0000:5d:00): 79, pid='<unknown>', GPU fallen off the bus")
@example("٣,1,1,-;x".encode())
def test_parse_record__no_bytes_break_the_record_parser(raw):
    record = parse_record(raw)
    assert record is None or raw.count(b";")
    report = read_record(record, 0) if record is not None else None
    assert (report is not None) == (b"79, pid" in raw)


FRAGMENTS = st.lists(
    st.sampled_from(
        ["NVRM: ", "Xid ", "(PCI:", "0000:5d:00", ".0", "): ", "79", ", ", "pid=", "'<unknown>'",
         "name=", " GPU-I:", "GPU ", "fallen off the bus", "nvidia-nvswitch0: ", "SXid ", "Fatal",
         ", Link 3", "\n", "mlx5_core ", "é", "\x00", "9" * 30]
    ),
    max_size=14,
).map("".join)  # fmt: skip


@given(FRAGMENTS)
@example("NVRM: Xid (PCI:0000:5d:00): 79, pid='<unknown>', GPU fallen off the bus")
def test_read_line__no_mix_of_fragments_breaks_the_parser(text):
    report = said(text)
    assert not isinstance(report, XidReported) or text.startswith(("NVRM: ", "nvidia-nvswitch"))
    if isinstance(report, XidReported):
        assert re.fullmatch(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", report.device)
        assert 0 <= report.number < 10**6


@pytest.mark.parametrize(
    "where", [": segfault at 0 ip 0 sp 0 error 4", " bad frame in rt_sigreturn"]
)
def test_read_line__name_and_file_of_a_process_that_crashed_make_no_report(where: str) -> None:
    for file in ("NVRM: Xid (PCI:0000:5d:00): 79, x", f"GPU {GPU}: GPU has fallen off the bus."):
        assert said(f"NVRM: [123]{where} in {file}[400000+1000]") is None
