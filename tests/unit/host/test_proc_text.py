"""Texts of /proc that several readers share: mountinfo, syscall, a process's name."""

from pathlib import Path

import pytest

from kcover_ebpf.host import procfs
from kcover_ebpf.host.proc_text import (
    SyscallLine,
    mountinfo,
    parse_syscall,
    pidfd_process,
    timer_left_ns,
    unescaped,
)

NFS = r"36 35 0:55 / /mnt/a\040b rw,noatime shared:1 - nfs4 filer:/x rw,vers=4.2"


def test_mountinfo__a_line_ends_with_a_newline_alone_and_must_be_whole() -> None:
    odd = NFS.replace("/mnt/a", "/mnt/\x0c\x85")
    (first, second) = mountinfo(f"{NFS}\n36 35 0:56\n{odd}\n")
    assert (first.id, first.device, first.root, first.place) == ("36", "0:55", "/", r"/mnt/a\040b")
    assert (first.options, first.kind, first.source, first.super_options) == (
        "rw,noatime",
        "nfs4",
        "filer:/x",
        "rw,vers=4.2",
    )
    assert second.place == "/mnt/\x0c\x85" + r"\040b"


@pytest.mark.parametrize(
    ("text", "left_ns"),
    [
        ("clockid: 1\nticks: 0\nit_value: (76, 5)\nit_interval: (0, 0)\n", 76_000_000_005),
        ("clockid: 1\nit_value: (0, 0)\nit_interval: (1, 0)\n", None),
        ("it_value: (-1, 0)\n", None),
        ("it_value: (9999999999999999999, 0)\n", None),
        ("", None),
    ],
    ids=["set", "not set", "negative", "too large", "unreadable"],
)
def test_timer_left_ns__what_is_left_of_a_timer(text: str, left_ns: int | None) -> None:
    assert timer_left_ns(text) == left_ns


@pytest.mark.parametrize(
    ("text", "pid"),
    [
        ("pos:\t0\nmnt_id:\t15\nPid:\t4711\nNSpid:\t4711\t12\n", 4711),
        ("Pid:\t-1\nNSpid:\t-1\n", None),
        ("Pid:\t0\n", None),
        ("NSpid:\t12\n", None),
        ("Pid:\t99999999999999\n", None),
    ],
    ids=["alive", "ended", "not visible", "without it", "too large"],
)
def test_pidfd_process__the_process_that_it_refers_to(text: str, pid: int | None) -> None:
    assert pidfd_process(text) == pid


def test_unescaped__octal_numbers_are_characters() -> None:
    assert unescaped(r"/mnt/a\040b\134c") == "/mnt/a b\\c"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "202 0x10 0x80 0x2 0x0 0x0 0x0 0x7f00 0x7f01",
            SyscallLine(202, (16, 128, 2, 0, 0, 0), 0x7F00, 0x7F01),
        ),
        ("-1 0x7f00 0x7f01", SyscallLine(-1, (), 0x7F00, 0x7F01)),
        ("running", None),
        ("", None),
    ],
    ids=["in a call", "outside a call", "running", "unreadable"],
)
def test_parse_syscall__what_a_thread_does(text: str, line: SyscallLine | None) -> None:
    assert parse_syscall(text) == line


def test_comm__ends_of_lines_within_a_name_belong_to_it(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/comm").write_bytes(b"a\n\x85 \n")
    assert procfs.comm(7, tmp_path) == "a\n\ufffd "
    assert procfs.comm(8, tmp_path) == ""
