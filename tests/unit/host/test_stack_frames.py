"""Return addresses are distinguished from other words of a stack; kernel stacks are read."""

import os
import subprocess
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kcover_ebpf.host import bounded
from kcover_ebpf.host.proc_text import code_mappings
from kcover_ebpf.host.stack_frames import follows_call, parse_kernel_stack, return_addresses
from kcover_ebpf.ids import Pid, Tid
from tests.waiting import until

# what objdump shows of real code: eight bytes that end where a call returns to
CALLS = {
    "call rel32": ("x86_64", "9090 90e8 1122 3344"),
    "call *%rax": ("x86_64", "9090 9090 9090 ffd0"),
    "call *8(%rax)": ("x86_64", "9090 9090 90ff 5008"),
    "call *(%rip+0x2fe2)": ("x86_64", "9090 ff15 e22f 0000"),
    "call *8(%rsp,%rax)": ("x86_64", "9090 9090 ff54 0408"),
    "bl": ("aarch64", "1f20 03d5 0000 0094"),
    "bl backwards": ("aarch64", "1f20 03d5 ffff ff97"),
    "blr x16": ("aarch64", "1f20 03d5 0002 3fd6"),
}
OTHERS = {
    "nothing but nops": ("x86_64", "9090 9090 9090 9090"),
    "jmp *%rax": ("x86_64", "9090 9090 9090 ffe0"),
    "a jump": ("x86_64", "9090 90e9 1122 3344"),
    "ret": ("aarch64", "1f20 03d5 c003 5fd6"),
    "a branch without link": ("aarch64", "1f20 03d5 0000 0014"),
    "too little": ("x86_64", "90e8 1122 3344"),
}


@pytest.mark.parametrize("name", CALLS)
def test_follows_call__an_address_behind_a_call_is_a_return_address(name: str) -> None:
    machine, code = CALLS[name]
    assert follows_call(bytes.fromhex(code), machine)


@pytest.mark.parametrize("name", OTHERS)
def test_follows_call__other_code_is_not_called_from(name: str) -> None:
    machine, code = OTHERS[name]
    assert not follows_call(bytes.fromhex(code), machine)


@given(st.binary(min_size=8, max_size=8))
def test_follows_call__a_direct_call_is_one_wherever_it_leads(code: bytes) -> None:
    assert follows_call(code[:3] + b"\xe8" + code[4:], "x86_64")
    target = int.from_bytes(code[4:], "little") & 0x03FFFFFF
    assert follows_call(code[:4] + (0x94000000 | target).to_bytes(4, "little"), "aarch64")


@given(st.binary(max_size=7), st.sampled_from(["x86_64", "aarch64"]))
@example(bytes.fromhex("e811223344"), "x86_64")
def test_follows_call__fewer_than_eight_bytes_are_no_call(before: bytes, machine: str) -> None:
    assert not follows_call(before, machine)


MANY_MAPPINGS = """
import ctypes, time
libc = ctypes.CDLL(None)
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.mmap.restype = ctypes.c_void_p
for number in range(25000):
    libc.mmap(None, 4096, 1 + number % 2 * 2, 0x22, -1, 0)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.needs("root")
def test_return_addresses__of_a_process_with_many_mappings_are_those_of_libraries_too() -> None:
    """The kernel lists mappings by address, and so the libraries last."""
    command = [sys.executable, "-c", MANY_MAPPINGS]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        pid, machine = Pid(child.pid), os.uname().machine
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            until(lambda: len(return_addresses(pid, Tid(pid), machine)) > 1)
            lines = list(bounded.maps(pid))
            libc = [found for found in code_mappings(lines) if "libc.so" in found.path]
            inside = [
                address
                for address in return_addresses(pid, Tid(pid), machine)[1:]
                if any(found.start < address < found.end for found in libc)
            ]
        finally:
            child.kill()
    assert sum(map(len, lines)) > bounded.MOST_BYTES
    assert inside


def test_parse_kernel_stack__a_kernel_stack_loses_the_entry_and_keeps_modules() -> None:
    text = (
        "[<0>] rpc_wait_bit_killable+0x1e/0xb0 [sunrpc]\n"
        "[<0>] nfs4_proc_getattr+0x8/0x20 [nfsv4]\n"
        "[<0>] __x64_sys_newfstatat+0x41/0x90\n"
        "[<0>] do_syscall_64+0x71/0x280\n"
        "[<0>] entry_SYSCALL_64_after_hwframe+0x76/0x7e\n"
    )
    assert parse_kernel_stack(text) == (
        "rpc_wait_bit_killable [sunrpc]",
        "nfs4_proc_getattr [nfsv4]",
        "__x64_sys_newfstatat",
    )


@given(st.text())
@example("noise\n[<0>] io_schedule+0x46/0x80\n[<0>] nfs_wait+0x1/0x2 [nfs]\nmore")
def test_parse_kernel_stack__a_frame_of_any_text_is_a_part_of_it(text: str) -> None:
    found = parse_kernel_stack(text)
    assert [word for frame in found for word in frame.split() if word not in text] == []
