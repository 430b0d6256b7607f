"""The table of system calls against the headers of the kernel itself."""

import re
from pathlib import Path

import pytest

from kcover_ebpf.facts.kernel import NO_SYSCALL
from kcover_ebpf.facts.syscalls import FIRST_ARGUMENT_IS_FD, SyscallFamily, SyscallTable
from testbed.skips import skip

# machine -> the header that numbers its calls; Debian keeps the one of x86 in its own folder
HEADERS = {
    "x86_64": ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"),
    "aarch64": ("/usr/include/asm-generic/unistd.h",),
}
MOST = 1024


def numbers_in(text: str) -> dict[str, int]:
    """Names and numbers of a unistd.h, the generic one's aliases (__NR3264_) resolved."""
    lines = re.findall(r"^#define\s+__NR(3264)?_(\w+)\s+(\w+)", text, re.MULTILINE)
    plain = {name: int(value) for _, name, value in lines if value.isdecimal()}
    alias = {
        name: plain[value.removeprefix("__NR3264_")]
        for _, name, value in lines
        if value.removeprefix("__NR3264_") in plain
    }
    return plain | alias


def listed(table: SyscallTable) -> dict[str, int]:
    names = {table.name(number): number for number in range(MOST)}
    return {name: number for name, number in names.items() if not name.startswith("syscall ")}


@pytest.mark.parametrize("machine", HEADERS)
def test_syscall_table__every_number_is_the_one_of_the_kernel_header(machine: str) -> None:
    header = next((Path(path) for path in HEADERS[machine] if Path(path).exists()), None)
    if header is None:
        skip("headers", f"install the kernel's headers for {machine}")
    truth = numbers_in(header.read_text())
    ours = listed(SyscallTable(machine))
    assert len(ours) > 60
    newest = max(truth.values())
    newer = {name: number for name, number in ours.items() if number > newest}
    assert ours == {name: truth.get(name, newer.get(name)) for name in ours}


def test_syscall_table__both_architectures_distinguish_the_same_families() -> None:
    x86, arm = SyscallTable("x86_64"), SyscallTable("aarch64")
    ours, theirs = listed(x86), listed(arm)
    assert theirs.keys() <= ours.keys()
    for name, number in theirs.items():
        assert arm.family(number) is x86.family(ours[name]), name
    assert listed(SyscallTable("arm64")) == theirs


def test_syscall_table__the_calls_that_wait_on_a_descriptor_are_listed() -> None:
    assert listed(SyscallTable("x86_64")).keys() >= FIRST_ARGUMENT_IS_FD


def test_syscall_table__what_is_not_listed_is_a_wait_of_unknown_kind() -> None:
    table = SyscallTable("x86_64")
    assert (table.name(999), table.family(999)) == ("syscall 999", SyscallFamily.OTHER)
    assert (table.name(NO_SYSCALL), table.family(NO_SYSCALL)) == ("", SyscallFamily.NONE)
    assert (table.name(202), table.family(202)) == ("futex", SyscallFamily.FUTEX)


def test_syscall_table__an_unknown_machine_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        SyscallTable("riscv64")
