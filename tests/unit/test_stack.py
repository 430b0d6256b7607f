"""Stacks of real processes, and mappings and addresses of any kind."""

import ctypes
import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcover_ebpf.host import stack
from kcover_ebpf.host.stack import Memory, read_memory
from kcover_ebpf.host_facts import Look
from kcover_ebpf.ids import Pid
from kcover_ebpf.incidents.stacks import similarity

from .children import child_in

pytestmark = pytest.mark.needs("root")

LOCK = "lock = threading.Lock(); lock.acquire(); ready(); lock.acquire()"
FOREIGN = "ready(); libc.pause()"
GONE = Pid(2**22 + 1)


def words_of(look: Look) -> tuple[str, ...]:
    text = Path(f"/proc/{look.pid}/task/{look.tid}/syscall").read_text().split()
    return Memory().words(look.pid, int(text[-2], 16))


def test_equal_waits_have_similar_stacks_whatever_the_addresses_and_other_waits_have_not() -> None:
    with child_in(LOCK) as one, child_in(LOCK) as two, child_in(FOREIGN) as other:
        first, second, third = words_of(one), words_of(two), words_of(other)
    assert min(len(first), len(third)) > 5
    assert similarity(first, second) > 0.85
    assert similarity(first, third) < 0.6
    assert any(word.startswith("libc") for word in first)


def test_a_word_is_the_offset_in_the_file_of_the_module() -> None:
    memory = Memory()
    pid = Pid(os.getpid())
    maps = stack._read_maps(pid)
    raw = struct.pack("=4Q", maps.starts[0] + 5, maps.ends[0], 0, 2**64 - 1)
    held = bytearray(raw)
    address = _address_of(held)
    word = f"{maps.names[0]}+{maps.starts[0] + 5 - maps.bases[0]:x}"
    found = memory.words(pid, address)
    assert found[0] == word
    memory.forget(pid)
    assert memory.words(pid, address)[0] == word


def _address_of(held: bytearray) -> int:
    return ctypes.addressof((ctypes.c_char * len(held)).from_buffer(held))


@given(st.integers(-1, 2**64), st.integers(0, 64))
def test_memory_at_any_address_is_bytes_or_nothing(address: int, size: int) -> None:
    assert len(read_memory(Pid(os.getpid()), address, size)) <= size


def test_a_process_that_is_gone_has_no_memory_and_no_words() -> None:
    assert read_memory(GONE, 4096, 16) == b""
    assert Memory().words(GONE, 4096) == ()


MAPS = stack._Maps(0.0, [0x1000, 0x5000], [0x2000, 0x6000], ["a", "b"], [0x800, 0x5000])


@pytest.mark.parametrize(
    ("value", "word"),
    [
        *((0x1000, "a+800"), (0x1FFF, "a+17ff"), (0x5001, "b+1")),
        *((value, None) for value in (0, 0xFFF, 0x2000, 0x6000, 2**64 - 1)),
    ],
)
def test_a_value_names_code_only_inside_a_mapping(value: int, word: str | None) -> None:
    assert stack._word(MAPS, value) == word
